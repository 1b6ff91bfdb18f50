"""Rank of this process among those a launcher such as torchrun started; does not import torch."""

import os

_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def world_size() -> int:
    """Return the number of processes started for this run; 1 without a launcher."""
    return _variable("WORLD_SIZE", 1) if all(name in os.environ for name in _REQUIRED) else 1


def rank() -> int:
    """Return the rank of this process, counted from 0."""
    return _variable("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """Return the rank of this process among those on this machine."""
    return _variable("LOCAL_RANK", rank()) if world_size() > 1 else 0


def local_world_size() -> int:
    """Return the number of processes of this run on this machine."""
    return _variable("LOCAL_WORLD_SIZE", world_size()) if world_size() > 1 else 1


def is_first() -> bool:
    """Whether this process writes files and prints messages."""
    return rank() == 0


def _variable(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
