"""One seed gives every source of chance its own named generator, so that none disturbs another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from holdfast.core import parallel
from holdfast.core.tape import ScopedValue


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


def rng_state() -> dict[str, torch.Tensor]:
    """The state of torch's global generators: what dropout will draw next."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state |= {f"cuda{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return state


def set_rng_state(state: dict[str, torch.Tensor]) -> None:
    """Put back what `chance_state` gave."""
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            if f"cuda{i}" in state:
                torch.cuda.set_rng_state(state[f"cuda{i}"], i)


@dataclass(slots=True)
class _Streams:
    resting: dict[str, torch.Tensor]  # the state of the stream that is not drawn from now
    own: bool = False  # whether the process's own is drawn from


_open = ScopedValue[_Streams]()


@contextmanager
def process_rng_streams(seed: int) -> Iterator[None]:
    """Torch's global generators are the shared stream inside; alone there is one stream for everything."""
    if not parallel.active():
        yield
        return
    with seeded(seed, "process", parallel.rank()):
        own = rng_state()
    with _open.bind(_Streams(own)):
        yield


@contextmanager
def use_process_rng() -> Iterator[None]:
    """This process draws by itself inside."""
    with _drawing(own=True):
        yield


@contextmanager
def use_shared_rng() -> Iterator[None]:
    """All processes draw the same inside, though each draws its own around it."""
    with _drawing(own=False):
        yield


def process_rng_state() -> dict[str, torch.Tensor]:
    """Where this process's own stream is, outside of steps; nothing when alone."""
    return {} if _open.value is None else _open.value.resting


def set_process_rng_state(state: dict[str, torch.Tensor]) -> None:
    if _open.value is not None:
        _open.value.resting = state


@contextmanager
def _drawing(*, own: bool) -> Iterator[None]:
    streams = _open.value
    if streams is None or streams.own == own:
        yield
        return
    _swap(streams)
    try:
        yield
    finally:
        _swap(streams)


def _swap(streams: _Streams) -> None:
    now = rng_state()
    set_rng_state(streams.resting)
    streams.resting, streams.own = now, not streams.own
