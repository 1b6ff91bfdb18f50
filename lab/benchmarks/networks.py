"""Networks, batches and methods that benchmarks share."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import ViTConfig

from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import seeded
from holdfast.methods.base import Method
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.pretrained import module_from_config
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify


def classifier(backbone: nn.Module, neck: Any, classes: int, device: torch.device, *, precision: str = "fp32") -> Model:
    """Return a network with a linear head; a neck that is a number is the width of the features."""
    neck = NoNeck(neck) if isinstance(neck, int) else neck
    with seeded(0, "init"):
        return Model(backbone, neck, Linear(neck.width, classes), precision=precision).to(device)


def trainer(model: Model, make: Callable[..., Method] = ERM, **settings: Any) -> Method:
    """Return a method that trains a classifier with these settings of the optimizer."""
    method = make(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(**settings)))
    return method.to(next(model.parameters()).device).train()


def vit(pixels: int, layers: int, *, width: int = 384, patch: int = 16) -> VisionTransformer:
    """Return a vision transformer with random weights; with 12 layers it has the shape of ViT-S/16."""
    config = ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width,
        image_size=pixels, patch_size=patch,
    )  # fmt: skip
    with seeded(0, "init"):
        return VisionTransformer(module_from_config(config), name="vit", size=pixels)


def random_images(size: int, pixels: int, classes: int, device: torch.device) -> DomainBatch:
    """Return random images (size, 3, pixels, pixels) of one domain with random labels."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size, 3, pixels, pixels), generator=rng).to(torch.uint8)
    y = torch.randint(0, classes, (size,), generator=rng)
    return DomainBatch(images.to(device), y.to(device), (0,), (size,))
