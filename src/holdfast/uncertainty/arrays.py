"""Arrays of a model: its predictions, hashes of examples, and dataclasses of arrays as files of a model folder."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from holdfast.data.raw import Raw

T = TypeVar("T")
OTHER_KIND = {
    "classes": "has no class probabilities: use a classifier",
    "numbers": "does not predict numbers: use a model of the task regress",
    "labels": "does not predict sets of labels: use the task multilabel",
}


class Predicted(NamedTuple):
    """Predictions (n, k) of a model and of its first network, whose outputs are `outputs`.

    They are probabilities of classes or labels, or numbers in the units of the target (n, 1) with the `ends` (n, 2) of
    their intervals. If known, there are the percentiles (n,) and the encoder features (n, w).
    """

    values: np.ndarray
    first: np.ndarray
    outputs: np.ndarray
    foreign: np.ndarray | None
    undecided: np.ndarray | None
    features: np.ndarray | None
    ends: np.ndarray | None = None

    @property
    def probabilities(self) -> np.ndarray:
        return self.values


class Outputs(NamedTuple):
    """Outputs of the network (n, k), and if known the percentiles (n,) and encoder features (n, w)."""

    values: np.ndarray
    foreign: np.ndarray | None
    undecided: np.ndarray | None
    features: np.ndarray | None = None


def example_ids(raw: Raw, rows: Sequence[int] | None = None) -> list[str]:
    """Return a hash of the content of each row."""
    chosen = range(len(raw)) if rows is None else rows
    return [hashlib.sha256(str(raw.digest(np.asarray([row]))).encode()).hexdigest()[:20] for row in chosen]


def to_tree(value: Any, *, inline: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass for `save_tree`; those of the dataclass in the field `inline` join them."""
    tree: dict[str, Any] = {}
    for name in (each.name for each in fields(value)):
        content = getattr(value, name)
        if isinstance(content, np.ndarray):
            tree[name] = torch.from_numpy(np.ascontiguousarray(content))
        elif is_dataclass(content):
            tree |= to_tree(content) if name == inline else {name: to_tree(content)}
        elif content is not None:
            tree[name] = content
    return tree


def from_tree(kind: type[T], tree: Mapping[str, Any], **nested: Any) -> T:
    """Return a dataclass from the fields of `to_tree` and `nested`; raise TypeError if a needed one is missing."""
    stored = {each.name: tree[each.name] for each in fields(kind) if each.name in tree}  # pyright: ignore[reportArgumentType]
    arrays = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in stored.items()}
    return kind(**{**arrays, **nested})
