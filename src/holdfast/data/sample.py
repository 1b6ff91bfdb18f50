"""A small sample of a data set, saved in one file inside a model folder."""

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
from holdfast.core.table import Column, TableRows
from holdfast.data.dataset import Dataset, join
from holdfast.data.raw import GraphList, Pixels, Raw, Table, Texts, Vectors
from holdfast.data.splits import TEST, TRAIN, Part


@dataclass(frozen=True)
class Sample:
    """At most `limit` training and `limit` held-out examples per domain, with splits train and test."""

    dataset: Dataset
    limit: int

    def merge(self, other: Sample) -> Sample:
        return Sample(replace(join([self.dataset, other.dataset]), name=self.dataset.name), self.limit)


def check_sample(dataset: Dataset, limit: int) -> None:
    """Raise before training if no sample of this data set can be saved."""
    if limit < 0:
        raise BadInput(f"--keep-sample must be a number of examples of at least 0, got {limit}")
    first = dataset.raw.take(np.arange(1))[0] if limit and len(dataset) and dataset.raw.kind == "text" else None
    if isinstance(first, Sentence | Question):
        raise BadInput("--keep-sample does not support tags or answers: remove --keep-sample")


def draw_sample(dataset: Dataset, train: Sequence[Part], held: Sequence[Part], *, limit: int, seed: int) -> Sample:
    """Draw at most `limit` examples per part with the seed."""
    rows, split = [], []
    for mark, marked in ((TRAIN, train), (TEST, held)):
        for part in marked:
            rng, chosen = np.random.default_rng(derive(seed, "kept", part.domain, mark)), part.rows
            if len(chosen) > limit:
                chosen = np.sort(rng.choice(chosen, limit, replace=False))
            rows.append(chosen)
            split.append(np.full(len(chosen), mark, dtype=np.int64))
    subset = dataset.subset(np.concatenate(rows))
    return Sample(replace(subset, split=np.concatenate(split), ids=None, time=None, notes=()), limit)


def save_sample(path: Path, sample: Sample, *, size: int | None) -> Path:
    """Write a sample to a file; images are saved with `size` pixels per side."""
    dataset = sample.dataset
    assert dataset.split is not None
    codes = {"y": dataset.y, "domain": dataset.domain, "split": dataset.split}
    if dataset.targets is not None:
        codes["targets"] = dataset.targets
    examples = dataset.raw.take(np.arange(len(dataset)), size=size)
    if dataset.raw.kind == "graph":
        examples = [{"nodes": graph.nodes, "edges": graph.edges, "weights": graph.weights} for graph in examples]
    if isinstance(examples, TableRows):
        schema = [column.to_json() for column in examples.schema]
        arrays = {name: getattr(examples, name) for name in ("numbers", "codes", "companion")}
        examples = {"schema": schema, **arrays}
    tree = {
        "most": sample.limit, "name": dataset.name, "kind": dataset.raw.kind,
        "classes": list(dataset.classes), "domains": list(dataset.domains), "task": dataset.task,
        **{name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in codes.items()},
        "examples": examples,
    }  # fmt: skip
    return save_tree(path, tree)


def load_sample(path: Path) -> Sample:
    tree = load_tree(path)
    y, domain, split = (tree[name].numpy() for name in ("y", "domain", "split"))
    raw = _from_tree(tree["kind"], tree["examples"])
    targets = tree["targets"].numpy() if "targets" in tree else None
    dataset = Dataset(
        tree["name"], raw, y, tuple(tree["classes"]), domain, tuple(tree["domains"]), split, targets=targets,
        task=tree.get("task", ""),
    )  # fmt: skip
    return Sample(dataset, tree["most"])


def _from_tree(kind: str, examples: Any) -> Raw:
    if kind in ("table", "mixed"):
        schema = tuple(map(Column.from_json, examples["schema"]))
        return Table.of(TableRows(schema, examples["numbers"], examples["codes"], examples["companion"]))
    if kind in ("vector", "image"):
        return Vectors(examples.numpy()) if kind == "vector" else Pixels(examples.numpy())
    return Texts.of(examples) if kind == "text" else GraphList([Graphs.single(**fields) for fields in examples])
