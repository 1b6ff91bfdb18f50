"""Data to train on: a data set that fits a task, and remarks on what its scores will hide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
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


@dataclass(kw_only=True, eq=False)
class DataOptions:
    """How labelled examples are read."""

    columns: Mapping[str, str] | None = None  # role -> name of the column
    data_dir: Path | None = None
    examples: int | None = None  # per domain, at most
    unlabelled: Source | None = None  # examples without labels to adapt to
    empty_labels: str = EMPTY_LABELS[0]  # or unlabelled: rows with an empty label are examples to adapt to
    skip_bad: bool = False  # leave rows of tables with bad cells out, and count them

    def load(self, data: Source, settings: Mapping[str, Any] | None = None) -> Dataset:
        """Read the data and check that the task of these settings can be trained on it.

        Without a task, numeric labels with many values are the targets of a regression, and other labels are classes.
        """
        settings = settings or {}
        task, prefix = settings.get("task"), "task."
        options = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
        target: Task = catalog.build("tasks", task or Spec.task, options=options)
        check_known("--empty-labels", self.empty_labels, EMPTY_LABELS)
        adapts = self.unlabelled is not None or self.empty_labels != EMPTY_LABELS[0]
        if adapts and (task or Spec.task) != "classify":
            fix = "leave --unlabelled and --empty-labels out"
            raise BadInput(f"the task {task} does not use unlabelled examples: {fix}")
        reading = {each.name: getattr(self, each.name) for each in fields(DataOptions)}
        return load.training_data(data, target, inferred=not task, **reading)

    def words(self, data: Source) -> list[str]:
        """Return the words that name the data on the command line; empty for data from memory."""
        if not isinstance(data, str | Path):
            return []
        pairs = (self.columns or {}).items()
        words = [str(data), *(word for pair in pairs for word in ("--column", "=".join(pair)))]
        return words + ([] if self.data_dir is None else ["--data-dir", str(self.data_dir)])

    def report_words(self, data: Source) -> list[str]:
        """Return these words with all other options of the data, for a command in the report."""
        words, named = self.words(data), isinstance(self.unlabelled, str | Path)
        words += ["--examples", str(self.examples)] if words and self.examples is not None else []
        words += ["--unlabelled", str(self.unlabelled)] if words and named else []
        words += ["--empty-labels", self.empty_labels] if words and self.empty_labels != EMPTY_LABELS[0] else []
        return words + (["--skip-bad"] if words and self.skip_bad else [])


def training_data(
    data: Source, *, task: str | None = None, settings: Mapping[str, Any] | None = None, **options: Any
) -> Dataset:
    """Load a data set with `DataOptions` and check that a task can be trained on it."""
    return DataOptions(**options).load(data, {**(settings or {}), "task": task})
