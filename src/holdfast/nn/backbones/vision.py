"""Image encoders of the transformers library.

ViT, DeiT and DINOv2, pretrained or randomly initialised, and networks with pooled features such as CLIP and ConvNeXt.

Shapes: b batch, t tokens or positions, h heads, d width, s pixels per side.
"""

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, retired_settings, setting
from holdfast.nn.backbones import pretrained
from holdfast.nn.backbones.small import HALF, IMAGENET, Colours, ImageBackbone, Normalise, check_side
from holdfast.nn.graft.insert import add_drop_path, insert_prompts, prompt_parameters

PRESETS = {"vit-tiny": (192, 12, 3), "vit-s/16": (384, 12, 6), "vit-b/16": (768, 12, 12)}  # width, layers, heads
CLIP: Colours = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# colours of a checkpoint without a preprocessor; else ImageNet's
FAMILIES = {"clip": CLIP, "siglip": HALF, "vit": HALF}

# Images have no padding, and no mask is made for an attention that transformers has no mask for. With `sdpa` some
# versions make one while a CUDA graph is captured, which excludes the fast kernels.
UNMASKED = "unmasked_sdpa"


@cache
def register_unmasked_attention() -> None:
    """Add the implementation to those of transformers, whose import takes seconds."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(UNMASKED, sdpa_attention_forward)


class TransformersBackbone(ImageBackbone):
    """Base of image encoders of the transformers library."""

    what: ClassVar[str]  # in messages
    module: Any

    def _initialise(
        self, module: Any, name: str, size: int, mean: Sequence[float], std: Sequence[float], **settings: Any
    ) -> None:
        self.size = size
        self.settings = {"name": name, "size": size, "mean": list(mean), "std": list(std), **settings}
        self.normalise = Normalise(mean, std)
        self.module = module.train()
        interpolates = "interpolate_pos_encoding" in inspect.signature(module.forward).parameters
        resized = interpolates and size != module.config.image_size
        self._interpolate = {"interpolate_pos_encoding": True} if resized else {}

    def _output(self, x: Tensor, **options: Any) -> Any:
        return self.module(pixel_values=self.normalise(x), **self._interpolate, **options)

    def _try(self, forward: Callable[[Tensor], Tensor], problem: str) -> Tensor:
        """Return the result for an empty image in evaluation mode; raise if the network fails."""
        side = self.settings["size"]
        self.eval()
        try:
            with torch.no_grad():
                result = forward(torch.zeros(1, 3, side, side))
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            kind = type(self.module).__name__
            raise BadInput(f"{problem}: {kind} fails on an image of {side} pixels") from error
        self.train()
        return result

    def stack(self) -> nn.ModuleList:
        return pretrained.layer_stack(self.module)

    def blocks(self) -> list[nn.Module]:
        return pretrained.split_blocks(self.module)

    def save(self, folder: Path) -> dict[str, Any]:
        self.module.config.save_pretrained(folder)
        return self.settings

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        return cls(pretrained.module_from_config(pretrained.load_config(str(folder), what=cls.what)), **settings)


class VisionTransformer(TransformersBackbone):
    """Transformer over image patches; its features are the class token's state or the mean over patches."""

    what = "vision transformer"

    @checked_settings
    class Settings:
        """Settings of the network that do not depend on the checkpoint."""

        pooling: str = setting("cls", choices=("cls", "mean"))
        prompt: str = setting("none", choices=("none", "shallow", "deep"))  # where trained tokens are added
        prompts: int = setting(5, least=1)
        # probability of dropping a residual branch of the last layer in training
        drop_path: float = setting(0.0, least=0, below=1)

        retired = retired_settings(experts=None)

    def __init__(
        self,
        module: Any,
        *,
        name: str,
        size: int,
        mean: Sequence[float] = HALF[0],
        std: Sequence[float] = HALF[1],
        **settings: Any,
    ) -> None:
        super().__init__()
        options = self.Settings(**settings)
        patch = int(module.config.patch_size)
        if size < patch or size % patch:
            raise BadInput(f"encoder.size of '{name}' must be a multiple of its patch size {patch}, got {size}")
        self._initialise(module, name, size, mean, std, **asdict(options))
        self.width = int(module.config.hidden_size)
        self.pooling, self.patches = options.pooling, (size // patch) ** 2
        if module.config._attn_implementation == "sdpa":
            register_unmasked_attention()
            module.config._attn_implementation = UNMASKED
        add_drop_path(self.stack(), options.drop_path)
        insert_prompts(self.stack(), self.width, place=options.prompt, prompts=options.prompts)

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        name: str,
        size: int | None = None,
        patch: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        **settings: Any,
    ) -> Self:
        """Build a preset with random weights, or load a folder or a hub name.

        `mean` and `std` of the colours default to those of the checkpoint.
        """
        for side, name_of_side in ((size, "encoder.size"), (patch, "encoder.patch")):
            if side is not None:
                check_side(side, name_of_side)
        colours: dict[str, Any] = {key: value for key, value in (("mean", mean), ("std", std)) if value is not None}
        if name in PRESETS:
            module = pretrained.module_from_config(_preset(name, size or 224, patch or 16))
            return cls(module, name=name, size=size or 224, **colours, **settings)
        if patch is not None:
            raise BadInput(f"'{name}' is pretrained with a fixed patch size: remove encoder.patch, or use a preset")
        module, (trained_mean, trained_std) = _pretrained(name)
        colours = {"mean": trained_mean, "std": trained_std, **colours}
        return cls(module, name=name, size=size or int(module.config.image_size), **colours, **settings)._checked()

    def _checked(self) -> Self:
        """Return the network if it maps an image to one state per patch; raise otherwise."""
        problem = f"'{self.settings['name']}' is not a vision transformer with a class token"
        states = self._try(self._states, problem)
        if states.dim() != 3 or states.shape[1] <= self.patches or not self._class_tokens():
            raise BadInput(f"{problem}: {type(self.module).__name__} returns no state per patch and class token")
        return self

    def forward(self, x: Tensor) -> Tensor:
        states = self._states(x)  # (b, t, d)
        # class, distillation and register tokens precede the patches
        return states[:, 0] if self.pooling == "cls" else states[:, -self.patches :].mean(1)  # (b, d)

    def _states(self, x: Tensor) -> Tensor:
        return self._output(x).last_hidden_state

    def attentions(self, x: Tensor) -> tuple[Tensor, ...]:
        """(b, h, t, t) attention weights per layer; needs an attention implementation that returns them."""
        return self._output(x, output_attentions=True).attentions

    def class_token(self) -> list[nn.Parameter]:
        """Return the class token and, if present, the prompts."""
        return [*self._class_tokens(), *prompt_parameters(self)] or super().class_token()

    def _class_tokens(self) -> list[nn.Parameter]:
        return [p for name, p in self.module.named_parameters() if name.endswith("cls_token")]

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)
        register_unmasked_attention()  # in the process that unpickles it


