"""Random number generators: named seeds, global RNG state, and a separate stream per process."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from holdfast.core import parallel
from holdfast.core.tape import ScopedValue

RngState = dict[str, torch.Tensor]


def derive(seed: int, *names: str | int) -> int:
    """Return a seed that depends only on the given seed and names."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator for one purpose, such as splits or batches."""
    return torch.Generator().manual_seed(derive(seed, *names))


@contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Seed the global RNGs of torch inside and restore them afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(seed, *names))
        yield


def rng_state() -> RngState:
    """Return the state of the global RNGs of torch."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state |= {f"cuda{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return state


def set_rng_state(state: RngState) -> None:
    torch.set_rng_state(state["cpu"])
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda{i}" in state:
            torch.cuda.set_rng_state(state[f"cuda{i}"], i)


@dataclass(slots=True)
class _Streams:
    inactive: RngState  # state of the stream that is not in use
    per_process: bool = False  # whether the stream of this process is in use


_streams = ScopedValue[_Streams]()


@contextmanager
def process_rng_streams(seed: int) -> Iterator[None]:
    """Give every process of a run a stream of its own next to the shared one; a single process has one stream."""
    if not parallel.active():
        yield
        return
    with seeded(seed, "process", parallel.rank()):
        state = rng_state()
    with _streams.bind(_Streams(state)):
        yield


def process_rng_state() -> RngState:
    """Return the state of this process's stream while the shared one is in use; empty for a single process."""
    return {} if _streams.value is None else _streams.value.inactive


def set_process_rng_state(state: RngState) -> None:
    if _streams.value is not None:
        _streams.value.inactive = state


@contextmanager
def _use(*, per_process: bool) -> Iterator[None]:
    streams = _streams.value
    if streams is None or streams.per_process == per_process:
        yield
        return
    _swap(streams)
    try:
        yield
    finally:
        _swap(streams)


def _swap(streams: _Streams) -> None:
    active = rng_state()
    set_rng_state(streams.inactive)
    streams.inactive, streams.per_process = active, not streams.per_process


use_process_rng = partial(_use, per_process=True)  # context in which every process draws different random numbers
use_shared_rng = partial(_use, per_process=False)  # context in which all processes draw the same random numbers
