"""audit: what a data set holds, whether its domains differ, what to clean and what to try.

n examples, k domains
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.audit import tables
from holdfast.audit.clean import check_clean, write_clean
from holdfast.audit.copies import choose, conflicts, find_copies
from holdfast.audit.examples import Examples
from holdfast.audit.facts import DomainFacts, Example, Leak, domain_facts, dropped, leaks, overlaps, shown
from holdfast.audit.near import BITS, CORRELATION, WIDTH
from holdfast.audit.shift import (
    Apart,
    Distance,
    Quick,
    input_distances,
    label_counts,
    label_shifts,
    quick_scores,
    shared_words,
)
from holdfast.audit.verdict import Verdict, advise, headline, judge
from holdfast.core.errors import BadInput
from holdfast.core.seeds import derive
from holdfast.data.dataset import Dataset
from holdfast.data.readers.memory import Source
from holdfast.data.write import check_not_input
from holdfast.report.page import write_audit
from holdfast.report.terminal import Grid
from holdfast.run.settings import make_spec
from holdfast.run.workspace import training_data

SAMPLE = 2000  # rows of a domain for distances, words and the classifier, and of all domains ten times as many


@dataclass(frozen=True)
class Audit:
    """What was found; `grids` are the tables as they are shown, `dropped` the rows that a clean table lacks."""

    name: str
    kind: str
    examples: int
    headline: str
    advice: list[str]
    domains: list[DomainFacts]
    duplicates: int  # rows whose input is in the data before
    splits: list[Leak]
    overlaps: dict[str, dict[str, int]]
    shown: list[Example]
    distances: list[Distance]
    labels: list[Apart]
    words: dict[str, dict[str, float]]
    baseline: list[Quick]
    verdict: Verdict
    dropped: list[dict[str, int | str]]
    grids: list[Grid]
    notes: tuple[str, ...]
    report: Path | None
    clean: Path | None

    def json(self) -> dict[str, Any]:
        """All of it but the tables, for machines."""
        found = {key: value for key, value in vars(self).items() if key not in ("grids", "report", "clean")}
        found = {key: _plain(value) for key, value in found.items()}
        found["verdict"] |= {"costly": self.verdict.costly, "where": self.verdict.where}
        for key in ("distances", "labels"):
            both = zip(found[key], getattr(self, key), strict=True)
            found[key] = [{**told, "real": each.real} for told, each in both]
        paths = {key: None if (path := getattr(self, key)) is None else str(path) for key in ("report", "clean")}
        return found | paths


def audit(
    data: Source,
    *,
    task: str = "classify",
    near: float = 0.8,
    out: str | Path | None = None,
    clean: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
    seed: int = 0,
    tell: Callable[[str], None] | None = None,
) -> Audit:
    """Look at a data set; `out` is a page to write, `clean` a table without copies; the data is never touched.

    `near` is the likeness from which two texts are nearly equal, 0.7 to 1; at 1 only equal inputs count, of images too.
    """
    if not 0.7 <= near <= 1:
        raise BadInput(f"near is the likeness of two texts, from 0.7 to 1, not {near}")
    if out is not None:
        check_not_input("--out", Path(out), data)
    if clean is not None:
        check_clean(Path(clean), data)
    say = tell or (lambda sentence: None)
    dataset = training_data(data, task=task, columns=columns, data_dir=data_dir)
    data = data if isinstance(data, str | Path) else dataset  # a DataFrame has no name to tell either
    examples = Examples(dataset)
    say(f"looking for copies among {len(dataset):,} examples")
    copies, targets = find_copies(examples, near=near), examples.targets()
    conflict, choice = conflicts(copies, targets), choose(copies, targets, dataset.split)
    names, counts = label_counts(dataset)
    facts = domain_facts(dataset, copies, choice, conflict, names, counts)
    shifts = label_shifts(dataset.domains, counts)
    sample = _sample(dataset, choice.kept(), seed)
    distances: list[Distance] = []
    words: dict[str, dict[str, float]] = {}
    quick: list[Quick] = []
    if len(sample) > 1:
        say("measuring how far domains lie apart")
        distances = input_distances(examples, sample, seed=seed)
        words = shared_words(examples, sample) if examples.kind == "text" else {}
        quick = quick_scores(examples, sample)
    verdict, leaked = judge(distances, shifts, quick), leaks(dataset, copies)
    seen = shown(examples, copies, conflict)
    most = max(map(len, sample.values()))
    grids = [tables.domain_grid(facts), tables.copy_grid(facts, _nearly(examples.kind, near))]
    grids += [tables.leak_grid(leaked)] if leaked else []
    grids += [tables.example_grid(seen)] if seen else []
    grids += [tables.distance_grid(list(sample), distances)] if distances else []
    grids += [tables.label_grid(dataset.domains, shifts)] if shifts else []
    grids += [tables.word_grid(words, min(map(len, sample.values())))] if words else []
    grids += [tables.quick_grid(quick, most)] if quick else []
    given = [dataset.name if isinstance(data, Dataset) else str(data)]
    given += [] if data_dir is None else ["--data-dir", str(data_dir)]
    given += [word for key, name in (columns or {}).items() for word in ("--column", f"{key}={name}")]
    spec = make_spec(dataset, task=task)
    advice = advise(shlex.join(given), spec, examples.kind, verdict, facts, leaked, dataset.more_domains_hint)
    told = headline(verdict, len(facts), labelled=bool(shifts))
    page = None if out is None else Path(out)
    if page is not None:
        title = f"Holdfast: audit of {dataset.name}"
        write_audit(page, title=title, headline=told, advice=advice, grids=grids, notes=dataset.notes)
    table = None if clean is None else write_clean(Path(clean), data, dataset, choice.kept())
    return Audit(
        dataset.name, examples.kind, len(dataset), told, advice, facts, copies.extra(), leaked,
        overlaps(dataset, copies), seen, distances, shifts, words, quick, verdict, dropped(choice), grids,
        dataset.notes, page, table,
    )  # fmt: skip


def _sample(dataset: Dataset, kept: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Rows of each domain without copies, in chance order; a domain of which nothing is left is out."""
    most = max(100, min(SAMPLE, 10 * SAMPLE // len(dataset.domains)))
    found = {}
    for at, name in enumerate(dataset.domains):
        rows = kept[dataset.domain[kept] == at]
        rows = np.random.default_rng(derive(seed, "audit", name)).permutation(rows)[:most]
        if len(rows):
            found[name] = rows
    return found or {dataset.domains[0]: kept[:0]}


def _nearly(kind: str, near: float) -> str:
    """What nearly equal means."""
    if near == 1:
        return "not looked for"
    if kind == "text":
        return f"at least {near:g} of all stretches of {WIDTH} characters in common"
    if kind == "image":
        return f"at most {BITS} of 64 bits of the difference hash apart, and a correlation of at least {CORRELATION:g}"
    return f"of a {kind} not looked for"


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
