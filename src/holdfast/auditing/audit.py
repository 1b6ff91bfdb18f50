"""Audit of a data set: duplicates, leaks, shift between domains and per column, and advice (n examples, k domains)."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.auditing import commands, facts, shift
from holdfast.auditing.clean import write_clean
from holdfast.auditing.columns import ColumnFacts, column_advice, column_facts, column_grid
from holdfast.auditing.duplicates import choose, conflicts, find_duplicates
from holdfast.auditing.erasure import Erasure, erasure_grid, erasure_sentence, measure_erasure
from holdfast.auditing.examples import Examples
from holdfast.auditing.facts import DomainFacts, Example, Leak
from holdfast.auditing.headroom import Compared, ShiftCost, compared_sentence, headroom_grid, read_compared, shift_costs
from holdfast.auditing.label_errors import (
    LabelErrors,
    error_advice,
    find_label_errors,
    label_error_grid,
    write_label_errors,
)
from holdfast.auditing.near import BITS, CORRELATION, WIDTH
from holdfast.auditing.shift import Distance, LabelShift
from holdfast.auditing.telltale_words import TelltaleWord, telltale_grid, telltale_words, word_advice
from holdfast.auditing.verdict import Verdict, advise, conclude, headline
from holdfast.core.errors import BadInput
from holdfast.core.seeds import derive
from holdfast.data.dataset import Dataset
from holdfast.data.readers.in_memory import Source
from holdfast.data.write import check_not_input, check_suffix
from holdfast.report.page import write_audit
from holdfast.report.terminal import Grid
from holdfast.spec import Spec
from holdfast.train.settings import make_spec
from holdfast.train.training_data import training_data

SAMPLE = 2000  # rows per domain for distances, words and the classifier; ten times that in total
# properties of findings in the JSON output
CONCLUSIONS = {Verdict: ("costly", "where"), Distance: ("real",), LabelShift: ("real",), ColumnFacts: ("leaks",)}
CELLS = 20_000_000  # of a table with many columns, in the sample of all domains


@dataclass(frozen=True)
class Audit:
    """Findings of an audit; `grids` are its tables, `dropped` the rows that a clean table omits."""

    name: str
    kind: str
    examples: int
    headline: str
    advice: list[str]
    command: str | None  # the recommended command
    domains: list[DomainFacts]
    duplicates: int  # rows whose input occurs earlier
    splits: list[Leak]
    overlaps: dict[str, dict[str, int]]
    shown: list[Example]
    distances: list[Distance]
    labels: list[LabelShift]
    words: dict[str, dict[str, float]]
    columns: list[ColumnFacts]  # of a table
    baseline: list[ShiftCost]
    erasure: Erasure | None  # None for fewer than three domains with labels
    compared: list[Compared]  # scores of an earlier comparison on the same data
    verdict: Verdict
    dropped: list[dict[str, int | str]]
    grids: list[Grid]
    notes: tuple[str, ...]
    label_errors: LabelErrors
    telltale: list[TelltaleWord]  # words that identify a domain or leak the label
    report: Path | None
    clean: Path | None
    errors_file: Path | None  # ranked table of likely label errors

    def json(self) -> dict[str, Any]:
        """Return everything except the tables."""
        return {key: _plain(value) for key, value in vars(self).items() if key != "grids"}


def audit(
    data: Source, *, task: str | None = None, near: float = 0.8, out: str | Path | None = None,
    clean: str | Path | None = None, label_errors: str | Path | None = None,
    columns: Mapping[str, str] | None = None, data_dir: Path | None = None,
    seed: int = 0, runs: str | Path | None = None, tell: Callable[[str], None] | None = None, skip_bad: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Audit:  # fmt: skip
    """Inspect a data set; `out` is an HTML report to write, `clean` a table without duplicates, and
    `label_errors` a ranked table of likely label errors.

    `near` is the similarity, 0.7 to 1, above which two texts are near duplicates; 1 looks for exact duplicates only, of
    images too. The data itself is never changed. `runs` is the folder of a comparison: if it used exactly this data,
    its scores are shown next to those of the linear probe. `tell` receives progress messages. With `skip_bad`,
    rows of a table with bad cells are left out and counted. Without a task, numeric labels with many values are the
    target of a regression; `settings` are those of the task, such as `task.separator`.
    """
    if not 0.7 <= near <= 1:
        raise BadInput(f"near must be a similarity between 0.7 and 1; got {near}")
    for key in settings or {}:
        if not key.startswith("task."):
            raise BadInput(f"an audit has no setting '{key}': pass settings of the task, such as task.separator")
    if out is not None:
        check_not_input("--out", Path(out), data)
    for option, path in (("--clean", clean), ("--label-errors", label_errors)):
        if path is not None:
            check_suffix(Path(path))
            check_not_input(option, Path(path), data)
    say = tell or (lambda sentence: None)
    dataset = training_data(data, task=task, columns=columns, data_dir=data_dir, skip_bad=skip_bad, settings=settings)
    task = task or dataset.task or Spec.task
    source, data = data, data if isinstance(data, str | Path) else dataset  # a DataFrame has no name either
    examples = Examples(dataset)
    say(f"searching for duplicates among {len(dataset):,} examples")
    duplicates, targets = find_duplicates(examples, near=near), examples.targets()
    conflict, choice = conflicts(duplicates, targets), choose(duplicates, targets, dataset.split)
    clean_rows = choice.kept_rows()
    names, counts = shift.label_counts(dataset)
    domains = facts.domain_facts(dataset, duplicates, choice, conflict, names, counts)
    leaks, shown = facts.leaks(dataset, duplicates), facts.examples_of(examples, duplicates, conflict)
    shifts = shift.target_shifts(dataset, counts)
    sample = _sample(dataset, clean_rows, seed, examples.columns)
    every = _sample(dataset, np.arange(len(dataset)), seed, examples.columns)  # with duplicates, which hide gaps
    column_findings = column_facts(examples, every)
    distances, words, costs, erasure, telltale = list[Distance](), {}, list[ShiftCost](), None, list[TelltaleWord]()
    if len(sample) > 1:
        say("measuring distances between domains")
        distances = shift.input_distances(examples, sample, seed=seed)
        words = shift.shared_words(examples, sample) if examples.kind == "text" else {}
        say("measuring headroom")
        costs, erasure = shift_costs(examples, sample), measure_erasure(examples, sample)
        say("searching for label errors")
        telltale = telltale_words(examples, every)
    errors = find_label_errors(examples, _rows_by_domain(dataset, clean_rows), seed=seed)
    verdict = conclude(distances, shifts, costs)
    sizes = [len(rows) for rows in sample.values()]
    compared = read_compared(None if runs is None else Path(runs), dataset) if dataset.targets is None else []
    grids = [
        *([headroom_grid(costs, compared, max(sizes))] if costs else []),
        *([] if erasure is None else [erasure_grid(erasure)]),
        column_grid(column_findings),
        facts.domain_grid(domains, task),
        facts.duplicate_grid(domains, _near_criterion(examples.kind, near)),
        facts.leak_grid(leaks),
        facts.example_grid(shown),
        shift.distance_grid(list(sample), distances),
        shift.label_grid(dataset.domains, shifts, task),
        shift.word_grid(words, min(sizes)),
        label_error_grid(errors, examples),
        telltale_grid(telltale),
    ]
    grids = [grid for grid in grids if grid.lines]
    ranked = None if label_errors is None else write_label_errors(Path(label_errors), errors.rows, examples)
    table, target = None, None
    if clean is not None:
        table = write_clean(Path(clean), data, dataset, clean_rows)
        target = commands.cleaned(table, dataset, len(clean_rows), task=task, columns=columns, settings=settings)
    target = target or commands.original(source, dataset, columns=columns, data_dir=data_dir, skip_bad=skip_bad)
    advice, command = advise(
        make_spec(dataset, task=task, settings=settings), examples.kind, verdict, domains, leaks, erasure,
        clean=None if table is None else str(table), more_domains=dataset.more_domains_hint,
        command=partial(commands.command, target, task, settings), columns=column_advice(column_findings),
    )  # fmt: skip
    sentences = [headline(verdict, len(domains), labelled=bool(shifts)), erasure and erasure_sentence(erasure)]
    finding = " ".join(filter(None, [*sentences, compared_sentence(costs, compared)]))
    advice = [*advice[:-1], *word_advice(telltale), *error_advice(errors, ranked), *advice[-1:]]
    page = None if out is None else Path(out)
    if page is not None:
        title = f"Holdfast: audit of {dataset.name}"
        write_audit(page, title=title, headline=finding, advice=advice, grids=grids, notes=dataset.notes)
    return Audit(
        name=dataset.name, kind=examples.kind, examples=len(dataset), headline=finding, advice=advice, command=command,
        domains=domains, duplicates=len(dataset) - len(duplicates.first), splits=leaks,
        overlaps=facts.overlaps(dataset, duplicates), shown=shown, distances=distances, labels=shifts, words=words,
        columns=column_findings, baseline=costs, erasure=erasure, compared=compared, verdict=verdict,
        dropped=facts.dropped(choice), grids=grids, notes=dataset.notes, label_errors=errors, telltale=telltale,
        report=page, clean=table, errors_file=ranked,
    )  # fmt: skip


def _rows_by_domain(dataset: Dataset, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return these rows per domain."""
    return {name: rows[dataset.domain[rows] == index] for index, name in enumerate(dataset.domains)}


def _sample(dataset: Dataset, candidates: np.ndarray, seed: int, columns: int) -> dict[str, np.ndarray]:
    """Return some of these rows per domain in random order; domains without any are omitted."""
    total = min(10 * SAMPLE, CELLS // max(1, columns))
    count = max(100, min(SAMPLE, total // len(dataset.domains)))
    rows = _rows_by_domain(dataset, candidates)
    return {
        name: np.random.default_rng(derive(seed, "audit", name)).permutation(selected)[:count]
        for name, selected in rows.items()
        if len(selected)
    } or {dataset.domains[0]: candidates[:0]}


def _near_criterion(kind: str, near: float) -> str:
    """Describe when two examples count as near duplicates."""
    if near == 1:
        return "not searched"
    if kind == "text":
        return f"Jaccard similarity of at least {near:g} between their sequences of {WIDTH} characters"
    if kind == "image":
        return f"perceptual hashes within {BITS} of 64 bits and a correlation of at least {CORRELATION:g}"
    return f"not searched for {'tables' if kind == 'mixed' else f'{kind}s'}"


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return asdict(value) | {name: getattr(value, name) for name in CONCLUSIONS.get(type(value), ())}
