"""Encoders of a table with a text or an image per row: features of the columns, followed by those of the other part.

Shapes: n rows, b batch, d width, k components, s pixels per side.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_known
from holdfast.core.settings import checked_settings, setting, without_retired
from holdfast.core.store import JointStore
from holdfast.core.table import TableRows
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.efficientnet import EfficientNetLite
from holdfast.nn.backbones.hybrid import TwoEncoders, with_components
from holdfast.nn.backbones.resnet import ResNet
from holdfast.nn.backbones.small import CNN, ImageBackbone, check_side, unit_range
from holdfast.nn.backbones.tabular import Columns, TableBackbone, Tabular
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.backbones.tfidf import Tfidf

AUTO, TFIDF = "auto", "tfidf"
COMPONENTS = 32
SIDE = 16  # pixels per side from which the components of images are computed
ROWS = 2_000  # training images that the components are computed from, at most
IMAGES: dict[str, type[ImageBackbone]] = {"cnn": CNN, "resnet18": ResNet, "efficientnet-lite0": EfficientNetLite}


class TwoParts(TwoEncoders):
    """Base of the encoders of tables with a text or an image; the second encoder is the module `text` or `image`."""

    takes = "mixed"
    table: TableBackbone
    kind: str  # of the second encoder

    columns: ClassVar[type[TableBackbone]]

    def __init__(self, table: TableBackbone, other: Backbone, **settings: Any) -> None:
        super().__init__()
        self.kind, self.schema, self.size = other.takes, table.schema, other.size
        self._initialise(("table", self.kind), table, other, **settings)

    @property
    def other(self) -> Backbone:
        """Encoder of the texts or images."""
        return cast(Backbone, self.get_submodule(self.kind))

    def prepare(self, examples: TableRows) -> JointStore:
        if isinstance(examples.companion, Tensor) != (self.kind == "image"):
            raise BadInput(f"the model reads a table with one {self.kind} per row: name its column as in training")
        return JointStore(self.table.prepare(examples), self.other.prepare(examples.companion))

    @staticmethod
    @abstractmethod
    def family(kind: str, base: str) -> type[Backbone]:
        """Return the encoder of the texts or images; `base` is its name in the settings."""

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        kind, base = "image" if "image" in settings else "text", settings.get("base", "")
        family = cls.family(kind, base)
        other = family.load(folder / kind, without_retired(family, settings[kind]))
        table = cls.columns.load(folder / "table", settings["table"])
        return cls(table, other, **({"base": base} if base else {}))

    def blocks(self) -> list[nn.Module]:
        table, other = self.table.blocks(), self.other.blocks()
        return [*table[:-1], *other[:-1], nn.ModuleList([*table[-1:], *other[-1:]])]

    def stack(self) -> nn.ModuleList:
        return self.other.stack() if isinstance(self.other, TextEncoder) else self.table.stack()


class Mixed(TwoParts):
    """The encoder `tabular` next to a text or image encoder; both are trained, a pretrained one only on request.

    With the default base, the features of a text are the principal components of TF-IDF, which training changes, and
    those of an image are the outputs of four convolutions.
    """

    columns = Tabular

    @checked_settings
    class Settings(Tabular.Settings):
        base: str = setting(
            AUTO, help="encoder of the text: tfidf (default), minilm, mpnet, a folder, or a name on the hub; of the "
            "image: cnn (default), resnet18 or efficientnet-lite0")  # fmt: skip
        components: int = setting(64, help="components of TF-IDF")
        size: int = setting(0, help="pixels per side of the image; 0 for the default of its encoder")

    @classmethod
    def build(cls, training: Callable[[], Any], **settings: Any) -> Self:
        options = asdict(cls.Settings(**settings))
        base, components, size = (options.pop(name) for name in ("base", "components", "size"))
        rows = training()
        if isinstance(rows.companion, Tensor):
            base = "cnn" if base == AUTO else base
            other = cls.family("image", base).build(training, **({"size": size} if size else {}))
        else:
            base = TFIDF if base == AUTO else base
            other = _text_encoder(rows, base, components)
        return cls(Tabular.build(lambda: rows, **options), other, base=base)

    @staticmethod
    def family(kind: str, base: str) -> type[Backbone]:
        if kind == "text":
            return Tfidf if base == TFIDF else TextEncoder
        check_known("encoder of images next to a table", base, IMAGES)
        return IMAGES[base]


class MixedColumns(TwoParts):
    """The encoder `columns` next to principal components of TF-IDF or of pixels, for linear models and trees."""

    columns = Columns

    @classmethod
    def build(cls, training: Callable[[], Any]) -> Self:
        rows = training()
        if isinstance(rows.companion, Tensor):
            other: Backbone = PixelComponents.build(lambda: rows.companion)
        else:
            other = _text_encoder(rows, TFIDF, COMPONENTS)
        return cls(Columns.build(lambda: rows), other)

    @staticmethod
    def family(kind: str, base: str) -> type[Backbone]:
        return Tfidf if kind == "text" else PixelComponents


class PixelComponents(ImageBackbone):
    """Principal components of the pixels of small images, without trained parameters."""

    mean: Tensor  # (3 s s,)
    directions: Tensor  # (3 s s, k)

    def __init__(self, *, size: int = 32, components: int = COMPONENTS) -> None:
        super().__init__()
        self.width, self.size = components, check_side(size)
        self.settings = {"size": size, "components": components}
        self.register_buffer("mean", torch.zeros(3 * SIDE**2))
        self.register_buffer("directions", torch.zeros(3 * SIDE**2, components))

    @classmethod
    @torch.no_grad()
    def build(cls, training: Callable[[], Any], *, size: int = 32) -> Self:
        images, network = training(), cls(size=size)
        every = max(1, -(-len(images) // ROWS))
        pixels = network._pixels(images[::every])
        network.mean.copy_(pixels.mean(0))
        values, directions = torch.linalg.svd(pixels - network.mean, full_matrices=False)[1:]
        # the first component has unit variance, so that columns and components have comparable scales
        scale = values[0].clamp(min=1e-6) / len(pixels) ** 0.5
        network.directions[:, : len(values[:COMPONENTS])] = directions[:COMPONENTS].T / scale
        return network

    def _pixels(self, x: Tensor) -> Tensor:
        """(b, 3, s, s) images to (b, 3 SIDE SIDE) pixels in [0, 1]."""
        return F.adaptive_avg_pool2d(unit_range(x), SIDE).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return (self._pixels(x) - self.mean) @ self.directions  # (b, k)


def _text_encoder(rows: TableRows, base: str, components: int) -> Backbone:
    """Build the encoder of the texts next to the rows."""

    def texts() -> Any:
        return rows.companion

    return with_components(texts, dimension=components) if base == TFIDF else TextEncoder.named(texts, base)
