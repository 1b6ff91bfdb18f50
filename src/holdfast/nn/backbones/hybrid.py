"""A text encoder with TF-IDF next to it: pretrained features and features of n-grams, concatenated.

Shapes: n texts, p n-grams, d width.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.sparse import linalg
from torch import Tensor, nn

from holdfast.core.inputs import Joint
from holdfast.core.settings import checked_settings, setting
from holdfast.core.store import JointStore
from holdfast.nn.backbones.base import Backbone, LearnedPreparation, fingerprint
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.backbones.tfidf import Tfidf

MAX_ROWS = 2_000  # training texts that the components are computed from
TINY = 1e-9
FEW = 5  # texts per component up to which all eigenvectors are computed
TOLERANCE = 1e-6  # relative error of eigenvalues
TEXT_SETTINGS = ("pooling", "length")
SPARSE: Any = linalg  # without types, which SciPy does not state


class TwoEncoders(Backbone, LearnedPreparation):
    """Base of encoders with two parts, which are modules: the features of the first, then those of the second."""

    names: tuple[str, str]  # of the modules, folders and settings

    def _initialise(self, names: tuple[str, str], *encoders: Backbone, **settings: Any) -> None:
        self.names = names
        for name, encoder in zip(names, encoders, strict=True):
            self.add_module(name, encoder)
        self.width = sum(encoder.width for encoder in encoders)
        self.settings = {**{name: encoder.settings for name, encoder in self.encoders().items()}, **settings}

    def encoders(self) -> dict[str, Any]:
        return {name: self.get_submodule(name) for name in self.names}

    def prepare(self, examples: Any) -> JointStore:
        return JointStore(*(encoder.prepare(examples) for encoder in self.encoders().values()))

    def forward(self, x: Joint) -> Tensor:
        first, second = self.encoders().values()
        return torch.cat([first(x.first), second(x.second).float()], dim=1)  # (b, d)

    def save(self, folder: Path) -> dict[str, Any]:
        for name, encoder in self.encoders().items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            encoder.save(folder / name)
        return self.settings

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self: ...

    def preparation_key(self) -> str:
        return fingerprint(*(encoder.preparation_key() for encoder in self.encoders().values()))


class Hybrid(TwoEncoders):
    """Features of a pretrained text encoder, followed by the principal components of TF-IDF (Deerwester et al., 1990).

    The components are those of the training texts, scaled to a mean variance of 1; a tuned encoder trains them further.
    """

    takes = "text"

    @checked_settings
    class Settings(Tfidf.Settings):
        base: str = setting("minilm", help="text encoder: minilm, mpnet, a folder, or a name on the hub")
        pooling: str | None = setting(None, help="pooling of the text encoder")
        length: int | None = setting(None, help="tokens of the text encoder")
        dimension: int = setting(128, least=1, help="components")

    text: TextEncoder
    bag: Tfidf

    def __init__(self, text: TextEncoder, bag: Tfidf) -> None:
        super().__init__()
        self._initialise(("text", "bag"), text, bag)

    @classmethod
    def build(cls, training: Callable[[], Any], **settings: Any) -> Self:
        options = asdict(cls.Settings(**settings))
        base, text = options.pop("base"), {name: options.pop(name) for name in TEXT_SETTINGS}
        return cls(TextEncoder.named(training, base, **text), with_components(training, **options))

    def concatenated(self) -> tuple[Backbone, ...]:
        return self.text, self.bag

    def stack(self) -> nn.ModuleList:
        return self.text.stack()

    def class_token(self) -> list[nn.Parameter]:
        return self.text.class_token()

    def blocks(self) -> list[nn.Module]:
        *others, last = self.text.blocks()
        return [*others, nn.ModuleList([last, self.bag])]

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        text = TextEncoder.load(folder / "text", settings["text"])
        return cls(text, Tfidf.load(folder / "bag", settings["bag"]))


@torch.no_grad()
def with_components(training: Callable[[], Any], **settings: Any) -> Tfidf:
    """Build an encoder whose table (p, d) has the right singular vectors of the training texts' values (n, p).

    Missing ones are zero.
    """
    bag, examples = Tfidf.build(training, **settings), training()
    rows = np.unique(np.linspace(0, len(examples) - 1, min(MAX_ROWS, len(examples))).astype(int))
    store = bag.prepare([examples[i] for i in rows])
    values = bag.matrix(store.take(torch.arange(len(rows)))).astype(np.float64)
    bag.table.zero_()
    sizes, left = largest_axes(values, bag.width)
    count = int((sizes > TINY * sizes[0]).sum())
    vectors = values.T @ (left[:, :count] / np.sqrt(sizes[:count]))  # (p, count)
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(count)])  # signs of singular vectors are free
    variance = float((values @ vectors).var(axis=0).mean())
    bag.table[:, :count] = torch.from_numpy(vectors * signs / np.sqrt(max(variance, TINY))).to(bag.table)
    return bag


def largest_axes(values: Any, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues of X X^T for sparse X (n, p), at most `width`, and their eigenvectors (n, k).

    A few of many are found by multiplications with X, without the n x n matrix.
    """
    n = values.shape[0]
    if n <= FEW * width:
        squares, axes = eigh((values @ values.T).toarray(), subset_by_index=(max(0, n - width), n - 1))
    else:
        gram = SPARSE.LinearOperator((n, n), matvec=lambda x: values @ (values.T @ x), dtype=np.float64)
        squares, axes = SPARSE.eigsh(gram, k=width, v0=np.ones(n), tol=TOLERANCE)
    return squares[::-1], axes[:, ::-1]
