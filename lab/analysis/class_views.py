"""Collect what a network reads from a heterogeneous memory, by class.

Shapes: b batch, n rows, d width without the label's part, h heads, c classes, m slots of all classes.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.analysis import random_generator
from holdfast.analysis.views import Subject
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.memory.queue import SyntheticMemory
from holdfast.nn.model import Model

CLASSES, ROWS = 10, 10  # classes in the batch whose attention is recorded (the first ones), and rows per class
CLOUD_CLASSES, CLOUD_ROWS = 3, 60  # classes whose rows are projected together with their slots, and rows per class


@dataclass(frozen=True, eq=False)
class ClassView:
    """A batch sorted by class, further rows of a few classes, and the slots; labels are class indices."""

    classes: tuple[str, ...]  # names of all classes
    labels: np.ndarray  # (b,) sorted
    first: np.ndarray | None  # (b, 4) read of the queue: attention to itself, other rows, queue, slots
    second: np.ndarray | None  # (b, 4) read of batch and slots, likewise
    attention: np.ndarray | None  # (b, b + m) of the second read, mean over heads
    recalled: np.ndarray  # (n, d) further rows after the read of the queue, before the second read
    recalled_labels: np.ndarray  # (n,)
    slots: np.ndarray | None  # (m, d)
    slot_labels: np.ndarray | None  # (m,)
    similarity: np.ndarray | None  # (c,) mean cosine similarity between two slots of a class


def slot_similarity(memory: SyntheticMemory) -> Tensor:
    """Return the mean cosine similarity (c,) between two slots of a class; 1 if all are equal, zeros included."""
    count = int(memory.labels[-1]) + 1
    values = memory.values.detach().view(count, -1, memory.values.shape[1])  # (c, m, d)
    unit, slots = F.normalize(values, dim=-1), values.shape[1]
    pairs = unit.sum(1).square().sum(-1) - unit.square().sum((1, 2))  # every pair counted twice
    equal = (values == values[:, :1]).flatten(1).all(dim=1)
    return torch.where(equal, 1.0, pairs / max(1, slots * (slots - 1)))


def view_classes(subject: Subject) -> ClassView | None:
    """Collect reads of a heterogeneous neck with the batch as context, as published; None for other necks.

    It uses the labels of the sources, which are training rows.
    """
    model, examples, neck = subject.model, subject.examples, subject.model.neck
    if not isinstance(neck, HeterogeneousMemory) or not subject.sources:
        return None
    classes = () if subject.dataset is None else subject.dataset.classes
    rows = np.concatenate([part.rows for part in subject.sources])
    y = examples.targets(torch.from_numpy(rows)).cpu().numpy()
    present = np.unique(y)
    order = random_generator(subject.seed, "classes").permutation(len(rows))
    batch, batch_labels = _rows_by_class(rows[order], y[order], present[:CLASSES], ROWS)
    cloud, cloud_labels = _rows_by_class(rows[order], y[order], present[:CLOUD_CLASSES], CLOUD_ROWS)
    context, neck.context = neck.context, "batch"
    try:
        reads, further = (_neck_reads(model, examples, chosen) for chosen in (batch, cloud))
    finally:
        neck.context = context
    weights, slots, recalled = reads.get("across"), neck.slots, further["recalled"]
    assert recalled is not None
    return ClassView(
        classes=tuple(classes) or tuple(map(str, range(int(present.max()) + 1))),
        labels=batch_labels,
        first=reads["real/mass"],
        second=reads["across/mass"],
        attention=None if weights is None else weights.mean(axis=1),
        recalled=recalled[:, : neck.inputs],
        recalled_labels=cloud_labels,
        slots=None if slots is None else _to_numpy(slots.values),
        slot_labels=None if slots is None else slots.labels.cpu().numpy(),
        similarity=None if slots is None else _to_numpy(slot_similarity(slots)),
    )


def _rows_by_class(rows: np.ndarray, y: np.ndarray, classes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `count` rows of each class, sorted by class, and their labels."""
    chosen = [rows[y == label][:count] for label in classes]
    return np.concatenate(chosen), np.repeat(classes, [len(of_class) for of_class in chosen])


def _neck_reads(model: Model, examples: Examples, rows: np.ndarray) -> dict[str, np.ndarray | None]:
    """Return what the neck records for these rows as one batch."""
    with tape() as recorded:
        model.apply_neck(model.encode(examples.inputs(torch.from_numpy(rows))))
    names = ("recalled", "real/mass", "across", "across/mass")
    reads = {name: recorded[f"heterogeneous/{name}"] for name in names}
    return {name: _to_numpy(values[-1]) if values else None for name, values in reads.items()}


def _to_numpy(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()
