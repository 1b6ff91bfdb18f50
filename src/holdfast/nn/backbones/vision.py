"""Image encoders of the transformers library by their pooled features: CLIP, SigLIP, DINOv2, ConvNeXt and others.

Shapes: b batch, t positions, d width, s pixels per side.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.nn.backbones import pretrained
from holdfast.nn.backbones.small import HALF, IMAGENET, Colours, ImageBackbone, Normalise, check_side
from holdfast.nn.backbones.vit import trained_colours

WHAT = "image encoder"
CLIP: Colours = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
FAMILIES = {
    "clip": CLIP,
    "siglip": HALF,
    "vit": HALF,
}  # colours of a checkpoint without a preprocessor; else ImageNet's


class VisionEncoder(ImageBackbone):
    """Network whose features are its pooled output; without one, the class token's state or the mean of all positions.

    Of a model for images and texts, such as CLIP, only the part for images is loaded.
    """

    def __init__(self, module: Any, *, name: str, size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.size = size
        self.settings = {"name": name, "size": size, "mean": list(mean), "std": list(std)}
        self.normalise = Normalise(mean, std)
        self.module = module.train()
        self.has_class_token = any("cls_token" in key or "class_embedding" in key for key in module.state_dict())
        interpolates = "interpolate_pos_encoding" in inspect.signature(module.forward).parameters
        resized = interpolates and size != module.config.image_size
        self._interpolate = {"interpolate_pos_encoding": True} if resized else {}
        self.width = self._measured_width()

    @classmethod
    def build(
        cls, training: Callable[[], Any], *, name: str, size: int | None = None,
        mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
    ) -> Self:  # fmt: skip
        """Load a folder or a hub name; `size`, `mean` and `std` default to those of the checkpoint."""
        module = copy.deepcopy(_module(*pretrained.locate(name), name))
        kind, side = str(module.config.model_type), getattr(module.config, "image_size", None)
        default = next((colours for family, colours in FAMILIES.items() if kind.startswith(family)), IMAGENET)
        trained = trained_colours(name, default)
        if size is None and not isinstance(side, int):
            raise BadInput(f"the configuration of '{name}' states no image size: set encoder.size")
        side = check_side(size or int(side or 0), "encoder.size")
        return cls(module, name=name, size=side, mean=mean or trained[0], std=std or trained[1])

    def _measured_width(self) -> int:
        """Return the width of the features of an empty image; raise if the network has none."""
        was_training = self.training
        try:
            with torch.no_grad():
                width = self.eval()(torch.zeros(1, 3, self.settings["size"], self.settings["size"])).shape[-1]
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            kind, name = type(self.module).__name__, self.settings["name"]
            raise BadInput(
                f"'{name}' is not an image encoder: {kind} fails on an image of {self.size} pixels"
            ) from error
        self.train(was_training)
        return int(width)

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        output = self.module(pixel_values=self.normalise(x), **self._interpolate)
        if output.get("pooler_output") is not None:
            return output.pooler_output.flatten(1)  # (b, d)
        states = output.last_hidden_state  # (b, t, d), or (b, d, s, s) of a convolutional network
        if states.dim() == 4:
            return states.mean((2, 3))
        return states[:, 0] if self.has_class_token else states.mean(1)

    def stack(self) -> nn.ModuleList:
        return pretrained.layer_stack(self.module)

    def blocks(self) -> list[nn.Module]:
        return pretrained.split_blocks(self.module)

    def save(self, folder: Path) -> dict[str, Any]:
        self.module.config.save_pretrained(folder)
        return self.settings

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        return cls(pretrained.module_from_config(pretrained.load_config(str(folder), what=WHAT)), **settings)


@lru_cache(maxsize=1)
def _module(place: str, stamp: pretrained.Stamp, name: str) -> Any:
    """Load a network, or of a model with several parts the one for images."""
    from transformers import MODEL_MAPPING

    config = pretrained.load_config(name, what=WHAT)
    config = config.vision_config if "vision_config" in config.to_dict() else config
    if type(config) not in MODEL_MAPPING:
        raise BadInput(f"'{name}' is not an image encoder: transformers has no network for {type(config).__name__}")
    with pretrained.loading(WHAT, name):
        network = MODEL_MAPPING[type(config)]
        module, missing = pretrained.load_weights(network, place, config, **pretrained.without_pooler(config))
    if missing:
        raise BadInput(f"the weights of '{name}' lack {len(missing)} tensors such as '{missing[0]}'")
    if module.main_input_name != "pixel_values":
        raise BadInput(f"'{name}' is not an image encoder: {type(module).__name__} takes no pixels")
    return module
