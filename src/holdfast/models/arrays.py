"""Dataclasses of arrays as files of a model folder: every field by its name, without those that are None."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


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


def from_tree(kind: type[T], tree: Mapping[str, Any], **parts: Any) -> T:
    """Return a dataclass from the fields of `to_tree` and its `parts`; raise TypeError if a needed one is missing."""
    stored = {each.name: tree[each.name] for each in fields(kind) if each.name in tree}  # pyright: ignore[reportArgumentType]
    arrays = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in stored.items()}
    return kind(**{**arrays, **parts})
