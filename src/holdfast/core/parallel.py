"""One run on several processes: rank, world size and the averaging of gradients; a no-op when alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


def active() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    return dist.get_rank() if active() else 0


def world_size() -> int:
    return dist.get_world_size() if active() else 1


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the processes, in one flat all-reduce per dtype."""
    if not active():
        return
    for dtype in {p.dtype for p in parameters}:
        mine = [p for p in parameters if p.dtype == dtype]
        for p in mine:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        grads = [p.grad for p in mine if p.grad is not None]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view_as(grad))
