"""backbone -> neck -> head. A neck is where a memory or an expert layer sits.

b batch, d width, c classes
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.experts.graft import ExpertsNeck, expert_layers
from holdfast.nn.graft.insert import Attachable, prompt_parameters


@runtime_checkable
class BatchDependent(Protocol):
    """A neck or a layer in which an example may look at the others of its batch."""

    @property
    def prediction_batch(self) -> tuple[int, int] | None: ...


@runtime_checkable
class TiedHead(Protocol):
    """A head that shares parameters with the backbone below; a model lets it."""

    def tie(self, backbone: Backbone) -> None: ...


class Model(nn.Module):
    """A network in three parts; with precision `bf16` the first two run under autocast."""

    def __init__(self, backbone: nn.Module, neck: nn.Module, head: nn.Module, *, precision: str = "fp32") -> None:
        super().__init__()
        if isinstance(neck, Attachable) and isinstance(backbone, Backbone):
            neck.attach(backbone)
        if isinstance(head, TiedHead) and isinstance(backbone, Backbone):
            head.tie(backbone)
        self.backbone, self.neck, self.head = backbone, neck, head
        self.precision = precision

    @property
    def width(self) -> int:
        """The width of the features, which the neck decides."""
        return int(self.neck.width)  # pyright: ignore[reportArgumentType]

    @property
    def prediction_batch(self) -> tuple[int, int] | None:
        """Where others change a prediction: how many to predict at once and the seed to shuffle by; else None."""
        parts = (self.neck, *expert_layers(self.backbone))
        return next(
            (part.prediction_batch for part in parts if isinstance(part, BatchDependent) and part.prediction_batch),
            None,
        )

    def encode(self, x: Inputs, *, backbone: nn.Module | None = None) -> Tensor:
        """(b, d) what the backbone, or another one in its place, makes of the inputs."""
        with self._precision():
            return (self.backbone if backbone is None else backbone)(x)

    def apply_neck(self, z: Tensor) -> Tensor:
        """(b, d) what the neck makes of the backbone's features, in full precision for the head."""
        with self._precision():
            fused = self.neck(z)
        return fused if self.precision == "fp32" else fused.float()

    def features(self, x: Inputs) -> Tensor:
        return self.apply_neck(self.encode(x))

    def forward(self, x: Inputs) -> Tensor:
        return self.head(self.features(x))  # (b, c)

    def _precision(self) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(next(self.parameters()).device.type, dtype=torch.bfloat16)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """The parameters that an optimizer may touch."""
        return [p for p in self.parameters() if p.requires_grad]

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode:
            eval_frozen(self)
        return self


MODES = "full, frozen, last:N (N blocks from the end) or head+cls"


def check_mode(mode: str) -> None:
    """One sentence where there is no such tuning."""
    name, _, count = mode.partition(":")
    last = name == "last" and count.isdigit() and int(count) > 0
    if mode not in ("full", "frozen", "head+cls") and not last:
        raise BadInput(f"unknown tuning '{mode}': use {MODES}")


def tune(backbone: Backbone, mode: str, neck: nn.Module | None = None) -> None:
    """Set requires_grad throughout the backbone; necks and heads outside it always learn, and experts of the neck."""
    check_mode(mode)
    _set(backbone, mode)
    experts = [p for layer in expert_layers(backbone) for p in layer.parameters()]
    if isinstance(neck, ExpertsNeck):
        for parameter in experts:
            parameter.requires_grad_(True)
    if experts and not any(p.requires_grad for p in experts):
        raise BadInput(f"experts are there to learn, and tuning {mode} freezes them: use --tune full or last:N")


def _set(backbone: Backbone, mode: str) -> None:
    if mode == "full":
        backbone.requires_grad_(True)
        return
    backbone.requires_grad_(False)
    if mode != "head+cls" and prompt_parameters(backbone):
        raise BadInput(f"prompts are there to learn, and tuning {mode} freezes them: use --tune head+cls or full")
    if mode == "frozen":
        return
    if mode == "head+cls":
        for parameter in backbone.class_token():
            parameter.requires_grad_(True)
        return
    blocks, count = backbone.blocks(), int(mode.removeprefix("last:"))
    if count > len(blocks):
        raise BadInput(f"tuning '{mode}' asks for more than the {len(blocks)} blocks of this backbone")
    for block in blocks[-count:]:
        block.requires_grad_(True)


def eval_frozen(module: nn.Module) -> None:
    """Put every part without a learning parameter into evaluation mode: no dropout, no batch statistics."""
    for part in module.modules():
        owned = list(part.parameters())
        if owned and not any(p.requires_grad for p in owned):
            part.eval()
