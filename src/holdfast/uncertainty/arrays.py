"""Arrays of a model: its predictions, hashes of examples, and dataclasses of arrays as files of a model folder."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.data.raw import Raw

T = TypeVar("T")


class Predicted(NamedTuple):
    """Predictions (n, k) of a model and of its first network, whose outputs are `outputs`.

    They are probabilities of classes or labels, or numbers in the units of the target (n, 1) with the `ends` (n, 2) of
    their intervals. If known, there are the percentiles (n,); `features` (n, w) are those of the encoder.
    """

    values: np.ndarray
    first: np.ndarray
    outputs: np.ndarray
    foreign: np.ndarray | None
    undecided: np.ndarray | None
    features: np.ndarray
    ends: np.ndarray | None = None


def example_ids(raw: Raw, rows: Sequence[int] | None = None) -> list[str]:
    """Return a hash of the content of each row."""
    chosen = range(len(raw)) if rows is None else rows
    return [hashlib.sha256(str(raw.digest(np.asarray([row]))).encode()).hexdigest()[:20] for row in chosen]


class StoredArrays:
    """Base of the dataclasses that a model folder holds as one file each: arrays, numbers, names and dataclasses."""

    inline: ClassVar[str] = ""  # field whose own fields are stored next to those of this class

    def save(self, path: Path) -> Path:
        """Write the file atomically."""
        return save_tree(path, _to_tree(self, self.inline))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file; raise TypeError or KeyError if it is not valid."""
        return _from_tree(cls, load_tree(path), cls.inline)


def _to_tree(value: Any, inline: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass that are not None; those of the field `inline` join them."""
    tree: dict[str, Any] = {}
    for name in (each.name for each in fields(value)):
        content = getattr(value, name)
        if isinstance(content, np.ndarray):
            tree[name] = torch.from_numpy(np.ascontiguousarray(content))
        elif is_dataclass(content):
            tree |= _to_tree(content) if name == inline else {name: _to_tree(content)}
        elif content is not None:
            tree[name] = content
    return tree


def _from_tree(kind: type[T], tree: Mapping[str, Any], inline: str = "") -> T:
    """Return the dataclass whose fields are in a tree; raise TypeError if a needed one is missing."""
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        nested: Any = next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)
        if nested is not None and name == inline:
            values |= {name: _from_tree(nested, tree)} if any(each.name in tree for each in fields(nested)) else {}
        elif name in tree:
            content = tree[name] if nested is None else _from_tree(nested, tree[name])
            content = content.numpy() if isinstance(content, Tensor) else content
            values[name] = tuple(content) if isinstance(content, list) else content
    return kind(**values)
