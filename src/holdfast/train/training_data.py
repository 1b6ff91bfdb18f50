"""Data to train on: a data set that fits a task, and remarks on what its scores will hide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import catalog
from holdfast.core.errors import BadInput, check_known
from holdfast.data import load
from holdfast.data.dataset import Dataset
from holdfast.data.readers.columns import listed
from holdfast.data.readers.in_memory import Source
from holdfast.data.splits import TRAIN
from holdfast.data.unlabelled import EMPTY_LABELS
from holdfast.spec import Spec
from holdfast.tasks.base import Task
from holdfast.train.plan import small_domain_note

RARE_CLASS = 0.05  # largest fraction of the rows of a rare class


def needs_labels(task: str | None) -> bool:
    """Whether a task trains on class labels; None is `classify`."""
    return "label" in catalog.build("tasks", task or Spec.task, options={}).needs


def absent_classes_note(dataset: Dataset) -> str:
    """Return a note on classes that some labelled domains do not have, or an empty string."""
    present = {name: np.unique(dataset.y[dataset.rows_of(name)]) for name in dataset.domains}
    lacking = {
        name: [dataset.classes[i] for i in range(len(dataset.classes)) if i not in codes]
        for name, codes in present.items() if (codes >= 0).any()
    }  # fmt: skip
    lists = [f"'{name}' has no {listed(classes, limit=5)}" for name, classes in lacking.items() if classes]
    return f"classes are missing in some domains: {'; '.join(lists[:5])}{' ...' * (len(lists) > 5)}" if lists else ""


def imbalance_note(dataset: Dataset, metric: str) -> str:
    """Return a note on rare classes if the metric hardly depends on them, or an empty string."""
    counts = np.bincount(dataset.y[dataset.y >= 0], minlength=len(dataset.classes))
    limit = min(RARE_CLASS, 0.5 / max(1, len(counts)))  # of many balanced classes, none is rare
    shares = {dataset.classes[i]: counts[i] / counts.sum() for i in np.argsort(counts) if counts[i] > 0}
    rare = [name for name, share in shares.items() if share <= limit]
    if metric != "accuracy" or not rare:
        return ""
    percent = 100 * sum(shares[name] for name in rare)
    share = f"{percent:.0f}%" if percent >= 1 else f"{percent:.1g}%"
    cause = f"so that accuracy hardly shows whether {'they are' if len(rare) > 1 else 'it is'} recognised"
    words = f"classes {listed(rare, limit=5)} have" if len(rare) > 1 else f"class {rare[0]!r} has"
    return f"the {words} only {share} of the rows, {cause}: use --metric macro_f1 or balanced_accuracy"


def only_tested_note(dataset: Dataset) -> str:
    """Return a note on domains of which no row is marked for training, or an empty string."""
    if dataset.split is None:
        return ""
    names = [name for name in dataset.domains if not (dataset.split[dataset.rows_of(name)] == TRAIN).any()]
    if not names or len(names) == len(dataset.domains):
        return ""
    return f"the split column marks no row of {listed(names, limit=5)} for training, so that they are only tested"


def scoring_notes(dataset: Dataset, task: str, metric: str) -> list[str]:
    """Return notes on what scores hide: missing and rare classes, small domains, domains that are only tested.

    Empty ones are included.
    """
    counts = np.bincount(dataset.domain[dataset.y >= 0] if dataset.unlabelled else dataset.domain)
    small = small_domain_note({name: int(n) for name, n in zip(dataset.domains, counts, strict=False) if n})
    classes = [absent_classes_note(dataset), imbalance_note(dataset, metric)] if task == "classify" else []
    return [*classes, small, only_tested_note(dataset)]


@dataclass(frozen=True)
class DataOptions:
    """Where labelled examples come from, and how they are read."""

    data: Source
    columns: Mapping[str, str] | None = None
    data_dir: Path | None = None
    examples: int | None = None  # per domain, at most
    unlabelled: Source | None = None  # examples without labels to adapt to
    empty_labels: str = EMPTY_LABELS[0]
    skip_bad: bool = False  # leave rows of tables with bad cells out

    def load(self, settings: Mapping[str, Any]) -> Dataset:
        """Read the data and check that the task of these settings can be trained on it."""
        return training_data(task=settings.get("task"), settings=settings, **vars(self))

    def words(self) -> list[str]:
        """Return the words that name the data on the command line; empty for data from memory."""
        if not isinstance(self.data, str | Path):
            return []
        pairs = (self.columns or {}).items()
        words = [str(self.data), *(word for pair in pairs for word in ("--column", "=".join(pair)))]
        words += [] if self.examples is None else ["--examples", str(self.examples)]
        return words + ([] if self.data_dir is None else ["--data-dir", str(self.data_dir)])

    def report_words(self) -> list[str]:
        """Return these words with the options of unlabelled examples and bad rows, for a command in the report."""
        words = self.words()
        words += ["--unlabelled", str(self.unlabelled)] if words and isinstance(self.unlabelled, str | Path) else []
        words += ["--empty-labels", self.empty_labels] if words and self.empty_labels != EMPTY_LABELS[0] else []
        return words + (["--skip-bad"] if words and self.skip_bad else [])


def training_data(
    data: Source,
    *,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
    examples: int | None = None,
    unlabelled: Source | None = None,
    empty_labels: str = "error",
    settings: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> Dataset:
    """Load a data set and check that a task can be trained on it; `examples` limits the examples per domain.

    Without a task, numeric labels with many values are the targets of a regression, and other labels are classes.
    `settings` may contain settings of the task, such as `task.separator`.

    `unlabelled` is a source of examples without labels to adapt to; with `empty_labels="unlabelled"` so are the rows
    whose label is empty. With `skip_bad`, rows of tables with bad cells are left out.
    """
    options = {key.removeprefix("task."): value for key, value in (settings or {}).items() if key.startswith("task.")}
    target: Task = catalog.build("tasks", task or Spec.task, options=options)
    check_known("--empty-labels", empty_labels, EMPTY_LABELS)
    adapts = unlabelled is not None or empty_labels != EMPTY_LABELS[0]
    if adapts and (task or Spec.task) != "classify":
        raise BadInput(f"the task {task} does not use unlabelled examples: leave --unlabelled and --empty-labels out")
    return load.training_data(
        data, target, inferred=not task, columns=columns, data_dir=data_dir, examples=examples, unlabelled=unlabelled,
        empty_labels=empty_labels, skip_bad=skip_bad,
    )  # fmt: skip
