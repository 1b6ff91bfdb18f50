"""Memories as necks: a share of the features is what the memory says to them.

b batch, t tokens, d width
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.tape import record
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.graft.insert import follow
from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.memory.product_key import ProductKeyMemory
from holdfast.nn.memory.read import Read

PLACES = ("feature", "tokens", "layers")


class MemoryBlend(nn.Module):
    """(1 - share) z + share memory(z); with share 0 the features as they are."""

    def __init__(self, memory: nn.Module, *, share: float) -> None:
        super().__init__()
        self.memory, self.share = memory, share

    @property
    def tape_name(self) -> str:
        return "memory/weights" if self.share else ""

    def forward(self, z: Tensor) -> Tensor:
        if self.share == 0:
            return z
        found: Read = self.memory.read(z.reshape(-1, z.shape[-1]))  # pyright: ignore[reportCallIssue]
        record("memory/content", found.content.detach())
        record("memory/weights", found.weights.detach())
        if found.slots is not None:
            record("memory/slots", found.slots)
        return torch.lerp(z, found.content.to(z.dtype).view_as(z), self.share)


def effective_slots(weights: Tensor) -> Tensor:
    """exp H of the mean weights (b, h, m): how many slots a batch used, were they used alike."""
    mean = weights.float().mean(dim=(0, 1))  # (m,)
    return torch.special.entr(mean).sum().exp()


class MemoryNeck(nn.Module):
    """A memory on the features, or, put into a transformer, on the states of the last layer or of every layer."""

    def __init__(self, width: int, make: Callable[[], nn.Module], *, share: float, place: str, frozen: bool) -> None:
        super().__init__()
        if not 0 <= share <= 1:
            raise BadInput(f"share, the memory's part in the features, lies between 0 and 1, not {share}")
        if place not in PLACES:
            raise unknown("place of a memory", place, PLACES)
        self.width, self.place, self.share, self.frozen = width, place, share, frozen
        self.fused = self._part(make) if place == "feature" else nn.Identity()
        self.make = None if place == "feature" else make

    def _part(self, make: Callable[[], nn.Module]) -> MemoryBlend:
        return MemoryBlend(make().requires_grad_(not self.frozen), share=self.share)

    def attach(self, backbone: Backbone) -> None:
        if self.make is not None:
            at = [-1] if self.place == "tokens" else range(len(backbone.stack()))
            follow(backbone, at, partial(self._part, self.make))
            self.make = None

    def forward(self, z: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(z.device.type):
            return self.fused(z)
        # one read an example is little work: to cast the slots for it would take more kernels than the read itself
        with torch.autocast(z.device.type, enabled=False):
            return self.fused(z.float())


def key_value(
    width: int,
    *,
    share: float = 0.5,
    place: str = "feature",
    frozen: bool = False,
    slots: int = 1024,
    heads: int = 4,
    key_width: int = 256,
    query: str = "linear",
    query_norm: bool = False,
    keys_per_head: bool = True,
    values_per_head: bool = False,
    project: bool = False,
    mean: bool = False,
    similarity: str = "dot",
    temperature: float = 1.0,
    top: int | None = None,
) -> MemoryNeck:
    """A key-value memory; `share` is the published lambda, `frozen` leaves the slots as they are drawn."""
    make = partial(
        KeyValueMemory,
        width,
        slots=slots,
        heads=heads,
        key_width=key_width,
        query=query,
        query_norm=query_norm,
        keys_per_head=keys_per_head,
        values_per_head=values_per_head,
        project=project,
        mean=mean,
        similarity=similarity,
        temperature=temperature,
        top=top,
    )
    return MemoryNeck(width, make, share=share, place=place, frozen=frozen)


def product_key(
    width: int,
    *,
    share: float = 0.5,
    place: str = "feature",
    frozen: bool = False,
    slots: int = 65_536,
    heads: int = 4,
    key_width: int = 256,
    top: int = 32,
    query: str = "linear",
    query_norm: bool = False,
) -> MemoryNeck:
    """A product-key memory; while it learns, gradient and optimizer hold three more tables as large as its values."""
    make = partial(
        ProductKeyMemory,
        width,
        slots=slots,
        heads=heads,
        key_width=key_width,
        top=top,
        query=query,
        query_norm=query_norm,
    )
    return MemoryNeck(width, make, share=share, place=place, frozen=frozen)
