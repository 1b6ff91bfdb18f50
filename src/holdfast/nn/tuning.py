"""Which parameters of a backbone learn: full, frozen, last:N, head+cls."""

from __future__ import annotations

from torch import nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.experts.graft import experts_in
from holdfast.nn.experts.neck import ExpertsNeck
from holdfast.nn.prompts import prompts_of

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
    experts = [p for layer in experts_in(backbone) for p in layer.parameters()]
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
    if mode != "head+cls" and prompts_of(backbone):
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


def rest_frozen(module: nn.Module) -> None:
    """Put every part without a learning parameter into evaluation mode: no dropout, no batch statistics."""
    for part in module.modules():
        owned = list(part.parameters())
        if owned and not any(p.requires_grad for p in owned):
            part.eval()
