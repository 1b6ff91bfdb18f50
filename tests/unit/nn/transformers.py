"""Tiny transformers of every family, with inputs for each, for tests of what is put into them."""

from pathlib import Path
from typing import Any

import torch

from holdfast.core.inputs import Inputs
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.experts.graft import ExpertsNeck
from tests import tiny

TEXTS = ["the good film", "bad bad food", "the food was not very good", "a film", "a bad phone", "good"]
IMAGES = torch.randint(0, 256, (6, 3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
LABELS = torch.tensor([0, 1, 0, 1, 1, 0])
FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra", "vit", "deit", "dinov2"]


def transformer(
    family: str, folder: Path, *, experts: dict[str, Any] | None = None, **options
) -> tuple[Backbone, Inputs]:
    """A backbone in evaluation mode, 32 wide with 3 layers and optionally experts, and six prepared examples."""
    place = folder / family
    if not place.exists():
        getattr(tiny, f"tiny_{family}")(place)
    if family in FAMILIES[:5]:
        net: Backbone = TextEncoder.build(list, name=str(place), length=16, **options)
    else:
        net = VisionTransformer.build(list, name=str(place), **options)
    if experts is not None:
        ExpertsNeck(net.width, **experts).attach(net)
    examples = TEXTS if net.takes == "text" else IMAGES
    return net.eval(), net.prepare(examples).take(torch.arange(6))
