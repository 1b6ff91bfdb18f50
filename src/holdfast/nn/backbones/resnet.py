"""ResNet-18, 50 and 101 (He et al., 2016), with the parameter names of torchvision checkpoints.

Shapes: b batch, s pixels per side.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.accel.batch_norm import normed
from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, keywords_of, retired_settings, setting
from holdfast.nn.backbones.small import IMAGENET, ImageBackbone, Normalise, side_setting

SIZES = {"small": 32, "large": 224}  # stem -> default pixels per side


class Block(nn.Module):
    """Two 3x3 convolutions, or in a bottleneck 1x1, 3x3 and 1x1 ones, and a shortcut; the first 3x3 has the stride."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        self.bottleneck, outputs = bottleneck, 4 * width if bottleneck else width
        kernel, strides = (1, (1, stride)) if bottleneck else (3, (stride, 1))
        self.conv1 = nn.Conv2d(inputs, width, kernel, strides[0], padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, strides[1], padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        if bottleneck:
            self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(normed(self.bn1, self.conv1(x)))
        if self.bottleneck:
            out = self.conv3(normed(self.bn2, out))
        return normed(self.bn3 if self.bottleneck else self.bn2, out, residual=self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.downsample is None:
            return x
        convolution, norm = self.downsample
        return normed(norm, convolution(x), relu=False)


# depth -> whether its blocks are bottlenecks, and their number per stage
LAYOUTS = {18: (False, (2, 2, 2, 2)), 50: (True, (3, 4, 6, 3)), 101: (True, (3, 4, 23, 3))}


class ResNet(ImageBackbone):
    """ResNet without its classifier; its features are the 512 or 2,048 channels averaged over all pixels.

    The small stem keeps the resolution of 32-pixel images. With `statistics=frozen` batch norms keep their means and
    variances and train only scales and shifts, as DomainBed tunes pretrained networks; `auto` is frozen if `weights`
    are loaded, else batch.
    """

    @checked_settings
    class Settings:
        depth: int = setting(18, choices=LAYOUTS)
        stem: str = setting("small", choices=SIZES)
        size: int | None = side_setting(None)  # default: 32 for the small stem, 224 for the large one
        statistics: str = setting("batch", choices=("batch", "frozen", "auto"))

        retired = retired_settings(zero_init=False)

    @keywords_of(Settings)
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        bottleneck, counts = LAYOUTS[settings.depth]
        times = 4 if bottleneck else 1  # output channels of a block in units of its width
        size = SIZES[settings.stem] if settings.size is None else settings.size
        statistics = "batch" if settings.statistics == "auto" else settings.statistics
        self.width, self.size = 512 * times, size
        self.settings = asdict(replace(settings, size=size, statistics=statistics))
        self.normalise = Normalise(*IMAGENET)
        if settings.stem == "small":
            self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs, stages = 64, []
        for i, count in enumerate(counts):
            width, stride = 64 * 2**i, 1 if i == 0 else 2
            shapes = [(inputs, stride), *[(width * times, 1)] * (count - 1)]
            blocks = [Block(before, width, stride, bottleneck=bottleneck) for before, stride in shapes]
            stages.append(nn.Sequential(*blocks))
            inputs = width * times
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        self.train()

    @classmethod
    def build(cls, training: Callable[[], Any], *, weights: str | None = None, **settings: Any) -> Self:
        """Build the network; `weights` is a safetensors file with the usual names, whose classifier is ignored."""
        if settings.get("statistics") == "auto" and weights is not None:
            settings["statistics"] = "frozen"
        network = cls(**settings)
        if weights is not None:
            _load(network, Path(weights).expanduser())
        return network

    def forward(self, x: Tensor) -> Tensor:
        out = normed(self.bn1, self.conv1(self.normalise(x)))
        if self.settings["stem"] == "large":
            out = F.max_pool2d(out, 3, 2, padding=1)
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return out.mean((2, 3))  # (b, width)

    def blocks(self) -> list[nn.Module]:
        stem = nn.ModuleList([self.conv1, self.bn1])
        return [stem, self.layer1, self.layer2, self.layer3, self.layer4]


def _load(network: ResNet, path: Path) -> None:
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot read ResNet weights from {path} as safetensors: {error}") from error
    state = network.state_dict()
    missing = [name for name in state if name not in weights and not name.endswith("num_batches_tracked")]
    if missing:
        depth = network.settings["depth"]
        raise BadInput(f"{path} is not a ResNet-{depth}: it lacks {len(missing)} tensors such as '{missing[0]}'")
    for name, tensor in state.items():
        if name in weights and weights[name].shape != tensor.shape:
            shapes = f"{tuple(weights[name].shape)}, expected {tuple(tensor.shape)}"
            raise BadInput(f"'{name}' in {path} has shape {shapes}: try the other encoder.stem (small, large)")
    network.load_state_dict({name: weights.get(name, tensor) for name, tensor in state.items()})
