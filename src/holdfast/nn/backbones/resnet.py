"""ResNet-18, 50 and 101 (He et al., 2016), with the parameter names that checkpoints of them usually have.

b batch, s pixels a side
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs
from holdfast.core.store import TensorStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.small import IMAGENET, Normalise, checked_side, image_preparation, image_store

SIZES = {"small": 32, "large": 224}  # stem -> pixels a side where none are asked for
STATISTICS = ("batch", "frozen", "auto")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a way around them."""

    times: ClassVar[int] = 1  # outputs in widths

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
    """A 3x3 convolution between two of 1x1 that narrow and widen, and a way around them; the 3x3 one has the stride."""

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
}  # depth -> blocks of each stage


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(Backbone):
    """A ResNet to its 512 or 2,048 pooled features; the small stem keeps the resolution of 32-pixel images.

    With `statistics` frozen, batch norms keep the means and variances that they have, and learn scales and shifts
    alone, as DomainBed tunes pretrained ones.
    """

    takes: ClassVar[str] = "image"

    def __init__(
        self,
        *,
        depth: int = 18,
        stem: str = "small",
        size: int | None = None,
        zero_init: bool = False,
        statistics: str = "batch",
    ) -> None:
        super().__init__()
        if depth not in LAYOUTS:
            raise unknown("depth of a ResNet", str(depth), map(str, LAYOUTS))
        if stem not in SIZES:
            raise unknown("stem", stem, SIZES)
        if statistics not in STATISTICS[:2]:
            raise unknown("statistics", statistics, STATISTICS)
        block, counts = LAYOUTS[depth]
        self.width, self.size = 512 * block.times, checked_side(SIZES[stem] if size is None else size)
        self.settings = {"depth": depth, "stem": stem, "size": self.size, "zero_init": zero_init}
        self.settings["statistics"] = statistics
        self.normalise = Normalise(*IMAGENET)
        if stem == "small":
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
            elif isinstance(part, BasicBlock | Bottleneck) and zero_init:
                nn.init.zeros_(part.last_norm.weight)
        self.train()

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        depth: int = 18,
        stem: str = "small",
        size: int | None = None,
        zero_init: bool = False,
        statistics: str = "batch",
        weights: str | None = None,
    ) -> Self:
        """Make one; `weights` is a safetensors file with the usual names, its classifier is left out.

        With `statistics=auto` those of a file are frozen, since fresh ones are of no images at all.
        """
        if statistics == "auto":
            statistics = "batch" if weights is None else "frozen"
        made = cls(depth=depth, stem=stem, size=size, zero_init=zero_init, statistics=statistics)
        if weights is not None:
            _load(made, Path(weights).expanduser())
        return made

    def prepare(self, examples: Any) -> TensorStore:
        return image_store(examples, self.settings["size"])

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

    def preparation_key(self) -> str:
        return image_preparation(self.settings["size"])


def _load(network: ResNet, path: Path) -> None:
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot read ResNet weights from {path} as safetensors: {error}") from error
    wanted = network.state_dict()
    lacking = [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")]
    if lacking:
        depth = network.settings["depth"]
        raise BadInput(f"{path} is no ResNet-{depth}: it lacks {len(lacking)} tensors such as '{lacking[0]}'")
    for name, tensor in wanted.items():
        if name in found and found[name].shape != tensor.shape:
            shapes = f"{tuple(found[name].shape)}, not {tuple(tensor.shape)}"
            raise BadInput(f"'{name}' in {path} has shape {shapes}: it may be for the other stem (small, large)")
    network.load_state_dict({name: found.get(name, tensor) for name, tensor in wanted.items()})