def _preset(name: str, size: int, patch: int) -> Any:
    from transformers import ViTConfig

    width, layers, heads = PRESETS[name]
    return ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=size,
        patch_size=patch,
        layer_norm_eps=1e-6,  # as ViT and DeiT were published; the default of transformers is BERT's 1e-12
    )


def _pretrained(name: str) -> tuple[Any, Colours]:
    """Load the network, and the mean and standard deviation of the colours it was trained with."""
    try:
        config = pretrained.load_config(name, what=VisionTransformer.what).to_dict()
    except BadInput as error:
        raise BadInput(f"{error}; presets with random weights: {', '.join(PRESETS)}") from error
    kind = str(config.get("model_type"))
    if not all(isinstance(config.get(field), int) for field in ("patch_size", "image_size", "hidden_size")):
        raise BadInput(f"'{name}' is not a vision transformer: its config.json describes a model of type {kind}")
    module = pretrained.load_module(name, what=VisionTransformer.what)
    return module, trained_colours(name, IMAGENET if kind.startswith(("dinov2", "deit")) else HALF)


def trained_colours(name: str, default: Colours) -> Colours:
    """Return the mean and standard deviation in the checkpoint's preprocessor, or the default if it has none."""
    try:
        from transformers.utils import cached_file

        file = cached_file(str(Path(name).expanduser()), "preprocessor_config.json")
        preprocessor = json.loads(Path(str(file)).read_text(encoding="utf-8"))
    except OSError:
        return default
    except ValueError as error:
        raise BadInput(f"preprocessor_config.json of '{name}' is not valid JSON: fix or delete it") from error
    if not preprocessor.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    mean, std = preprocessor.get("image_mean", default[0]), preprocessor.get("image_std", default[1])
    if len(mean) != 3 or len(std) != 3:
        raise BadInput(f"preprocessor_config.json of '{name}' must have image_mean and image_std of 3 colours")
    return tuple(mean), tuple(std)


class VisionEncoder(TransformersBackbone):
    """Network whose features are its pooled output; without one, the class token's state or the mean of all positions.

    Of a model for images and texts, such as CLIP, only the part for images is loaded.
    """

    what = "image encoder"

    def __init__(self, module: Any, *, name: str, size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self._initialise(module, name, size, mean, std)
        self.has_class_token = any("cls_token" in key or "class_embedding" in key for key in module.state_dict())
        self.width = self._try(self, f"'{name}' is not an image encoder").shape[-1]

    @classmethod
    def build(
        cls, training: Callable[[], Any], *, name: str, size: int | None = None,
        mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
    ) -> Self:  # fmt: skip
        """Load a folder or a hub name; `size`, `mean` and `std` default to those of the checkpoint."""
        module = copy.deepcopy(_image_network(*pretrained.locate(name), name))
        kind, side = str(module.config.model_type), getattr(module.config, "image_size", None)
        default = next((colours for family, colours in FAMILIES.items() if kind.startswith(family)), IMAGENET)
        trained = trained_colours(name, default)
        if size is None and not isinstance(side, int):
            raise BadInput(f"the configuration of '{name}' states no image size: set encoder.size")
        side = check_side(size or int(side or 0), "encoder.size")
        return cls(module, name=name, size=side, mean=mean or trained[0], std=std or trained[1])

    def forward(self, x: Tensor) -> Tensor:
        output = self._output(x)
        if output.get("pooler_output") is not None:
            return output.pooler_output.flatten(1)  # (b, d)
        states = output.last_hidden_state  # (b, t, d), or (b, d, s, s) of a convolutional network
        if states.dim() == 4:
            return states.mean((2, 3))
        return states[:, 0] if self.has_class_token else states.mean(1)


@lru_cache(maxsize=1)
def _image_network(place: str, stamp: pretrained.Stamp, name: str) -> Any:
    """Load a network, or of a model with several parts the one for images."""
    from transformers import MODEL_MAPPING

    config = pretrained.load_config(name, what=VisionEncoder.what)
    config = config.vision_config if "vision_config" in config.to_dict() else config
    if type(config) not in MODEL_MAPPING:
        raise BadInput(f"'{name}' is not an image encoder: transformers has no network for {type(config).__name__}")
    module = pretrained.load_network(MODEL_MAPPING[type(config)], place, config, name, VisionEncoder.what)
    if module.main_input_name != "pixel_values":
        raise BadInput(f"'{name}' is not an image encoder: {type(module).__name__} takes no pixels")
    return module
