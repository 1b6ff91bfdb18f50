"""EfficientNet-Lite0 (Tan & Le, 2019) with ImageNet weights from an installed package or a file.

The Lite variants have no squeeze-and-excitation and ReLU6 in place of swish. Shapes: b batch, s pixels per side.
"""

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.core.errors import BadInput
from holdfast.core.packages import PACKAGED
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.nn.backbones.small import Colours, ImageBackbone, Normalise, side_setting

# expansion, channels, blocks, stride of the first block, kernel
STAGES = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
          (6, 320, 1, 1, 3))  # fmt: skip
STEM, WIDTH = 32, 1280
EPSILON, MOMENTUM = 1e-3, 0.01
MEAN, STD = 127 / 255, 128 / 255  # of the published training, for every colour
COLOURS: Colours = ((MEAN, MEAN, MEAN), (STD, STD, STD))
# names in the published file -> names here; its classifier is not used
LAYER = r"^_blocks\.(\d+)\._"
RENAMED = {
    r"^_conv_stem\.": "stem.conv.", r"^_bn0\.": "stem.norm.", r"^_conv_head\.": "top.conv.", r"^_bn1\.": "top.norm.",
    rf"{LAYER}expand_conv\.": r"layers.\1.expand.conv.", rf"{LAYER}bn0\.": r"layers.\1.expand.norm.",
    rf"{LAYER}depthwise_conv\.": r"layers.\1.depthwise.conv.", rf"{LAYER}bn1\.": r"layers.\1.depthwise.norm.",
    rf"{LAYER}project_conv\.": r"layers.\1.project.conv.", rf"{LAYER}bn2\.": r"layers.\1.project.norm.",
}  # fmt: skip


class Convolution(nn.Module):
    """Convolution, batch norm and, unless `linear`, ReLU6.

    It pads as TensorFlow does: with a stride of 2 one side gets a pixel more than the other.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=EPSILON, momentum=MOMENTUM)
        self.kernel, self.stride, self.linear = kernel, stride, linear

    def forward(self, x: Tensor) -> Tensor:
        pads = [self._padding(x.shape[side]) for side in (3, 2)]
        if any(map(any, pads)):
            x = F.pad(x, [*pads[0], *pads[1]])
        x = self.norm(self.conv(x))
        return x if self.linear else F.relu6(x)

    def _padding(self, pixels: int) -> tuple[int, int]:
        """Return the pixels before and after, so that the output has ceil(pixels / stride)."""
        total = max(0, (-(-pixels // self.stride) - 1) * self.stride + self.kernel - pixels)
        return total // 2, total - total // 2


class Block(nn.Module):
    """Inverted bottleneck: expansion, depthwise convolution, projection, and a shortcut if the shape stays."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        hidden = expansion * inputs
        self.expand = Convolution(inputs, hidden, 1) if expansion > 1 else nn.Identity()
        self.depthwise = Convolution(hidden, hidden, kernel, stride, groups=hidden)
        self.project = Convolution(hidden, outputs, 1, linear=True)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return x + out if self.shortcut else out


class EfficientNetLite(ImageBackbone):
    """EfficientNet-Lite0 without its classifier; its features are 1,280 channels, averaged over all pixels.

    With `statistics=frozen` batch norms keep their means and variances while they are tuned.
    """

    @checked_settings
    class Settings:
        size: int = side_setting(224)  # pixels per side; it was trained with 224
        statistics: str = setting("frozen", choices=("frozen", "batch"))

    @keywords_of(Settings)
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.width, self.size = WIDTH, settings.size
        self.settings = asdict(settings)
        self.normalise = Normalise(*COLOURS)
        self.stem = Convolution(3, STEM, 3, 2)
        inputs, layers = STEM, []
        for expansion, outputs, count, stride, kernel in STAGES:
            for number in range(count):
                first = stride if number == 0 else 1
                layers.append(Block(inputs, outputs, expansion=expansion, kernel=kernel, stride=first))
                inputs = outputs
        self.layers = nn.ModuleList(layers)
        self.top = Convolution(inputs, WIDTH, 1)
        self.train()

    @classmethod
    def build(cls, training: Callable[[], Any], *, weights: str | None = None, **settings: Any) -> Self:
        """Build the network with ImageNet weights; `weights` is the published file, or the folder that contains it."""
        network = cls(**settings)
        _load(network, PACKAGED["efficientnet-lite0"].locate(weights))
        return network

    def forward(self, x: Tensor) -> Tensor:
        out = self.stem(self.normalise(x))
        for layer in self.layers:
            out = layer(out)
        return self.top(out).mean((2, 3))  # (b, width)

    def blocks(self) -> list[nn.Module]:
        """Stem, the seven stages, and with the last one the final convolution."""
        stages, start = [], 0
        for _, _, count, _, _ in STAGES:
            stages.append(nn.ModuleList(self.layers[start : start + count]))
            start += count
        stages[-1].append(self.top)
        return [self.stem, *stages]


def _load(network: EfficientNetLite, path: Path) -> None:
    """Load the published weights, whose file was checked by its hash and is read without running code from it."""
    try:
        published = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError) as error:
        raise BadInput(f"{path} cannot be read as weights of EfficientNet-Lite0: install it again") from error
    network.load_state_dict({rename(name): tensor for name, tensor in published.items() if not name.startswith("_fc.")})


def rename(name: str) -> str:
    """Return the name of a published tensor in this network."""
    for pattern, replacement in RENAMED.items():
        name, count = re.subn(pattern, replacement, name)
        if count:
            break
    return name
