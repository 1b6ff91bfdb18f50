"""A small sample of a data set kept in one file, whatever its kind: texts, vectors, images, graphs.

n examples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Question, Sentence
from holdfast.core.seeds import derive
from holdfast.data.dataset import Dataset, join
from holdfast.data.raw import GraphList, Pixels, Raw, Texts, Vectors
from holdfast.data.splits import TEST, TRAIN, Part


@dataclass(frozen=True)
class Kept:
    """At most `most` training and `most` held-out examples of each domain, marked train and test."""

    dataset: Dataset
    most: int

    def joined(self, other: Kept) -> Kept:
        return Kept(replace(join([self.dataset, other.dataset]), name=self.dataset.name), self.most)


def check_sample(dataset: Dataset, most: int) -> None:
    """One sentence, before anything is trained, where no such sample can be kept."""
    if most < 0:
        raise BadInput(f"--keep-sample takes a number of examples, 0 or more, not {most}")
    if most and isinstance(_first(dataset.raw), Sentence | Question):
        raise BadInput("--keep-sample keeps texts, vectors, images and graphs, and no tags or answers: leave it out")


def sample(dataset: Dataset, train: Sequence[Part], held: Sequence[Part], *, most: int, seed: int) -> Kept:
    """Draw the examples to keep by seed."""
    rows, split = [], []
    for mark, parts in ((TRAIN, train), (TEST, held)):
        for part in parts:
            chance = np.random.default_rng(derive(seed, "kept", part.domain, mark))
            chosen = part.rows
            if len(chosen) > most:
                chosen = np.sort(chance.choice(chosen, most, replace=False))
            rows.append(chosen)
            split.append(np.full(len(chosen), mark, dtype=np.int64))
    made = dataset.subset(np.concatenate(rows))
    plain = replace(made, split=np.concatenate(split), ids=None, time=None, notes=())
    return Kept(plain, most)


def save_sample(path: Path, kept: Kept, *, size: int | None) -> Path:
    """Write it; images are kept at `size` pixels a side."""
    dataset, every = kept.dataset, np.arange(len(kept.dataset))
    assert dataset.split is not None
    codes = {"y": dataset.y, "domain": dataset.domain, "split": dataset.split}
    tree = {
        "most": kept.most,
        "name": dataset.name,
        "kind": dataset.raw.kind,
        "classes": list(dataset.classes),
        "domains": list(dataset.domains),
        **{name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in codes.items()},
        "examples": _plain(dataset.raw.take(every, size=size)),
    }
    return save_tree(path, tree)


def load_sample(path: Path) -> Kept:
    """Read what `save_sample` wrote."""
    tree = load_tree(path)
    y, domain, split = (tree[name].numpy() for name in ("y", "domain", "split"))
    raw = _raw(tree["kind"], tree["examples"])
    made = Dataset(tree["name"], raw, y, tuple(tree["classes"]), domain, tuple(tree["domains"]), split)
    return Kept(made, tree["most"])


def _first(raw: Raw) -> Any:
    return raw.take(np.zeros(1, dtype=np.int64))[0] if len(raw) and raw.kind == "text" else None


def _plain(examples: Any) -> Any:
    """What a file of tensors and texts can hold."""
    if isinstance(examples, torch.Tensor):
        return examples
    if examples and isinstance(examples[0], Graphs):
        return [{"nodes": g.nodes, "edges": g.edges, "weights": g.weights} for g in examples]
    return list(examples)


def _raw(kind: str, examples: Any) -> Raw:
    match kind:
        case "text":
            return Texts.of(examples)
        case "vector":
            return Vectors(examples.numpy())
        case "image":
            return Pixels(examples.numpy())
        case _:
            return GraphList([_graph(**each) for each in examples])


def _graph(nodes: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor | None) -> Graphs:
    return Graphs(nodes, edges, torch.zeros(len(nodes), dtype=torch.long), 1, weights)
