"""ResNet-18, 50 and 101 (He et al., 2016), with the parameter names of torchvision checkpoints.

Shapes: b batch, s pixels per side.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs
from holdfast.nn.backbones.small import IMAGENET, ImageBackbone, Normalise, check_side

SIZES = {"small": 32, "large": 224}  # stem -> default pixels per side
STATISTICS = ("batch", "frozen", "auto")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    times: ClassVar[int] = 1  # output channels in units of the width

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions, and a shortcut."""

    times: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.times * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


LAYOUTS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}  # depth -> block and number of blocks per stage


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(ImageBackbone):
    """ResNet without its classifier; its features are the 512 or 2,048 channels averaged over all pixels.

    The small stem keeps the resolution of 32-pixel images. With `statistics=frozen` batch norms keep their means and
    variances and train only scales and shifts, as DomainBed tunes pretrained networks; `auto` is frozen if `weights`
    are loaded, else batch.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        depth: int = 18
        stem: str = "small"
        size: int | None = None  # default: 32 for the small stem, 224 for the large one
        zero_init: bool = False
        statistics: str = "batch"

        def __post_init__(self) -> None:
            if self.depth not in LAYOUTS:
                raise unknown("depth of a ResNet", str(self.depth), map(str, LAYOUTS))
            if self.stem not in SIZES:
                raise unknown("stem", self.stem, SIZES)
            if self.statistics not in STATISTICS:
                raise unknown("statistics", self.statistics, STATISTICS)

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        options = self.Settings(**settings)
        block, counts = LAYOUTS[options.depth]
        size = check_side(SIZES[options.stem] if options.size is None else options.size)
        statistics = "batch" if options.statistics == "auto" else options.statistics
        self.width, self.size = 512 * block.times, size
        self.settings = asdict(replace(options, size=size, statistics=statistics))
        self.normalise = Normalise(*IMAGENET)
        if options.stem == "small":
            self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs, stages = 64, []
        for i, count in enumerate(counts):
            width, stride = 64 * 2**i, 1 if i == 0 else 2
            rest = [block(width * block.times, width, 1) for _ in range(count - 1)]
            stages.append(nn.Sequential(block(inputs, width, stride), *rest))
            inputs = width * block.times
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(part, BasicBlock | Bottleneck) and options.zero_init:
                nn.init.zeros_(part.last_norm.weight)
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

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        out = F.relu(self.bn1(self.conv1(self.normalise(x))))
        if self.settings["stem"] == "large":
            out = F.max_pool2d(out, 3, 2, padding=1)
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return out.mean((2, 3))  # (b, width)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.settings["statistics"] == "frozen":
            for part in self.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.eval()
        return self

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
