"""Tuning modes, which decide what of a backbone is trained, and low-rank adapters (LoRA, Hu et al., 2022).

With an adapter, a linear layer with the weight W computes W x + (alpha / R) B A x; only A and B, of rank R, are
trained. `merge_adapters` adds the product to W, so that saved and exported networks are plain and need no package.
"""

from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.graft.insert import InsertingNeck, prompt_parameters

MODES = (
    "full, frozen, lp-ft (head first, then full), lora:R (adapters of rank R), last:N (the last N blocks) or head+cls"
)
COMPLETE = ("full", "lp-ft")  # the complete backbone is trained
PREFIX = "lora:"
ALPHA = 2  # multiple of the rank that scales the product


def check_mode(mode: str) -> None:
    """Raise an error for an unknown tuning mode."""
    name, _, count = mode.partition(":")
    last = name == "last" and count.isdigit() and int(count) > 0
    if mode not in (*COMPLETE, "frozen", "head+cls") and not last and not adapter_rank(mode):
        raise BadInput(f"unknown tuning '{mode}': use {MODES}")


def tune(backbone: Backbone, mode: str, neck: nn.Module | None = None) -> None:
    """Set `requires_grad` in the backbone.

    Parts that declare a name in `must_learn`, such as experts, may not be frozen completely.
    """
    check_mode(mode)
    backbone.requires_grad_(mode in COMPLETE)
    if mode not in (*COMPLETE, "head+cls") and prompt_parameters(backbone):
        raise BadInput(f"--tune {mode} freezes the prompts: use --tune head+cls or full")
    required = [module for module in backbone.modules() if getattr(module, "must_learn", "")]
    parameters = [parameter for module in required for parameter in module.parameters()]
    if rank := adapter_rank(mode):
        if required:
            raise _freezes(mode, required)
        add_adapters(backbone, rank)
    for parameter in backbone.class_token() if mode == "head+cls" else ():
        parameter.requires_grad_(True)
    if mode.startswith("last:"):
        blocks, count = backbone.blocks(), int(mode.removeprefix("last:"))
        if count > len(blocks):
            raise BadInput(f"--tune {mode} exceeds the {len(blocks)} blocks of this backbone: use last:{len(blocks)}")
        for block in blocks[-count:]:
            block.requires_grad_(True)
    if isinstance(neck, InsertingNeck) and neck.trains_parts:
        for parameter in parameters:
            parameter.requires_grad_(True)
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        raise _freezes(mode, required)


def _freezes(mode: str, required: Sequence[Any]) -> BadInput:
    return BadInput(f"--tune {mode} freezes the {required[0].must_learn}: use --tune full or last:N")


def eval_frozen(module: nn.Module) -> tuple[bool, bool]:
    """Switch every module without trainable parameters to evaluation mode: no dropout, no batch statistics.

    Returns whether the module has parameters, and trainable ones.
    """
    own = [p for p in module._parameters.values() if p is not None]
    below = [eval_frozen(child) for child in module.children()]
    has = bool(own) or any(some for some, _ in below)
    learns = any(p.requires_grad for p in own) or any(trained for _, trained in below)
    if has and not learns:
        module.eval()
    return has, learns


def adapter_rank(mode: str) -> int:
    """Return R of the tuning mode `lora:R`, or 0 for other modes."""
    rank = mode.removeprefix(PREFIX)
    return int(rank) if mode.startswith(PREFIX) and rank.isdigit() else 0


def add_adapters(backbone: Backbone, rank: int) -> None:
    """Add adapters to every linear layer of the transformer's layers, and train nothing else of the backbone."""
    try:
        from peft import LoraConfig, inject_adapter_in_model  # pyright: ignore[reportMissingImports]
    except ImportError:
        fix = "run `pip install 'holdfast[lora]'`, or use --tune full"
        raise BadInput(f"--tune {PREFIX}{rank} needs the package peft: {fix}") from None
    layers = backbone.stack()
    backbone.requires_grad_(False)
    names = [name for name, module in layers.named_modules() if type(module) is nn.Linear]
    config = LoraConfig(r=rank, lora_alpha=ALPHA * rank, target_modules=names)
    inject_adapter_in_model(config, layers)


def merge_adapters(network: nn.Module) -> None:
    """Add the adapters of a network to the weights of their layers, and remove them."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if callable(getattr(child, "get_base_layer", None)):  # a layer of peft, which need not be installed
                layer = cast(Any, child)
                layer.merge(safe_merge=True)  # raises for NaN and inf
                setattr(module, name, layer.get_base_layer())
