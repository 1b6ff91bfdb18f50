"""Slots of a heterogeneous memory (HMA): projections, attention between rows and slots, similarity, memory sizes.

Shapes: b rows, c classes, d width, m slots of all classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.analysis import rounded
from holdfast.analysis.projection import PCA, Algorithm, project
from holdfast.record import RunRecord
from holdfast.report.axes import Axis, number
from holdfast.report.marks import DOTTED, SHADES, Area, Bars, Mark, Points, Rule, pixels, shades
from holdfast.report.plots import COLOURS, SYMBOLS, Plot, heatmap, plane, style
from holdfast.report.sections import Figure, RunFigures, RunResult, Section, figure_section
from holdfast.stats.formatting import format_number, metric_name, scaled
from holdfast.stats.labels import Groups, settings_key
from holdfast.stats.statistics import mean
from lab.analysis.tsne import TSNE

if TYPE_CHECKING:
    from holdfast.analysis.views import Views
    from lab.analysis.class_views import ClassView

SLOTS = 16  # slots per class that an attention map shows; its numbers are over all slots
MIN_TSNE_POINTS = 6
CAPTIONS = {"alone": "Slots", "beside": "Slots and training rows"}
SHARES = ("itself", "own class", "other classes", "own slots", "other slots")


def slot_map(views: Views, *, seed: int, algorithm: Algorithm = PCA) -> dict[str, Any] | None:
    """Project the slots, alone and together with training rows of some classes; None without slots.

    The label's part is left out of both, because it is equal for all slots of a class.
    """
    view = _class_view(views)
    if view is None or view.slots is None or view.slot_labels is None:
        return None
    near = np.isin(view.slot_labels, np.unique(view.recalled_labels))
    points = np.concatenate([view.slots[near], view.recalled])
    labels = np.concatenate([view.slot_labels[near], view.recalled_labels])
    is_row = np.repeat([0, 1], [int(near.sum()), len(view.recalled)])
    same_class, expected = nearest_neighbours(view.slots, view.slot_labels)
    only_slots = np.zeros(len(view.slots))
    return {
        "how": algorithm.name,
        "targets": [target.domain for target in views.targets],
        "nearest": round(same_class, 4),
        "chance": round(expected, 4),
        "alone": _project_groups(view, view.slots, view.slot_labels, only_slots, seed=seed, algorithm=algorithm),
        "beside": _project_groups(view, points, labels, is_row, seed=seed, algorithm=algorithm),
    }


def tsne_map(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Project the slots by t-SNE."""
    return slot_map(views, seed=seed, algorithm=TSNE)


def _class_view(views: Views) -> ClassView | None:
    from lab.analysis.class_views import view_classes  # imports torch, which drawing does not need

    return views.collect(view_classes)


