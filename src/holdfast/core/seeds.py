"""One seed gives every source of chance its own named generator, so that none disturbs another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *names: str | int) -> int:
    """A number that depends on the seed and the names alone."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator of its own for one purpose: split, init, batches, method."""
    return torch.Generator().manual_seed(derive(seed, *names))


@contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Torch's global generators start from the named seed inside and are put back afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(seed, *names))
        yield


def chance_state() -> dict[str, torch.Tensor]:
    """The state of torch's global generators: what dropout will draw next."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state |= {f"cuda{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return state


def set_chance_state(state: dict[str, torch.Tensor]) -> None:
    """Put back what `chance_state` gave."""
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            if f"cuda{i}" in state:
                torch.cuda.set_rng_state(state[f"cuda{i}"], i)
