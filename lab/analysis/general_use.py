"""Use of a general memory (G-MAP) by domain and layer: attention to it, depth that gates select, effect of hiding it.

Shapes: n rows, l layers that read, h heads, s layers that a gate mixes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.analysis import rounded
from holdfast.report.axes import Axis
from holdfast.report.plots import heatmap
from holdfast.report.sections import Cell, Figure, Result, RunResult, Section, figure_section, mean_cell
from holdfast.stats.labels import Groups
from lab.analysis.routing import domain_bars, domains_of

if TYPE_CHECKING:
    from holdfast.analysis.views import Views
    from lab.analysis.general_views import GeneralView

SIDES = ("sources", "targets")
UNIFORM = 0.5  # attention to the memory without preference: it has the same number of tokens as the text


def general_use(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Summarise the reads per domain and layer; None without a general memory. Deterministic."""
    from lab.analysis.general_views import view_reads  # imports torch, which drawing does not need

    reads, effects = views.collect(view_reads) or ({}, {})
    first = next((view for by_domain in reads.values() for view in by_domain.values()), None)
    if first is None:
        return None
    layers, read = list(first.layers), [list(sources) for sources in first.sources]
    used = {
        side: {domain: _domain_use(view) for domain, view in by_domain.items()} for side, by_domain in reads.items()
    }
    result: dict[str, Any] = {"layers": layers, "read": read, **used}
    for domain, use in result["targets"].items():
        effect = effects.get(domain)
        use["scores"] = None if effect is None else {"read": effect.read, "hidden": effect.hidden}
    return result


def mean_depth(gate: np.ndarray, sources: tuple[int, ...]) -> float:
    """Mean source layer of a gate (n, s), weighted by its shares."""
    return float((gate.mean(axis=0) * np.asarray(sources)).sum())


def _domain_use(view: GeneralView) -> dict[str, Any]:
    """Return attention by layer and head, gate shares by layer, their mean depth, and the effect on features."""
    depths = [
        None if gate is None else round(mean_depth(gate, sources), 4)
        for gate, sources in zip(view.gates, view.sources, strict=True)
    ]
    return {
        "mass": rounded(view.mass.mean(axis=0), 5),
        "gates": [None if gate is None else rounded(gate.mean(axis=0), 5) for gate in view.gates],
        "depths": depths,
        "moved": None if view.moved is None else round(float(view.moved.mean()), 4),
    }


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw attention and gates, with a table per layer."""
    return figure_section(
        groups,
        "general-memory",
        "Reads from the general model",
        "Attention: share of a token's attention that goes to the memory; 0.5 is no preference. Lowest and highest: of "
        "the heads, on the target. Depth: mean layer of the general model that a gate selects. Change: relative change "
        "of target features if the memory is hidden. Score and hidden: scores on the test rows of the target with the "
        "memory, and with the memory hidden from the same trained network.",
        draw_panels,
        columns=(
            "method, target and layer", "attention, sources", "attention, target", "lowest", "highest",
            "depth, sources", "depth, target", "change", "score", "hidden",
        ),
        rows=lambda runs: [(f", layer {n}", layer_cells(runs, i)) for i, n in enumerate(runs[0]["layers"])],
        figure_text="Hatched bars are targets. The dotted line is no preference, or a uniform share.",
    )  # fmt: skip


def layer_cells(runs: Sequence[Result], i: int) -> list[Cell]:
    """Return the means over runs and domains of one layer."""

    def cell(side: str, get: Callable[[Mapping[str, Any]], float | None], digits: int = 2) -> Cell:
        return mean_cell([get(domain) for run in runs for domain in run[side].values()], digits)

    return [
        *(cell(side, lambda d: fmean(d["mass"][i])) for side in SIDES),
        *(cell("targets", lambda d, extreme=extreme: extreme(d["mass"][i])) for extreme in (min, max)),
        *(cell(side, lambda d: d["depths"][i], 1) for side in SIDES),
        cell("targets", lambda d: d["moved"]),
        # absent in records of older versions
        *(cell("targets", lambda d, key=key: (d.get("scores") or {}).get(key), 3) for key in ("read", "hidden")),
    ]


def draw_panels(run: RunResult) -> list[Figure]:
    """Draw attention per head and layer on the target, attention per domain, then each gate."""
    result = run.result
    domains, layers = domains_of(result), result["layers"]

    def tip(share: str) -> Callable[[str, int, float], str]:
        return lambda name, layer, value: f"{name}, layer {layer}: {value:.4f} {share}"

    masses = {name: [fmean(heads) for heads in domain["mass"]] for name, domain in domains.items()}
    y = Axis("attention to the memory", limits=(0, 1))
    figure = domain_bars(masses, layers, tip("of the attention"), UNIFORM, Axis("layer", names=()), y)
    figures = [
        ("Attention by head, on the target", _draw_heads(run)),
        ("Attention by domain", figure.html(f"general-mass-{run.id}", height=320)),
    ]
    for i, read in enumerate(result["read"]):
        if len(read) > 1:
            gates = {name: domain["gates"][i] for name, domain in domains.items()}
            x, y = Axis("layer of the general model", names=()), Axis("share in the memory", zero=True)
            figure = domain_bars(gates, read, tip("of the memory"), 1 / len(read), x, y)
            figures.append((f"Gate of layer {layers[i]}", figure.html(f"general-gate-{run.id}-{i}", height=300)))
    return figures


def _draw_heads(run: RunResult) -> str:
    masses = [domain["mass"] for domain in run.result["targets"].values()]
    values = [[fmean(head) for head in zip(*layer, strict=True)] for layer in zip(*masses, strict=True)]
    heads, layers = [str(i + 1) for i in range(len(values[0]))], [str(layer) for layer in run.result["layers"]]
    tip, titles = "layer {y}, head {x}: {z:.4f} of its attention", ("head", "layer")
    figure = heatmap(values, heads, layers, tip, titles=titles, reverse=False)
    return figure.html(f"general-heads-{run.id}", height=170 + 34 * len(values))
