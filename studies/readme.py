"""Generated parts of README.md: the recorded session, and results of the default and of the five systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from holdfast.record import RunRecord
from holdfast.stats.engagement import ENGAGED, percent
from studies import default_tables
from studies.default import DATASETS
from studies.default_tables import DEFAULT, SIMPLE, average, differences, headroom, scores_of
from studies.index import PUBLISHED, page_of
from studies.primary_tables import Results, by_system, gap, or_none, packed_inputs, pooled
from studies.recording import comparison_lines
from studies.tables import header

ERM = "first"  # ERM with the settings of the first version; the encoder is trained
OPPONENTS = {ERM: "ERM", SIMPLE: "best of scikit-learn"}


def default_results(records: Mapping[str, Mapping[str, Sequence[RunRecord]]]) -> list[str]:
    """Return one line per data set: headroom, scores, and differences of the default to ERM and scikit-learn."""
    names = OPPONENTS.values()
    lines = header("data", "headroom", *names, "default", *(f"default - {name}" for name in names))
    every = {}
    for name, rows in records.items():
        scores = every[name] = scores_of(name, rows)[0]
        means = [f"{fmean(scores[row].values()):.1f}" for row in (*OPPONENTS, DEFAULT)]
        gains = [gap(differences(scores, DEFAULT, row)) for row in OPPONENTS]
        room = f"{fmean(headroom(name, rows[ERM])):+.1f}"
        lines.append(f"| {' | '.join([DATASETS[name].title, room, *means, *gains])} |")
    means = [average(every, DEFAULT, row) for row in OPPONENTS]
    if all(means):
        lines.append(f"| **mean** | | | | | {' | '.join(map(gap, means))} |")
    return lines


def system_results(passed: Mapping[str, Sequence[Results]]) -> list[str]:
    """Return one line per system: published and measured gain, gain over the null control, and engagement."""
    lines = header("system", "published gain", "measured gain over ERM", "gain over its null control", "engaged")
    for system, published in PUBLISHED.items():
        results = passed.get(system, [])
        shares = sorted(fmean(each.shares) for each in results)
        engaged = " to ".join(dict.fromkeys(percent(share) for share in (shares[0], shares[-1]))) if shares else ""
        cells = [gap(pooled(results, role)) if results else "not tested" for role in ("baseline", "null")]
        page = f"[{system}](docs/studies/{page_of(system)})"
        state = f"{'yes' if shares[0] >= ENGAGED else 'barely'}, {engaged}" if shares else "no"
        lines.append(f"| {page} | {', '.join(published.values())} | {' | '.join(cells)} | {state} |")
    return lines


TABLES = {
    "session": comparison_lines,
    "default": lambda: or_none(default_results(default_tables.packed_records())),
    "systems": lambda: system_results(by_system(*packed_inputs())),
}
FILES = {Path(__file__).parents[1] / "README.md": TABLES}
