"""Attention of each domain to each segment of a memory that has grown.

A segment holds the slots that were added at once for one domain. Shapes: m slots, s segments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from holdfast.analysis import rounded
from holdfast.analysis.memory_use import used_slots
from holdfast.report.plots import heatmap
from holdfast.report.sections import Figure, RunResult, Section, figure_section
from holdfast.stats.labels import Groups

if TYPE_CHECKING:
    from holdfast.analysis.views import Subject, Views


@runtime_checkable
class HasSegments(Protocol):
    """A memory that grows by segments, one per domain."""

    @property
    def sizes(self) -> list[int]: ...
    @property
    def owners(self) -> list[int]: ...


def view_segments(subject: Subject) -> list[tuple[list[int], list[int]]]:
    """Return sizes and owners of the segments of every memory that has them."""
    return [(list(m.sizes), list(m.owners)) for m in subject.model.modules() if isinstance(m, HasSegments)]


def segment_mass(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Compute the attention of each domain to each segment; None without a memory that has grown. Deterministic.

    `owners` are the indices of the domains for which the segments were added.
    """
    slots = {len(view.usage) for view in views if view.usage is not None}
    memories = [each for each in views.collect(view_segments) or [] if sum(each[0]) in slots]
    if not memories or len(memories[-1][0]) < 2:
        return None
    sizes, owners = memories[-1]  # of the last memory, whose reads are counted
    sides = views.by_domain(lambda view: None if view.usage is None else _segment_usage(view.usage, sizes))
    return {"sizes": sizes, "owners": owners, **sides} if any(sides.values()) else None


def mass(usage: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Share (s,) of the weights (m,) per segment; the shares sum to 1."""
    starts = np.cumsum([0, *sizes[:-1]])
    return np.add.reduceat(usage.astype(np.float64), starts) / usage.sum(dtype=np.float64)


def _segment_usage(usage: np.ndarray, sizes: list[int]) -> dict[str, Any] | None:
    """Return the numbers of one domain; None if it never read, as for texts of a single word."""
    if not usage.sum() > 0:
        return None
    slots = used_slots(usage)
    return {
        "mass": rounded(mass(usage, sizes)),
        "effective": round(slots, 2),
        "entropy": round(math.log(slots), 4),  # in nats, of the mean weights of the slots
        "evenness": round(math.log(slots) / math.log(len(usage)), 4) if len(usage) > 1 else 1.0,
    }


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw the attention per segment."""
    return figure_section(
        groups,
        "segment-mass",
        "Attention to memory segments",
        "Share of the attention of a domain that goes to each segment (slots that were added together); rows sum to "
        "one. The domains of the last training stage come first. In parentheses: slots in use by all reads together, "
        "exp of the entropy of the mean weights.",
        draw_segments,
    )


def draw_segments(run: RunResult) -> list[Figure]:
    """Draw the attention of each domain to each segment, with the slots in use in the name of the domain."""
    result = run.result
    domains = {**result["sources"], **result["targets"]}
    even = [size / sum(result["sizes"]) for size in result["sizes"]]
    segments = [f"{i}: {size:,} slot{'s' if size > 1 else ''}" for i, size in enumerate(result["sizes"], start=1)]
    names = [f"{name} ({domain['effective']:,.0f})" for name, domain in domains.items()]
    tips = [
        [
            f"{name}, segment {segment}: {mass:.4f}, uniform share {share:.4f}\n"
            f"entropy of its slots {domain['entropy']:.3f}, evenness {domain['evenness']:.3f}"
            for segment, mass, share in zip(segments, domain["mass"], even, strict=True)
        ]
        for name, domain in zip(names, domains.values(), strict=True)
    ]
    titles = ("segment", "domain (slots in use)")
    figure = heatmap([domain["mass"] for domain in domains.values()], segments, names, tips, titles=titles)
    return [("", figure.html(f"segments-{run.id}", height=160 + 44 * len(domains)))]
