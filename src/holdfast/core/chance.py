"""Two streams of chance where several processes train together: one that all share, and one of each process's own.

All that happens outside a step draws from the shared stream, so that what is grown, begun or sampled is the same
everywhere. Inside a step each process draws its own, such as dropout, but for what the rule has to decide alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from holdfast.core import parallel
from holdfast.core.held import Held
from holdfast.core.seeds import chance_state, seeded, set_chance_state


@dataclass(slots=True)
class _Streams:
    resting: dict[str, torch.Tensor]  # the state of the stream that is not drawn from now
    own: bool = False  # whether the process's own is drawn from


_open = Held[_Streams]()


@contextmanager
def two_streams(seed: int) -> Iterator[None]:
    """Torch's global generators are the shared stream inside; alone there is one stream for everything."""
    if not parallel.active():
        yield
        return
    with seeded(seed, "process", parallel.rank()):
        own = chance_state()
    with _open.hold(_Streams(own)):
        yield


@contextmanager
def own_chance() -> Iterator[None]:
    """This process draws by itself inside."""
    with _drawing(own=True):
        yield


@contextmanager
def shared_chance() -> Iterator[None]:
    """All processes draw the same inside, though each draws its own around it."""
    with _drawing(own=False):
        yield


def own_state() -> dict[str, torch.Tensor]:
    """Where this process's own stream is, outside of steps; nothing when alone."""
    return {} if _open.value is None else _open.value.resting


def set_own_state(state: dict[str, torch.Tensor]) -> None:
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
    now = chance_state()
    set_chance_state(streams.resting)
    streams.resting, streams.own = now, not streams.own
