"""Which of several processes this one is, as torchrun or another launcher says it; needs no torch."""

from __future__ import annotations

import os

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def world_size() -> int:
    """How many processes were started together for one run; 1 where no launcher says otherwise."""
    return _number("WORLD_SIZE", 1) if all(name in os.environ for name in NEEDED) else 1


def rank() -> int:
    """The number of this process among them, from 0."""
    return _number("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """The same among those of this machine."""
    return _number("LOCAL_RANK", rank()) if world_size() > 1 else 0


def local_world_size() -> int:
    """How many of them are on this machine."""
    return _number("LOCAL_WORLD_SIZE", world_size()) if world_size() > 1 else 1


def is_first() -> bool:
    """Whether this is the process that writes files and speaks to the user."""
    return rank() == 0


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise
