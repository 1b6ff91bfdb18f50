"""A demonstration: one score per row and seed, and the paired differences between system, null control and baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.catalog.entry import Entry
from holdfast.core.seeds import seeded
from holdfast.stats.statistics import Paired, paired_t, summarise

if TYPE_CHECKING:
    from holdfast.report.terminal import WrappedTable

SEEDS = 10
OnScore = Callable[[str, int, float], None]  # row, seed, score


@dataclass(frozen=True)
class Demo:
    """Rows with their scores by `score(row, seed)`; the row `system` has the mechanism and `null` replaces it."""

    name: str
    about: str
    metric: str
    rows: Mapping[str, str]  # row -> one line about it
    score: Callable[[str, int], float]
    system: str
    null: str
    baseline: str
    lower_is_better: bool = False


@dataclass(frozen=True)
class Demonstration:
    """The scores of a demonstration, per row and seed."""

    demo: Demo
    scores: dict[str, list[float]] = field(default_factory=dict)

    def gain(self, row: str, over: str) -> Paired:
        """Return by how much a row is better than another one, paired by seed."""
        sign = -1 if self.demo.lower_is_better else 1
        first, second = ([sign * value for value in self.scores[name]] for name in (row, over))
        return paired_t(first, second)

    def json(self) -> dict[str, Any]:
        """Return scores, the effect of the mechanism, that of the null control, and the p value of their difference."""
        demo, effect = self.demo, self.gain(self.demo.system, self.demo.null)
        return {
            "demo": demo.name, "metric": demo.metric, "lower_is_better": demo.lower_is_better, "scores": self.scores,
            "effect": self.gain(demo.system, demo.baseline).difference,
            "null": self.gain(demo.null, demo.baseline).difference,
            "difference": effect.difference, "p": effect.p, "seeds": effect.n,
        }  # fmt: skip

    def sentence(self) -> str:
        """Return the result in one sentence."""
        demo, effect = self.demo, self.gain(self.demo.system, self.demo.null)
        better, p = "better" if effect.difference > 0 else "worse", "unknown" if effect.p is None else f"{effect.p:.2g}"
        return (
            f"{demo.system} is {abs(effect.difference):.3g} {better} than its null control {demo.null} "
            f"({demo.metric}, {effect.n} seeds, p {p}, paired t test)"
        )


def run(demo: Demo, seeds: Sequence[int] = range(SEEDS), on_score: OnScore | None = None) -> Demonstration:
    """Compute the scores of all rows; every row has the same data and the same initial weights per seed."""
    result = Demonstration(demo)
    for seed in seeds:
        for row in demo.rows:
            with seeded(seed, "demo", demo.name):
                score = demo.score(row, seed)
            result.scores.setdefault(row, []).append(score)
            if on_score is not None:
                on_score(row, seed, score)
    return result


@dataclass(frozen=True)
class DemoEntry(Entry):
    """A demonstration in the list of recipes."""

    def details(self, name: str) -> dict[str, Any]:
        demo: Demo = self.load()
        return {"claim": demo.about, "notes": [], "rows": dict(demo.rows)}

    def shown(self, name: str) -> Any:
        return rows_table(self.load(), {})


def rows_table(demo: Demo, scores: Mapping[str, Sequence[float]]) -> WrappedTable:
    """Return the rows with their mean scores, or without scores before a run."""
    from rich.text import Text

    from holdfast.report.terminal import WrappedTable

    lines = []
    for row, about in demo.rows.items():
        cell = summarise(scores[row]) if row in scores else None
        error = "" if cell is None or cell.stderr is None else f" ± {cell.stderr:.3f}"
        lines.append([Text(row), Text(about), Text("" if cell is None else f"{cell.mean:.3f}{error}")])
    order = "lower is better" if demo.lower_is_better else "higher is better"
    note = f"{demo.about}; {demo.metric}, {order}; ± is the standard error over seeds"
    return WrappedTable(["row", "", demo.metric], lines, title=Text(demo.name), caption=note)
