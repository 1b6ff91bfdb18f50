"""Vision transformers of the transformers library: ViT, DeiT and DINOv2, pretrained or randomly initialised.

Shapes: b batch, t tokens, h heads, d width, s pixels per side.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_known
from holdfast.core.inputs import Inputs
from holdfast.nn.backbones.pretrained import layer_stack, load_config, load_module, module_from_config, split_blocks
from holdfast.nn.backbones.small import HALF, IMAGENET, Colours, ImageBackbone, Normalise, check_side
from holdfast.nn.experts.graft import configure_experts
from holdfast.nn.graft.insert import add_drop_path, insert_prompts, prompt_parameters

PRESETS = {"vit-tiny": (192, 12, 3), "vit-s/16": (384, 12, 6), "vit-b/16": (768, 12, 12)}  # width, layers, heads
POOLINGS = ("cls", "mean")
WHAT = "vision transformer"

# Images have no padding, and no mask is made for an attention that transformers has no mask for. With `sdpa` some
# versions make one while a CUDA graph is captured, which excludes the fast kernels.
UNMASKED = "unmasked_sdpa"


@cache
def register_unmasked_attention() -> None:
    """Add the implementation to those of transformers, whose import takes seconds."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(UNMASKED, sdpa_attention_forward)


class VisionTransformer(ImageBackbone):
    """Transformer over image patches; its features are the class token's state or the mean over patches."""

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        """Settings of the network that do not depend on the checkpoint."""

        pooling: str = "cls"
        prompt: str = "none"  # where trained tokens are added
        prompts: int = 5
        experts: int | Mapping[str, Any] | None = None  # a number, or settings, of experts in feed-forward networks
        drop_path: float = 0.0  # probability of dropping a residual branch of the last layer in training

        def __post_init__(self) -> None:
            check_known("pooling", self.pooling, POOLINGS)

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
        self.width, self.size = int(module.config.hidden_size), size
        self.settings = {"name": name, "size": size, "mean": list(mean), "std": list(std), **asdict(options)}
        self.pooling, self.patches = options.pooling, (size // patch) ** 2
        self.normalise = Normalise(mean, std)
        self.module = module.train()
        if module.config._attn_implementation == "sdpa":
            register_unmasked_attention()
            module.config._attn_implementation = UNMASKED
        add_drop_path(self.stack(), options.drop_path)
        self.settings["experts"] = configure_experts(self.stack(), options.experts)
        insert_prompts(self.stack(), self.width, place=options.prompt, prompts=options.prompts)
        interpolates = "interpolate_pos_encoding" in inspect.signature(module.forward).parameters
        resized = interpolates and size != module.config.image_size
        self._interpolate = {"interpolate_pos_encoding": True} if resized else {}

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
        for side, setting in ((size, "encoder.size"), (patch, "encoder.patch")):
            if side is not None:
                check_side(side, setting)
        colours: dict[str, Any] = {key: value for key, value in (("mean", mean), ("std", std)) if value is not None}
        if name in PRESETS:
            module = module_from_config(_preset(name, size or 224, patch or 16))
            return cls(module, name=name, size=size or 224, **colours, **settings)
        if patch is not None:
            raise BadInput(f"'{name}' is pretrained with a fixed patch size: remove encoder.patch, or use a preset")
        module, (trained_mean, trained_std) = _pretrained(name)
        colours = {"mean": trained_mean, "std": trained_std, **colours}
        return cls(module, name=name, size=size or int(module.config.image_size), **colours, **settings)._checked()

    def _checked(self) -> Self:
        """Return the network if it maps an image to one state per patch; raise otherwise."""
        problem = f"'{self.settings['name']}' is not a vision transformer with a class token"
        try:
            with torch.no_grad():
                states = self.eval()._states(torch.zeros(1, 3, self.settings["size"], self.settings["size"]))
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise BadInput(f"{problem}: {type(self.module).__name__} fails on an image") from error
        if states.dim() != 3 or states.shape[1] <= self.patches or not self._class_tokens():
            raise BadInput(f"{problem}: {type(self.module).__name__} returns no state per patch and class token")
        return self.train()

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        states = self._states(x)  # (b, t, d)
        # class, distillation and register tokens precede the patches
        return states[:, 0] if self.pooling == "cls" else states[:, -self.patches :].mean(1)  # (b, d)

    def _states(self, x: Tensor) -> Tensor:
        return self.module(pixel_values=self.normalise(x), **self._interpolate).last_hidden_state

    def attentions(self, x: Tensor) -> tuple[Tensor, ...]:
        """(b, h, t, t) attention weights per layer; needs an attention implementation that returns them."""
        return self.module(pixel_values=self.normalise(x), output_attentions=True, **self._interpolate).attentions

    def stack(self) -> nn.ModuleList:
        return layer_stack(self.module)

    def blocks(self) -> list[nn.Module]:
        return split_blocks(self.module)

    def class_token(self) -> list[nn.Parameter]:
        """Return the class token and, if present, the prompts."""
        return [*self._class_tokens(), *prompt_parameters(self)] or super().class_token()

    def _class_tokens(self) -> list[nn.Parameter]:
        return [p for name, p in self.module.named_parameters() if name.endswith("cls_token")]

    def save(self, folder: Path) -> dict[str, Any]:
        self.module.config.save_pretrained(folder)
        return self.settings

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)
        register_unmasked_attention()  # in the process that unpickles it

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        return cls(module_from_config(load_config(str(folder), what=WHAT)), **settings)


def _preset(name: str, size: int, patch: int) -> Any:
    if size % patch:
        raise BadInput(f"encoder.size of '{name}' must be a multiple of its patch size {patch}, got {size}")
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
        config = load_config(name, what=WHAT).to_dict()
    except BadInput as error:
        raise BadInput(f"{error}; presets with random weights: {', '.join(PRESETS)}") from error
    kind = str(config.get("model_type"))
    if not all(isinstance(config.get(field), int) for field in ("patch_size", "image_size", "hidden_size")):
        raise BadInput(f"'{name}' is not a vision transformer: its config.json describes a model of type {kind}")
    module = load_module(name, what=WHAT)
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
