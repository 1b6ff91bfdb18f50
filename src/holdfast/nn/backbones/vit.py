"""Vision transformers through transformers: ViT, DeiT and DINOv2, pretrained or with fresh weights.

n examples, b batch, t tokens, d width, s pixels a side
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import ViTConfig
from transformers.utils import cached_file

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs
from holdfast.core.store import TensorStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.pretrained import layer_stack, load_config, load_module, module_from_config, split_blocks
from holdfast.nn.backbones.small import (
    HALF,
    IMAGENET,
    Colours,
    Normalise,
    checked_side,
    image_preparation,
    image_store,
)
from holdfast.nn.experts.graft import configure_experts
from holdfast.nn.graft.insert import add_drop_path, insert_prompts, prompt_parameters

PRESETS = {
    "vit-tiny": (192, 12, 3),
    "vit-s/16": (384, 12, 6),
    "vit-b/16": (768, 12, 12),
}  # width, layers, heads
POOLINGS = ("cls", "mean")
WHAT = "vision transformer"


class VisionTransformer(Backbone):
    """Patches through a transformer; its features are the class token's state or the mean over patches."""

    takes: ClassVar[str] = "image"

    def __init__(
        self,
        module: Any,
        *,
        name: str,
        size: int,
        pooling: str = "cls",
        mean: Sequence[float] = HALF[0],
        std: Sequence[float] = HALF[1],
        prompt: str = "none",
        prompts: int = 5,
        experts: int | Mapping[str, Any] | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
        patch = int(module.config.patch_size)
        if size < patch or size % patch:
            raise BadInput(f"size {size} of '{name}' must be a multiple of its patch size {patch}")
        self.width, self.size = int(module.config.hidden_size), size
        self.settings = {"name": name, "size": size, "pooling": pooling, "mean": list(mean), "std": list(std)}
        self.settings |= {"prompt": prompt, "prompts": prompts, "drop_path": drop_path}
        self.pooling, self.patches = pooling, (size // patch) ** 2
        self.normalise = Normalise(mean, std)
        self.module = module.train()
        can = "interpolate_pos_encoding" in inspect.signature(module.forward).parameters
        add_drop_path(self.stack(), drop_path)
        self.settings["experts"] = configure_experts(self.stack(), experts)
        insert_prompts(self.stack(), self.width, place=prompt, prompts=prompts)
        self._stretch = {"interpolate_pos_encoding": True} if can and size != module.config.image_size else {}

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        name: str,
        size: int | None = None,
        pooling: str = "cls",
        patch: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        prompt: str = "none",
        prompts: int = 5,
        experts: int | Mapping[str, Any] | None = None,
        drop_path: float = 0.0,
    ) -> Self:
        """A preset with fresh weights, or the weights of a folder or a hub name.

        `mean` and `std` of the colours are those that the weights came with, if they say none. `prompt` adds learned
        tokens, `experts` (a number, or settings) takes the place of some feed-forward networks, `drop_path` leaves
        branches out in training, of the last layer so many.
        """
        for side, setting in ((size, "encoder.size"), (patch, "encoder.patch")):
            if side is not None:
                checked_side(side, setting)
        put: dict[str, Any] = {"prompt": prompt, "prompts": prompts, "experts": experts, "drop_path": drop_path}
        given = {key: value for key, value in (("mean", mean), ("std", std)) if value is not None}
        if name in PRESETS:
            module = module_from_config(_preset(name, size or 224, patch or 16))
            return cls(module, name=name, size=size or 224, pooling=pooling, **given, **put)
        if patch is not None:
            raise BadInput(f"'{name}' is pretrained and has its own patch size: leave patch out, or use a preset")
        module, found = _pretrained(name)
        trained = int(module.config.image_size)
        colours: dict[str, Any] = {"mean": found[0], "std": found[1], **given}
        return cls(module, name=name, size=size or trained, pooling=pooling, **colours, **put)._checked()

    def _checked(self) -> Self:
        """Itself, if an image goes in and a state per patch comes out."""
        said = f"'{self.settings['name']}' is not a vision transformer with a class token"
        try:
            with torch.no_grad():
                states = self.eval()._states(torch.zeros(1, 3, self.settings["size"], self.settings["size"]))
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise BadInput(f"{said}: {type(self.module).__name__} fails on an image") from error
        if states.dim() != 3 or states.shape[1] <= self.patches or not self._tokens():
            raise BadInput(f"{said}: {type(self.module).__name__} gives no state per patch and class token")
        return self.train()

    def prepare(self, examples: Any) -> TensorStore:
        return image_store(examples, self.settings["size"])

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        states = self._states(x)  # (b, t, d)
        # class, distillation and register tokens come before the patches
        return states[:, 0] if self.pooling == "cls" else states[:, -self.patches :].mean(1)  # (b, d)

    def _states(self, x: Tensor) -> Tensor:
        return self.module(pixel_values=self.normalise(x), **self._stretch).last_hidden_state

    def attentions(self, x: Tensor) -> tuple[Tensor, ...]:
        """(b, h, t, t) of each layer; the network must attend without a fused kernel, which keeps none."""
        return self.module(pixel_values=self.normalise(x), output_attentions=True, **self._stretch).attentions

    def stack(self) -> nn.ModuleList:
        """The transformer layers themselves."""
        return layer_stack(self.module)

    def blocks(self) -> list[nn.Module]:
        return split_blocks(self.module)

    def class_token(self) -> list[nn.Parameter]:
        """The class token, and prompts where there are any."""
        return [*self._tokens(), *prompt_parameters(self)] or super().class_token()

    def _tokens(self) -> list[nn.Parameter]:
        return [p for name, p in self.module.named_parameters() if name.endswith("cls_token")]

    def save(self, folder: Path) -> dict[str, Any]:
        self.module.config.save_pretrained(folder)
        return self.settings

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        return cls(module_from_config(load_config(str(folder), what=WHAT)), **settings)

    def preparation_key(self) -> str:
        return image_preparation(self.settings["size"])


def _preset(name: str, size: int, patch: int) -> ViTConfig:
    if size % patch:
        raise BadInput(f"size {size} of '{name}' must be a multiple of its patch size {patch}")
    width, layers, heads = PRESETS[name]
    return ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=size,
        patch_size=patch,
        layer_norm_eps=1e-6,  # as ViT and DeiT were published; transformers has BERT's 1e-12
    )


