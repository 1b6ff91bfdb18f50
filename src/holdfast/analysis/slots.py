"""The learned slots of classes: where they lie beside real examples, what attends to them, how alike they are.

b rows, c classes, d width, m slots of all classes
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.analysis.class_views import ClassView
from holdfast.analysis.projection import flatten
from holdfast.analysis.views import Views

SLOTS = 16  # slots of a class that an attention map shows; its numbers are over all
LEAST = 6  # points that t-SNE needs


def slot_map(views: Views, *, seed: int, how: str = "pca") -> dict[str, Any] | None:
    """The slots in the plane, alone and with training rows of some classes; None where there are no slots.

    The label's part is left out of both: it would be the same for all slots of a class.
    """
    seen = views.classes
    if seen is None or seen.slots is None or seen.slot_labels is None:
        return None
    shown = np.unique(seen.recalled_labels)
    near = np.isin(seen.slot_labels, shown)
    points = np.concatenate([seen.slots[near], seen.recalled])
    labels = np.concatenate([seen.slot_labels[near], seen.recalled_labels])
    kind = np.repeat([0, 1], [int(near.sum()), len(seen.recalled)])
    own, chance = nearest(seen.slots, seen.slot_labels)
    return {
        "how": how,
        "targets": [view.domain for view in views.targets],
        "nearest": round(own, 4),
        "chance": round(chance, 4),
        "alone": _groups(seen, seen.slots, seen.slot_labels, np.zeros(len(seen.slots)), seed=seed, how=how),
        "beside": _groups(seen, points, labels, kind, seed=seed, how=how),
    }


def nearest(slots: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The share of slots (m, d) whose nearest other one is of their class, and what chance would give."""
    if len(slots) < 2:
        return 1.0, 1.0
    apart = np.linalg.norm(slots[:, None].astype(np.float64) - slots[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    best = apart.min(axis=1, keepdims=True)
    ties = apart <= best * (1 + 1e-9)  # equally near slots share the point
    own = labels[:, None] == labels[None]
    same = own.sum(axis=1) - 1
    return float(((ties & own).sum(axis=1) / ties.sum(axis=1)).mean()), float((same / (len(slots) - 1)).mean())


def slot_attention(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Who looks at whom in a batch sorted by class; None where examples of a batch do not see each other or slots.

    The map is in ten-thousandths, rows and columns by class: the batch, then the slots of the classes that are shown.
    Beside the shares of attention of every class stands what even attention would give. Nothing is left to chance.
    """
    seen = views.classes
    if seen is None or seen.attention is None or seen.second is None:
        return None
    b = len(seen.labels)
    labels = np.empty(0, dtype=np.int64) if seen.slot_labels is None else seen.slot_labels
    assert seen.attention.shape[1] == b + len(labels), "not a batch that sees itself and all slots"
    there = np.unique(seen.labels)
    shown = [np.flatnonzero(labels == each)[:SLOTS] for each in there]
    columns = np.concatenate([np.arange(b), *(b + each for each in shown)])
    kinds = shares(seen.attention, seen.labels, labels)  # (b, 5)
    even = shares(np.full_like(seen.attention, 1 / seen.attention.shape[1]), seen.labels, labels)
    masses = {"real": seen.first, "across": seen.second}
    return {
        "targets": [view.domain for view in views.targets],
        "classes": [seen.classes[each] for each in there],
        "rows": [int((seen.labels == each).sum()) for each in there],
        "slots": [len(each) for each in shown],
        "map": np.rint(1e4 * seen.attention[:, columns]).astype(int).tolist(),
        "mass": {name: None if each is None else _rounded(each.mean(axis=0)) for name, each in masses.items()},
        "shares": {seen.classes[each]: _rounded(kinds[seen.labels == each].mean(axis=0)) for each in there},
        "mean": _rounded(kinds.mean(axis=0)),
        "even": _rounded(even.mean(axis=0)),
    }


def shares(attention: np.ndarray, labels: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """(b, 5) of attention (b, b + m): on itself, on others of its class and not, on slots of its class and not."""
    b = len(labels)
    batch, learned = attention[:, :b], attention[:, b:]
    own, mine = labels[:, None] == labels[None], labels[:, None] == slots[None]
    itself = batch.diagonal()
    alike = (batch * own).sum(axis=1) - itself
    near = (learned * mine).sum(axis=1)
    rest = batch.sum(axis=1) - itself - alike
    return np.stack([itself, alike, rest, near, learned.sum(axis=1) - near], axis=1)


def slot_diversity(views: Views, *, seed: int) -> dict[str, Any] | None:
    """The mean cosine between two slots of a class, by class: 1 where they are one slot; None with fewer than two.

    Slots that were drawn and never learned scatter around 0 by `scatter`, a pair at a time. Nothing is left to chance.
    """
    seen = views.classes
    if seen is None or seen.slots is None or seen.likeness is None or len(seen.slots) <= len(seen.likeness):
        return None
    return {
        "targets": [view.domain for view in views.targets],
        "slots": len(seen.slots) // len(seen.likeness),
        "mean": round(float(seen.likeness.mean()), 4),
        "scatter": round(seen.slots.shape[1] ** -0.5, 4),
        "classes": {seen.classes[i]: round(float(value), 4) for i, value in enumerate(seen.likeness)},
    }


def _groups(
    seen: ClassView, points: np.ndarray, labels: np.ndarray, kind: np.ndarray, *, seed: int, how: str
) -> dict[str, Any]:
    """Points in the plane by class, slots and rows apart."""
    way = how if len(points) >= LEAST and np.ptp(points, axis=0).any() else "pca"
    plane, variance = flatten(points.astype(np.float64), seed=seed, how=way)
    found = []
    for each in np.unique(labels):
        for number, name in enumerate(("slots", "rows")):
            at = plane[(labels == each) & (kind == number)]
            if len(at):
                x, y = ([round(float(v), 3) for v in axis] for axis in at.T)
                found.append({"class": seen.classes[each], "kind": name, "x": x, "y": y})
    return {"variance": variance, "groups": found}


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in values]