def nearest_neighbours(slots: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Share of slots (m, d) whose nearest other slot has their class, and its expectation for random positions."""
    if len(slots) < 2:
        return 1.0, 1.0
    distances = np.linalg.norm(slots[:, None].astype(np.float64) - slots[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    ties = distances <= distances.min(axis=1, keepdims=True) * (1 + 1e-9)  # ties share one vote
    own = labels[:, None] == labels[None]
    others = own.sum(axis=1) - 1
    return float(((ties & own).sum(axis=1) / ties.sum(axis=1)).mean()), float((others / (len(slots) - 1)).mean())


def _project_groups(
    view: ClassView, points: np.ndarray, labels: np.ndarray, is_row: np.ndarray, *, seed: int, algorithm: Algorithm
) -> dict[str, Any]:
    """Project points and group them by class, slots and rows apart."""
    feasible = len(points) >= MIN_TSNE_POINTS and np.ptp(points, axis=0).any()
    plane, variance = project(points.astype(np.float64), seed=seed, algorithm=algorithm if feasible else PCA)
    groups = []
    for label in np.unique(labels):
        for index, kind in enumerate(("slots", "rows")):
            chosen = plane[(labels == label) & (is_row == index)]
            if len(chosen):
                x, y = rounded(chosen.T, 3)
                groups.append({"class": view.classes[label], "kind": kind, "x": x, "y": y})
    return {"variance": variance, "groups": groups}


def slot_attention(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Compute attention within a batch sorted by class, and to slots; None without such attention. Deterministic.

    The map is in ten-thousandths, rows and columns by class: the batch, then the slots of the classes in the batch.
    `even` holds the shares that uniform attention would give.
    """
    view = _class_view(views)
    if view is None or view.attention is None or view.second is None:
        return None
    b = len(view.labels)
    slot_labels = np.empty(0, dtype=np.int64) if view.slot_labels is None else view.slot_labels
    assert view.attention.shape[1] == b + len(slot_labels), "the attention does not cover the batch and all slots"
    present = np.unique(view.labels)
    shown = [np.flatnonzero(slot_labels == label)[:SLOTS] for label in present]
    columns = np.concatenate([np.arange(b), *(b + slots for slots in shown)])
    kinds = shares(view.attention, view.labels, slot_labels)  # (b, 5)
    even = shares(np.full_like(view.attention, 1 / view.attention.shape[1]), view.labels, slot_labels)
    masses = {"real": view.first, "across": view.second}
    return {
        "targets": [target.domain for target in views.targets],
        "classes": [view.classes[label] for label in present],
        "rows": [int((view.labels == label).sum()) for label in present],
        "slots": [len(slots) for slots in shown],
        "map": np.rint(1e4 * view.attention[:, columns]).astype(int).tolist(),
        "mass": {name: None if read is None else rounded(read.mean(axis=0)) for name, read in masses.items()},
        "shares": {view.classes[label]: rounded(kinds[view.labels == label].mean(axis=0)) for label in present},
        "mean": rounded(kinds.mean(axis=0)),
        "even": rounded(even.mean(axis=0)),
    }


def shares(attention: np.ndarray, labels: np.ndarray, slot_labels: np.ndarray) -> np.ndarray:
    """Split attention (b, b + m) into (b, 5): itself, rows of own and other classes, slots of own and other classes."""
    b = len(labels)
    batch, slots = attention[:, :b], attention[:, b:]
    itself = batch.diagonal()
    own_rows = (batch * (labels[:, None] == labels[None])).sum(axis=1) - itself
    own_slots = (slots * (labels[:, None] == slot_labels[None])).sum(axis=1)
    other_rows = batch.sum(axis=1) - itself - own_rows
    return np.stack([itself, own_rows, other_rows, own_slots, slots.sum(axis=1) - own_slots], axis=1)


def slot_diversity(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Mean cosine similarity between two slots of a class; None for fewer than two slots per class. Deterministic.

    `scatter` is the standard deviation of this similarity around 0 for one pair of random slots.
    """
    view = _class_view(views)
    if view is None or view.slots is None or view.similarity is None or len(view.slots) <= len(view.similarity):
        return None
    return {
        "targets": [target.domain for target in views.targets],
        "slots": len(view.slots) // len(view.similarity),
        "mean": round(float(view.similarity.mean()), 4),
        "scatter": round(view.slots.shape[1] ** -0.5, 4),
        "classes": {view.classes[i]: value for i, value in enumerate(rounded(view.similarity))},
    }


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw projections, attention and similarity of slots, and scores by memory size."""
    projections = [
        section
        for name, algorithm in (("slot-map", "PCA"), ("slot-map-tsne", "t-SNE"))
        for section in figure_section(
            groups, name, f"Projection of class slots by {algorithm}",
            "Learned slots (filled) and training rows after the queue read (open), one colour per class, without the "
            "label's part. Each projection is fitted on the points it shows and scaled to the unit square.",
            draw_maps, describe=_describe_map,
        )
    ]  # fmt: skip
    attention = figure_section(
        groups, "slot-attention", "Attention within a batch and to slots",
        "A batch of training rows sorted by class: attention of each row to the batch (left) and to the slots (right), "
        "mean over heads. Rows sum to one over all slots, some of which may not be shown.",
        draw_attention, describe=_describe_queue,
    )  # fmt: skip
    similarity = figure_section(
        groups, "slot-diversity", "Similarity of the slots of a class",
        "Mean cosine similarity between two slots of a class: 1 for identical slots, about 0 for random slots.",
        draw_similarity,
        describe=lambda run: f"{run.result['slots']} slots per class, mean similarity {run.result['mean']:.2f}.",
    )  # fmt: skip
    records = [record for group in groups.values() for record in group]
    sizes = [RunFigures(data, [("", html)]) for data, html in size_maps(records, metric)]
    text = f"Mean {metric_name(metric)} over seeds and targets by rows of the queue and slots per class (0: none)."
    return projections + attention + similarity + ([Section("Memory sizes", text, runs=sizes)] if sizes else [])


def _describe_map(run: RunResult) -> str:
    own, expected = (100 * run.result[key] for key in ("nearest", "chance"))
    return (
        f"For {own:.0f} % of the slots the nearest other slot has the same class; {expected:.0f} % expected at random."
    )


def _describe_queue(run: RunResult) -> str:
    queue_read = run.result["mass"]["real"]
    if queue_read is None:
        return ""
    itself, queue = queue_read[0], queue_read[2]
    return f"In the read of the queue, {itself:.2f} of the attention is on the row itself and {queue:.2f} on the queue."


def draw_maps(run: RunResult) -> list[Figure]:
    """Draw the slots alone, then with rows of some classes, one colour per class."""
    names = list(dict.fromkeys(group["class"] for group in run.result["alone"]["groups"]))
    figures = []
    for panel, caption in CAPTIONS.items():
        marks = []
        for group in run.result[panel]["groups"]:
            position, is_row = names.index(group["class"]), group["kind"] == "rows"
            symbol = SYMBOLS[position // len(COLOURS) % len(SYMBOLS)] + ("-open" if is_row else "")
            label = f"{group['class']}, {group['kind']}"
            marks.append(Points(
                group["x"], group["y"], label, name=label, colour=style(position)[0], symbol=symbol,
                size=5 if is_row else 10, faded=0.6 if is_row else None,
            ))  # fmt: skip
        figure = plane(*marks, variance=run.result[panel]["variance"])
        name = f"slot-map-{run.result['how']}-{run.id}-{panel}"
        figures.append((caption, figure.html(name, height=360, legend=False)))
    return figures


@dataclass(frozen=True, eq=False)
class AttentionMap(Mark):
    """Attention of rows to rows and slots, one pixel per pair, with the colours of its scale."""

    z: Sequence[Sequence[float]]
    high: float
    cells = True

    def values(self, axis: str) -> list[Any]:
        return list(range(len(self.z if axis == "y" else self.z[0])))

    def texts(self) -> list[str]:
        return [f"{len(self.z)} by {len(self.z[0])} cells"]

    def draw(self, area: Area) -> Iterator[str]:
        yield pixels(self.z, shades(SHADES, 0.0, self.high), area)

    def scale(self) -> str:
        style = f"background:linear-gradient(to right,{','.join(colour for _, colour in SHADES)})"
        bar = f'<span class="shades" style="{style}"></span>'
        return f'<div class="names"><span>attention: 0 {bar} {number(self.high)}</span></div>'


def draw_attention(run: RunResult) -> list[Figure]:
    """Draw the attention map, the batch on the left and the slots on the right, and the shares by class."""
    result = run.result
    rows, names = result["rows"], result["classes"]
    values = sorted(value for line in result["map"] for value in line)
    top = values[math.ceil(0.995 * len(values)) - 1]  # a few large values would leave the rest without shades
    cells = [[value / 1e4 for value in line] for line in result["map"]]
    *ends, last = accumulate(rows)
    middles = [end - count / 2 - 0.5 for end, count in zip([*ends, last], rows, strict=True)]
    figure = Plot(
        AttentionMap(cells, max(top, 1) / 1e4),
        x=Axis("batch, then slots, by class", grid=False),
        y=Axis(ticks=list(zip(middles, names, strict=True)), reverse=True, grid=False),
        rules=[Rule(last - 0.5, stroke=replace(DOTTED, width=2, dash="solid")), *(Rule(y=end - 0.5) for end in ends)],
    )
    attention = figure.html(f"slot-attention-{run.id}", height=420, legend=False)
    lines = {**result["shares"], "all": result["mean"], "uniform": result["even"]}
    table = heatmap(list(lines.values()), SHARES, list(lines), "{y}, {x}: {z:.4f}")
    by_class = table.html(f"slot-shares-{run.id}", height=130 + 26 * len(lines), legend=False)
    return [("Attention, rows by class", attention), ("Shares of attention by class", by_class)]


def draw_similarity(run: RunResult) -> list[Figure]:
    """Draw the mean cosine similarity between two slots per class."""
    classes = run.result["classes"]
    bars = Bars(list(classes), list(classes.values()), [f"{name}: {v:.4f}" for name, v in classes.items()],
                colour=style(0)[0])  # fmt: skip
    y = Axis("cosine similarity", limits=(min(-0.1, *classes.values()), 1.05))
    figure = Plot(bars, x=Axis(names=()), y=y, rules=[Rule(y=1)])
    return [("", figure.html(f"slot-diversity-{run.id}", height=280, legend=False))]


def size_maps(records: Sequence[RunRecord], metric: str) -> list[tuple[str, str]]:
    """Return (data, heat map of mean scores) for runs that differ only in queue rows and slots per class.

    A map needs at least two sizes of each kind.
    """
    groups: dict[str, dict[tuple[int, int], list[float]]] = {}
    data: dict[str, str] = {}
    for record in records:
        args = record.spec.get("neck_args") or {}
        if "real" not in args or "slots" not in args:
            continue
        others = {key: value for key, value in args.items() if key not in ("real", "slots")}
        key = settings_key({**record.spec, "neck_args": others}, "seed")
        score = mean(of_domain.get(metric) for of_domain in record.stages[-1]["test"].values())
        if score is not None:
            data[key] = str(record.spec["data"])
            groups.setdefault(key, {}).setdefault((int(args["real"]), int(args["slots"])), []).append(score)
    return [
        (data[key], _draw_sizes(cells, metric, f"memory-sizes-{index}"))
        for index, (key, cells) in enumerate(groups.items())
        if len({rows for rows, _ in cells}) > 1 and len({slots for _, slots in cells}) > 1
    ]


def _draw_sizes(cells: Mapping[tuple[int, int], list[float]], metric: str, name: str) -> str:
    rows, slots = sorted({rows for rows, _ in cells}), sorted({slots for _, slots in cells})
    means = [[mean(cells.get((r, s), ())) for s in slots] for r in rows]
    values = [[None if value is None else scaled(value, metric) for value in line] for line in means]
    text = [["" if value is None else format_number(value, metric) for value in line] for line in means]
    figure = heatmap(
        values, list(map(str, slots)), list(map(str, rows)), "{y} rows, {x} slots: {z:.2f}", text=text, low=None,
        high=None, titles=("slots per class", "rows of the queue"), reverse=False,
    )  # fmt: skip
    return figure.html(name, height=150 + 40 * len(rows), legend=False)