def _pretrained(name: str) -> tuple[Any, Colours]:
    """The network and the mean and std of the colours it was trained with."""
    try:
        config = load_config(name, what=WHAT).to_dict()
    except BadInput as error:
        raise BadInput(f"{error}; presets with fresh weights: {', '.join(PRESETS)}") from error
    kind = str(config.get("model_type"))
    if not all(isinstance(config.get(part), int) for part in ("patch_size", "image_size", "hidden_size")):
        raise BadInput(f"'{name}' is not a vision transformer: its config.json describes a model of type {kind}")
    module = load_module(name, what=WHAT)
    default = IMAGENET if kind.startswith(("dinov2", "deit")) else HALF
    try:
        found = cached_file(str(Path(name).expanduser()), "preprocessor_config.json")
        told = json.loads(Path(str(found)).read_text(encoding="utf-8"))
    except OSError:
        return module, default
    except ValueError as error:
        raise BadInput(f"preprocessor_config.json of '{name}' is not JSON: mend it or delete it") from error
    if not told.get("do_normalize", True):
        return module, ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    mean, std = told.get("image_mean", default[0]), told.get("image_std", default[1])
    if len(mean) != 3 or len(std) != 3:
        raise BadInput(f"preprocessor_config.json of '{name}' must give image_mean and image_std of 3 colours")
    return module, (tuple(mean), tuple(std))
