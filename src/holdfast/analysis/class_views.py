"""Training rows by class as a heterogeneous memory sees them, and its slots: what the analyses of HMA look at.

b rows, c classes, d width without the label's part, h heads, m slots of all classes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.core.seeds import derive
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.model import Model

CLASSES, ROWS = 10, 10  # classes in the batch whose attention is looked at, the first ones, and rows of each
COMPARED, CLOUD = 3, 60  # classes whose rows are laid beside their slots, and rows of each


@dataclass(frozen=True, eq=False)
class ClassView:
    """A batch sorted by class, more rows of a few classes, and the slots; labels are numbers of classes."""

    classes: tuple[str, ...]  # names of all
    labels: np.ndarray  # (b,) sorted
    first: np.ndarray | None  # (b, 4) the queue's read: how much is on itself, others, queue and slots
    second: np.ndarray | None  # (b, 4) the same of the read of batch and slots
    attention: np.ndarray | None  # (b, b + m) the second read, the mean over heads
    recalled: np.ndarray  # (n, d) other rows after the queue, before batch and slots
    recalled_labels: np.ndarray  # (n,)
    slots: np.ndarray | None  # (m, d)
    slot_labels: np.ndarray | None  # (m,)
    likeness: np.ndarray | None  # (c,) the mean cosine between two slots of a class


@torch.no_grad()
def view_classes(
    model: Model, examples: Examples, parts: Sequence[Part], *, seed: int, classes: Sequence[str] = ()
) -> ClassView | None:
    """What a heterogeneous neck makes of rows it was trained on, batch by batch as published; None for other necks.

    Labels are looked at, so the rows must be those of the training domains.
    """
    neck = model.neck
    if not isinstance(neck, HeterogeneousMemory) or not parts:
        return None
    rows = np.concatenate([part.rows for part in parts])
    y = examples.targets(torch.from_numpy(rows)).cpu().numpy()
    there = np.unique(y)
    chance = np.random.default_rng(derive(seed, "classes"))
    order = chance.permutation(len(rows))
    batch = _first(rows[order], y[order], there[:CLASSES], ROWS)
    cloud = _first(rows[order], y[order], there[:COMPARED], CLOUD)
    before, neck.context = neck.context, "batch"
    try:
        heard, other = (_heard(model, examples, chosen) for chosen in (batch[0], cloud[0]))
    finally:
        neck.context = before
    weights, slots, recalled = heard.get("across"), neck.slots, other["recalled"]
    assert recalled is not None
    names = tuple(classes) or tuple(map(str, range(int(there.max()) + 1)))
    return ClassView(
        classes=names,
        labels=batch[1],
        first=heard["real/mass"],
        second=heard["across/mass"],
        attention=None if weights is None else weights.mean(axis=1),
        recalled=recalled[:, : neck.inputs],
        recalled_labels=cloud[1],
        slots=None if slots is None else _plain(slots.values),
        slot_labels=None if slots is None else slots.labels.cpu().numpy(),
        likeness=None if slots is None else _plain(slots.slot_similarity()),
    )


def _first(rows: np.ndarray, y: np.ndarray, classes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The first rows of each of these classes, class after class, and their labels."""
    chosen = [rows[y == each][:most] for each in classes]
    return np.concatenate(chosen), np.repeat(classes, [len(each) for each in chosen])


def _heard(model: Model, examples: Examples, rows: np.ndarray) -> dict[str, np.ndarray | None]:
    """What the neck tells of these rows as one batch."""
    with tape() as side:
        model.apply_neck(model.encode(examples.inputs(torch.from_numpy(rows))))
    names = ("recalled", "real/mass", "across", "across/mass")
    heard = {name: side[f"heterogeneous/{name}"] for name in names}
    return {name: _plain(told[-1]) if told else None for name, told in heard.items()}


def _plain(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()
