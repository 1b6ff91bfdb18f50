"""Encoders of a table with a text per row: features of the columns, followed by features of the text.

Shapes: b batch, d width.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.inputs import Inputs, Joint
from holdfast.core.settings import setting
from holdfast.core.store import JointStore
from holdfast.core.table import TableRows
from holdfast.nn.backbones.base import Backbone, LearnedPreparation, fingerprint
from holdfast.nn.backbones.hybrid import set_components
from holdfast.nn.backbones.tabular import Columns, TableBackbone, Tabular
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.backbones.tfidf import Tfidf

TFIDF = "tfidf"
COMPONENTS = 32


class TwoParts(Backbone, LearnedPreparation):
    """Base of the encoders of tables with a text."""

    takes: ClassVar[str] = "mixed"
    table: TableBackbone
    text: Backbone

    def _initialise(self, table: TableBackbone, text: Backbone, settings: dict[str, Any]) -> None:
        self.table, self.text = table, text
        self.width, self.schema = table.width + text.width, table.schema
        self.settings = {"table": table.settings, "text": text.settings, **settings}

    def prepare(self, examples: Any) -> JointStore:
        assert isinstance(examples, TableRows)
        return JointStore(self.table.prepare(examples), self.text.prepare(examples.companion))

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Joint)
        return torch.cat([self.table(x.first), self.text(x.second).float()], dim=1)  # (b, d)

    def blocks(self) -> list[nn.Module]:
        table, text = self.table.blocks(), self.text.blocks()
        return [*table[:-1], *text[:-1], nn.ModuleList([*table[-1:], *text[-1:]])]

    def stack(self) -> nn.ModuleList:
        return self.text.stack() if isinstance(self.text, TextEncoder) else self.table.stack()

    def save(self, folder: Path) -> dict[str, Any]:
        for name, encoder in (("table", self.table), ("text", self.text)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            encoder.save(folder / name)
        return self.settings

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self: ...

    def preparation_key(self) -> str:
        return fingerprint(f"{self.table.preparation_key()} {self.text.preparation_key()}")


class Mixed(TwoParts):
    """The encoder `tabular` next to a text encoder; both are trained, a pretrained one only on request.

    With the default base, the features of the text are the principal components of TF-IDF, which training changes.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        base: str = setting(TFIDF, help="encoder of the text: tfidf, minilm, mpnet, a folder, or a name on the hub")
        form: str = setting("mlp", help="network of the columns: mlp (residual MLP) or transformer")
        dimension: int = setting(128, help="width of the features of the columns")
        depth: int = setting(2, help="residual blocks, or layers of the transformer")
        dropout: float = setting(0.2, help="dropout inside the blocks")
        components: int = setting(64, help="components of TF-IDF")

    def __init__(self, table: Tabular, text: Backbone, base: str) -> None:
        super().__init__()
        self._initialise(table, text, {"base": base})

    @classmethod
    def build(cls, training: Callable[[], Any], **settings: Any) -> Self:
        options = asdict(cls.Settings(**settings))
        base, components = options.pop("base"), options.pop("components")
        text = _text_encoder(training, base, components)
        return cls(Tabular.build(training, **options), text, base)

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        family = Tfidf if settings["base"] == TFIDF else TextEncoder
        text = family.load(folder / "text", settings["text"])
        return cls(Tabular.load(folder / "table", settings["table"]), text, settings["base"])


class MixedColumns(TwoParts):
    """The encoder `columns` next to the principal components of TF-IDF, for linear models and trees."""

    def __init__(self, table: Columns, text: Tfidf) -> None:
        super().__init__()
        self._initialise(table, text, {})

    @classmethod
    def build(cls, training: Callable[[], Any]) -> Self:
        text = _text_encoder(training, TFIDF, COMPONENTS)
        assert isinstance(text, Tfidf)
        return cls(Columns.build(training), text)

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        text = Tfidf.load(folder / "text", settings["text"])
        return cls(Columns.load(folder / "table", settings["table"]), text)


def _text_encoder(training: Callable[[], Any], base: str, components: int) -> Backbone:
    """Build the encoder of the texts next to the rows."""

    def texts() -> Any:
        return training().companion

    if base == TFIDF:
        bag = Tfidf.build(texts, dimension=components)
        set_components(bag, texts())
        return bag
    packaged = {"minilm": TextEncoder.minilm, "mpnet": TextEncoder.mpnet}
    return (packaged.get(base) or partial(TextEncoder.build, name=base))(texts)
