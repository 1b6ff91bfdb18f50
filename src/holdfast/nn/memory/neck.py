"""Memories as necks: what the memory returns for the features is added to them or interpolated with them.

Shapes: b batch, t tokens, h heads, m slots, d width.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor, nn

from holdfast.core.settings import checked_settings, choice, keywords_of, setting
from holdfast.core.tape import is_recording, record
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.graft.insert import InsertingNeck, insert_after
from holdfast.nn.memory.initialise import FromData, thin
from holdfast.nn.memory.key_value import KeyValueMemory, KeyValueSettings
from holdfast.nn.memory.product_key import ProductKeyMemory, ProductKeySettings
from holdfast.nn.memory.read import Read, effective_slots

P = ParamSpec("P")


class MemoryBlend(nn.Module):
    """Fusion of states z of any shape (..., d) with the content m(z) of a memory; `share=0` returns z itself.

    `interpolate` is (1 - share) z + share m(z) (Jia & Zhang, 2023); `gate` is z + gate m(z) with a learned gate that
    starts at zero. Weights without a gate, from earlier versions, are loaded as `interpolate`.
    """

    rate_part = "memory"

    def __init__(self, memory: nn.Module, *, share: float, fusion: str = "interpolate") -> None:
        super().__init__()
        self.memory, self.share = memory, share
        self.gate = nn.Parameter(torch.zeros(())) if fusion == "gate" else None
        self.register_load_state_dict_pre_hook(_interpolate_without_gate)

    @property
    def tape_name(self) -> str:
        return "memory/weights" if self.share else ""

    @property
    def examples_needed(self) -> int:
        return self.memory.examples_needed if self.share and isinstance(self.memory, FromData) else 0

    def observe(self, inputs: tuple[Any, ...], output: Any) -> tuple[Tensor, ...]:
        return (thin(inputs[0].reshape(-1, inputs[0].shape[-1]).float(), self.examples_needed),)

    def initialise(self, *observed: Tensor, generator: torch.Generator) -> None:
        """Initialise the memory from states (n, d)."""
        assert isinstance(self.memory, FromData)
        self.memory.initialise(*observed, generator=generator)

    def forward(self, z: Tensor) -> Tensor:
        if self.share == 0:
            return z
        output: Read = self.memory.read(z.reshape(-1, z.shape[-1]))  # pyright: ignore[reportCallIssue]
        record("memory/content", output.content.detach())
        record("memory/weights", output.weights.detach())
        if output.slots is not None:
            record("memory/slots", output.slots)
        if is_recording() and not self.training:
            record("stat/memory/effective_slots", effective_slots(output.weights.detach()))
        content = output.content.to(z.dtype).view_as(z)
        if self.gate is None:
            return torch.lerp(z, content, self.share)
        return torch.addcmul(z, self.gate.to(z.dtype), content)


def _interpolate_without_gate(blend: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded, drop a gate that they do not have."""
    if f"{prefix}gate" not in state:
        blend.gate = None


@checked_settings
class BlendSettings:
    """Settings that every memory neck has."""

    # the published lambda; 0 is the plain backbone
    share: float = setting(0.5, least=0, most=1, search=choice(0.1, 0.2, 0.3, 0.5, 0.7))
    # z + gate m(z) with a gate that starts at zero; published: `interpolate`, with `share`
    fusion: str = setting("gate", choices=("gate", "interpolate"))
    # or, inside a transformer, `tokens` (last layer) or `layers` (one memory per layer)
    place: str = setting("feature", choices=("feature", "tokens", "layers"))
    frozen: bool = False  # leave the slots as they are initialised


class MemoryNeck(InsertingNeck):
    """A memory on the features or inside a transformer; calls `make` once per position. Settings: `BlendSettings`."""

    @keywords_of(BlendSettings)
    def __init__(self, width: int, make: Callable[[], nn.Module], settings: BlendSettings) -> None:
        super().__init__()
        self.width, self.place, self.options, self.make = width, settings.place, settings, make
        self.fused = self._blend() if self.place == "feature" else nn.Identity()

    def _blend(self) -> MemoryBlend:
        memory = self.make().requires_grad_(not self.options.frozen)
        return MemoryBlend(memory, share=self.options.share, fusion=self.options.fusion)

    def insert(self, backbone: Backbone) -> None:
        if self.place != "feature":
            at = [-1] if self.place == "tokens" else range(len(backbone.stack()))
            insert_after(backbone, at, self._blend)

    def forward(self, z: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(z.device.type):
            return self.fused(z)
        # one read per example is little work: casting the slots would launch more kernels than the read itself
        with torch.autocast(z.device.type, enabled=False):
            return self.fused(z.float())


@checked_settings
class KeyValueNeckSettings(KeyValueSettings, BlendSettings):
    """Settings of the neck `memory`."""


@checked_settings
class ProductKeyNeckSettings(ProductKeySettings, BlendSettings):
    """Settings of the neck `product-memory`."""

    # during training, gradient and optimizer take three times the memory of the values
    slots: int = setting(65_536, least=1, search=choice(16_384, 65_536, 262_144))


def neck_builder(
    memory: Callable[..., nn.Module], declared: Callable[P, BlendSettings]
) -> Callable[Concatenate[int, P], MemoryNeck]:
    """Return a function that builds necks with `memory(width, **options)`.

    `declared` is a dataclass with the memory's options and the fields of `BlendSettings`.
    """

    @keywords_of(declared)
    def build(width: int, settings: BlendSettings) -> MemoryNeck:
        values = asdict(settings)
        blend = {name: values.pop(name) for name in BlendSettings.__dataclass_fields__}
        return MemoryNeck(width, partial(memory, width, **values), **blend)

    vars(build)["Settings"] = declared
    return build


key_value = neck_builder(KeyValueMemory, KeyValueNeckSettings)
product_key = neck_builder(ProductKeyMemory, ProductKeyNeckSettings)
