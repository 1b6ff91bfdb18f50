"""Low-rank adapters (LoRA, Hu et al., 2022) of a transformer, with the package peft.

A linear layer with the weight W computes W x + (alpha / R) B A x; only A and B, of rank R, are trained.
`merge_adapters` adds the product to W, so that saved and exported networks are plain and need no package.
"""

from typing import Any, cast

from torch import nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone

PREFIX = "lora:"
ALPHA = 2  # multiple of the rank that scales the product


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
