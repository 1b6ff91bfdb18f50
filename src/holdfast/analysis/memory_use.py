"""Use of a memory: weight per slot, effective number of slots, effect on the features.

Shapes: n rows, d width, m slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.analysis import rounded
from holdfast.report.axes import Axis
from holdfast.report.marks import Bars, Rule
from holdfast.report.plots import COLOURS, Plot
from holdfast.report.sections import Cell, Figure, Result, RunResult, Section, figure_section, mean_cell
from holdfast.stats.labels import Groups

if TYPE_CHECKING:
    from holdfast.analysis.views import View, Views

SHOWN = 128  # slots whose usage is stored, the most used ones; all other numbers are over all slots
KEYS = (("per_read", 1), ("effective", 1), ("used", 0))  # columns of the table and their digits
SIDES = (("sources", "sources", COLOURS[0]), ("targets", "target", COLOURS[1]))  # key, name, colour


def memory_use(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Compute the usage of slots per domain; None if the network has no memory. Deterministic."""
    usages = [view.usage for view in views if view.usage is not None]
    if not usages:
        return None
    overall = np.mean(usages, axis=0)  # (m,)
    shown = np.argsort(-overall, kind="stable")[:SHOWN]
    weight, change = fusion_weight(tuple(views)), relative_change(tuple(views))
    return {
        "slots": len(overall),
        "shown": shown.tolist(),
        "effective": round(used_slots(overall), 2),
        "weight": None if weight is None else round(weight, 4),
        "moved": None if change is None else round(change, 4),
        **views.by_domain(lambda view: _usage(view, shown)),
    }


def used_slots(usage: np.ndarray) -> float:
    """Number of slots in use by all reads together, exp of the entropy of the mean weights (m,).

    It is m if all slots get the same weight and 1 if one slot gets all. A read may use fewer: see `View.per_read`.
    """
    p = usage / usage.sum()
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def used_share(peaks: np.ndarray) -> float:
    """Share of slots whose largest weight exceeds the uniform weight 1/m."""
    return float(np.mean(peaks > (1 + 1e-4) / len(peaks)))


def fusion_weight(views: Sequence[View]) -> float | None:
    """Least-squares w of features = (1 - w) backbone + w content; the published lambda if that is a scalar."""
    numerator = denominator = 0.0
    for view in views:
        if view.content is None or not view.content.shape == view.features.shape == view.backbone.shape:
            return None
        direction = view.content - view.backbone
        numerator += float(((view.features - view.backbone) * direction).sum(dtype=np.float64))
        denominator += float((direction**2).sum(dtype=np.float64))
    return numerator / denominator if denominator > 0 else None


def relative_change(views: Sequence[View]) -> float | None:
    """Mean over rows of |features - backbone| / |backbone|; None if the neck changes the width."""
    changes = []
    for view in views:
        if view.features.shape != view.backbone.shape:
            return None
        length = np.linalg.norm(view.backbone, axis=1)
        changes.append(np.linalg.norm(view.features - view.backbone, axis=1)[length > 0] / length[length > 0])
    values = np.concatenate(changes)
    return float(values.mean()) if len(values) else None


def _usage(view: View, shown: np.ndarray) -> dict[str, Any]:
    assert view.usage is not None
    assert view.peaks is not None
    return {
        "per_read": None if view.per_read is None else round(view.per_read, 2),
        "effective": round(used_slots(view.usage), 2),  # of all reads together
        "used": round(used_share(view.peaks), 4),
        "usage": rounded(view.usage[shown], 6),
    }


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw the usage of slots."""
    return figure_section(
        groups,
        "memory-use",
        "Memory use",
        "Effective: mean over reads of exp(entropy of the weights of a read). Overall: exp of the entropy of the mean "
        "weights of all reads. Used: share of slots whose largest weight exceeds the uniform weight. Weight: w of "
        "(1 - w) z + w m(z) by least squares. Change: mean relative change of z.",
        draw_slots,
        columns=(
            "method and target", "slots", "effective, sources", "effective, target", "overall, sources",
            "overall, target", "used, sources", "used, target", "weight", "change",
        ),
        rows=lambda runs: [("", usage_cells(runs))],
        figure_text="The dotted line is the uniform weight.",
    )  # fmt: skip


def usage_cells(runs: Sequence[Result]) -> list[Cell]:
    """Return slots, effective and used slots on sources and target, fusion weight and relative change.

    Records of earlier versions have no effective slots per read.
    """

    def mean_of(side: str, key: str, digits: int) -> Cell:
        per_run = [mean_cell([domain.get(key) for domain in run[side].values()])[1] for run in runs]
        text, mean = mean_cell(per_run, digits)
        return (f"{mean:.0%}" if key == "used" else f"{mean:,.{digits}f}", mean) if mean is not None else (text, None)

    return [
        (f"{runs[0]['slots']:,}", runs[0]["slots"]),
        *(mean_of(side, key, digits) for key, digits in KEYS for side, _, _ in SIDES),
        *(mean_cell([run[key] for run in runs]) for key in ("weight", "moved")),
    ]


def draw_slots(run: RunResult) -> list[Figure]:
    """Draw the weights of the most used slots on sources and target."""
    result = run.result
    bars = []
    for side, name, colour in SIDES:
        means = [fmean(values) for values in zip(*(d["usage"] for d in result[side].values()), strict=True)]
        tips = [f"{name}, slot {slot}: {mean:.4f}" for slot, mean in zip(result["shown"], means, strict=False)]
        bars.append(Bars(list(range(1, len(means) + 1)), means, tips, name=name, colour=colour))
    x = Axis(f"slots by weight, {len(result['shown'])} of {result['slots']}")
    figure = Plot(*bars, x=x, y=Axis("mean weight", zero=True), rules=[Rule(y=1 / result["slots"])], gap=0.1)
    return [("", figure.html(f"slots-{run.id}", height=300))]
