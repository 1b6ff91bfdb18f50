"""Write predictions of a model folder for a file of examples; no domain column is needed (n examples, c classes)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset, is_finite
from holdfast.data.load import load_chunks
from holdfast.data.readers.checks import SKIPPED
from holdfast.data.readers.forms import READING
from holdfast.data.targets import SEPARATORS
from holdfast.data.write import check_not_input, check_suffix, write_tables
from holdfast.folders.format import SavedModel, load_model
from holdfast.folders.predictor import WINDOW
from holdfast.prediction.outputs import (
    calibrate,
    check_sets,
    chosen_names,
    coordinates,
    coverage_table,
    described,
    label_thresholds,
    predict_examples,
    predict_sets,
)
from holdfast.tasks.base import Structured
from holdfast.train.workspace import choose_device
from holdfast.uncertainty.arrays import Predicted
from holdfast.uncertainty.conformal import FEW, SAMPLE, Calibrated, Sets

NUMBERS = "numbers"
NOT_CALIBRATED = "the probabilities are uncalibrated and `foreign` is missing: fit the model again to calibrate it"


@dataclass
class SetSummary:
    """Prediction sets of a file: their coverage and size, and the coverage that was measured on left-out domains."""

    coverage: float
    method: str
    measured: list[dict[str, Any]]  # domain, examples, coverage, size
    examples: int = 0
    total: float = 0.0  # sum of the sizes of bounded sets
    unbounded: int = 0  # intervals without ends, because the example is too far from all calibration examples
    labelled: int = 0
    covered: int = 0

    def add(self, sets: Sets, y: np.ndarray, labelled: np.ndarray) -> None:
        """Add the sets of a chunk; `y` (n,) are true classes or numbers where `labelled`."""
        bounded = np.isfinite(sets.sizes)
        self.examples, self.unbounded = self.examples + len(y), self.unbounded + int((~bounded).sum())
        self.total += float(sets.sizes[bounded].sum())
        self.labelled += int(labelled.sum())
        self.covered += int(sets.covers(y)[labelled].sum())

    def json(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        bounded = self.examples - self.unbounded
        return {
            "coverage": self.coverage, "method": self.method, "measured": self.measured,
            "mean_size": self.total / bounded if bounded else None, "unbounded": self.unbounded,
            "labelled": self.labelled, "covered": self.covered / self.labelled if self.labelled else None,
        }  # fmt: skip


@dataclass
class Prediction:
    """Path and number of predictions; counts per predicted label, and scores if the file has labels."""

    path: Path
    examples: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    scored: int = 0  # examples with a predicted label and a true label the model knows
    right: int = 0
    what: str = "labels"
    abstained: int = 0
    notes: tuple[str, ...] = ()
    absolute: float = 0.0  # sums of the errors of predicted numbers
    squared: float = 0.0
    sets: SetSummary | None = None  # with a coverage

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions; None without labels, or if numbers are predicted."""
        return self.right / self.scored if self.scored and self.what != NUMBERS else None

    @property
    def scores(self) -> dict[str, float]:
        """RMSE and MAE of predicted numbers; empty without labels, or if classes are predicted."""
        if not self.scored or self.what != NUMBERS:
            return {}
        return {"rmse": math.sqrt(self.squared / self.scored), "mae": self.absolute / self.scored}


def predict(
    model: str | Path, data: str | Path | Dataset, out: str | Path, *, columns: Mapping[str, str] | None = None,
    device: str = "auto", calibrated: bool = True, abstain_above: float | None = None, carry: Sequence[str] = (),
    skip_bad: bool = False, coverage: float | None = None, sets: str = "split",
) -> Prediction:  # fmt: skip
    """Write the predictions for every example to `out` in chunks, so that tables of any length fit in memory.

    Classifiers write id, label (or labels), one probability per class and `foreign`; regressions id, prediction, the
    ends `low` and `high` of its interval and `foreign`; other tasks id and response, id, tokens and tags, id, answer
    and score, or id, words and scores. Examples whose `foreign` percentile is above `abstain_above` get no prediction.

    `carry` names columns of a table that are copied behind the predictions; one that has the name of a prediction
    column is written as `input_NAME`. Numbers of text files are numbers in jsonl and parquet files.

    With `skip_bad`, rows of a table with bad cells are left out and counted, and the ids of the others are still their
    rows in the file.

    With a `coverage` such as 0.9, the columns `set` and `set_size`, or `low` and `high`, hold prediction sets that are
    calibrated on left-out domains with the method `sets`: `split`, `mondrian` or `weighted`.
    """
    out = Path(out)
    check_suffix(out)
    check_not_input("--out", out, data)
    saved, target = load_model(Path(model)), choose_device(device)
    task = saved.build_task()
    result = Prediction(out, what=task.unit)
    _check_abstention(saved, abstain_above)
    if saved.predicts and saved.calibration is None:
        result.notes = (NOT_CALIBRATED,)
    at_once = isinstance(task, Structured)  # the type of list columns is known only at the end
    chunks = partial(
        load_chunks, data, columns=saved.read_columns(columns), form=task.data_form,
        rows=(1 << 62) if at_once else WINDOW, skip_bad=skip_bad, carry=carry,
    )  # fmt: skip
    wanted = None
    if coverage is not None:
        if not calibrated:
            raise BadInput("prediction sets need calibrated probabilities: remove --uncalibrated or --coverage")
        check_sets(saved, coverage, sets)
        new = _sampled_features(saved, chunks(), target) if sets == "weighted" else None
        wanted = calibrate(saved, coverage, sets, new=new)
        result.sets = SetSummary(coverage, sets, coverage_table(saved, coverage, sets))
        if sets == "weighted" and wanted.effective < FEW:
            result.notes += (
                f"the new examples differ so much from the left-out domains that only {wanted.effective:.0f} "
                "calibration examples are effective: the sets may cover less than stated",
            )
    tables = map(_Tables(saved, target, result, calibrated, abstain_above, wanted).table, chunks())
    if carry and out.suffix != ".csv" and str(data).lower().endswith((".csv", ".tsv")):
        tables = _with_numbers(tables, len(carry))
    write_tables(out, tables, escape_formulas=True)
    return result


def _with_numbers(tables: Iterable[pa.Table], count: int) -> Iterator[pa.Table]:
    """Convert the last `count` columns, cells of a text file, to numbers where all cells of the first table are.

    A cell with a leading zero, such as a postal code, is not a number.
    """
    kinds: dict[str, pa.DataType] = {}
    for number, table in enumerate(tables):
        for name in table.column_names[-count:]:
            texts = table[name].to_pandas().replace("", None)
            values = pa.array(pd.to_numeric(texts, errors="coerce"), from_pandas=True)
            fits = values.null_count == texts.isna().sum() and not texts.str.match(r"[+-]?0\d", na=False).any()
            if number == 0 and fits and values.null_count < len(values):
                kinds[name] = values.type
            if name in kinds:
                try:
                    column = (values if fits else table[name]).cast(kinds[name])
                except pa.ArrowInvalid as error:
                    fix = "write a csv file, which keeps all cells as they are"
                    raise BadInput(f"column '{name}' of --with begins with numbers of another kind: {fix}") from error
                table = table.set_column(table.column_names.index(name), name, column)
        yield table


def _check_abstention(saved: SavedModel, abstain_above: float | None) -> None:
    if abstain_above is None:
        return
    if not saved.predicts:
        raise BadInput(f"--abstain-above does not support models of the task {saved.task}: remove it")
    if saved.calibration is None:
        raise BadInput("--abstain-above needs `foreign`, which this model folder does not have: fit the model again")
    if not 0 <= abstain_above <= 100:
        raise BadInput(f"--abstain-above must be a percentile between 0 and 100; got {abstain_above:g}")


def _sampled_features(saved: SavedModel, chunks: Iterable[Dataset], device: torch.device) -> np.ndarray | None:
    """Return features (m, d) of a uniform sample of the complete file, at most SAMPLE rows; None without rows."""
    rng, keys, features = np.random.default_rng(0), np.zeros(0), None
    for chunk in chunks:
        drawn = rng.random(len(chunk))  # the rows with the smallest numbers form the sample
        limit = keys.max() if len(keys) >= SAMPLE else 1.0
        rows = np.sort(np.argsort(drawn)[:SAMPLE])
        rows = rows[drawn[rows] < limit]
        new = coordinates(saved, saved.align(chunk.subset(rows)).raw, device=device)
        features = new if features is None else np.concatenate([features, new])
        keys = np.concatenate([keys, drawn[rows]])
        order = np.argsort(keys)[:SAMPLE]
        keys, features = keys[order], features[order]
    return features


@dataclass(frozen=True)
class _Tables:
    """Tables of predictions, chunk by chunk; every chunk is added to the counts of the result."""

    saved: SavedModel
    device: torch.device
    result: Prediction
    calibrated: bool
    abstain_above: float | None
    sets: Calibrated | None

    def table(self, chunk: Dataset) -> pa.Table:
        """Return the predictions of a chunk, with the columns of the input that are copied."""
        # how the file was read, and which rows were left out
        notes = (note for note in chunk.notes if READING in note or note.startswith(SKIPPED))
        self.result.notes = tuple(dict.fromkeys((*self.result.notes, *notes)))
        table = self._predictions(self.saved.align(chunk))
        if chunk.carried is not None:
            for name, column in zip(chunk.carried.column_names, chunk.carried.columns, strict=True):
                table = table.append_column(f"input_{name}" if name in table.column_names else name, column)
        return table

    def _predictions(self, chunk: Dataset) -> pa.Table:
        saved, result = self.saved, self.result
        first, result.examples = result.examples, result.examples + len(chunk)
        rows = range(first + 1, first + len(chunk) + 1) if chunk.file_rows is None else chunk.file_rows.tolist()
        ids = [str(row) for row in rows] if chunk.ids is None else list(chunk.ids)
        if not saved.predicts:
            return pa.table({"id": ids, **saved.predict_columns(chunk.raw, device=self.device)})
        domains = [chunk.domains[i] for i in chunk.domain]
        predicted = predict_examples(
            saved, chunk.raw, device=self.device, calibrated=self.calibrated, sets=self.sets, domains=domains
        )
        answered = np.ones(len(chunk), dtype=bool)
        if self.abstain_above is not None and predicted.foreign is not None:
            answered = predicted.foreign <= self.abstain_above
        result.abstained += int((~answered).sum())
        self._score(predicted, answered, chunk)
        columns = {name: self._column(values, ~answered) for name, values in described(saved, predicted).items()}
        if saved.predicts != "numbers":
            columns |= {f"p_{name}": predicted.values[:, i] for i, name in enumerate(saved.classes)}
        if self.sets is not None and saved.predicts == "classes":
            sets = predict_sets(saved, self.sets, chunk.raw, predicted.values, domains=domains, device=self.device)
            columns |= self._sets(sets, answered, chunk)
        extra = {"foreign": predicted.foreign, "undecided": predicted.undecided}
        columns |= {name: value for name, value in extra.items() if value is not None}
        return pa.table({"id": pa.array(ids, pa.string()), **columns})

    def _column(self, values: Any, masked: np.ndarray) -> pa.Array:
        """Return numbers, names or sets of names as a column without the masked ones."""
        if isinstance(values, np.ndarray):
            return pa.array(values, mask=masked | np.isnan(values))
        separator = self.saved.record.spec.get("task_args", {}).get("separator") or SEPARATORS[0]
        texts = [value if isinstance(value, str) else separator.join(value) for value in values]
        return pa.array(texts, pa.string(), mask=masked)

    def _score(self, predicted: Predicted, answered: np.ndarray, chunk: Dataset) -> None:
        """Count the predictions, and score those of examples whose label the model knows."""
        saved, result, values = self.saved, self.result, predicted.values
        chosen = right = np.zeros((len(values), 0), dtype=bool)
        if saved.predicts == "numbers":
            numbers = target_numbers(chunk)
            scored = np.isfinite(numbers) & answered
            errors = (values[:, 0] - numbers)[scored]
            result.absolute += float(np.abs(errors).sum())
            result.squared += float((errors**2).sum())
            if result.sets is not None and predicted.ends is not None:
                result.sets.add(Sets(predicted.ends), numbers, scored)
        elif saved.predicts == "labels":
            chosen, scored = values >= label_thresholds(saved), answered & (chunk.y >= 0).any()
            if scored.any():
                truths: Dataset = saved.build_task().convert(chunk)
                pairs = zip(
                    chosen_names(saved.classes, chosen),
                    chosen_names(truths.classes, np.asarray(truths.targets)),
                    strict=True,
                )
                right = np.asarray([set(names) == set(known) for names, known in pairs])
        else:
            codes, truth = values.argmax(axis=1), class_indices(saved, chunk)
            chosen, scored, right = (
                codes[:, None] == np.arange(values.shape[1]),
                (truth >= 0) & answered,
                codes == truth,
            )
        result.scored += int(scored.sum())
        result.right += int(right[scored].sum())
        for name, count in zip(saved.classes, chosen[answered].sum(axis=0).tolist(), strict=False):
            result.counts[name] = result.counts.get(name, 0) + count

    def _sets(self, sets: Sets, answered: np.ndarray, chunk: Dataset) -> dict[str, Any]:
        """Return the classes of every set as one text, and their number."""
        assert self.result.sets is not None
        classes, known = self.saved.classes, class_indices(self.saved, chunk)
        self.result.sets.add(sets, known.clip(0), (known >= 0) & answered)
        # without a separator that occurs in no name, the text is a JSON list
        separator = next((each for each in SEPARATORS if not any(each in name for name in classes)), None)
        join = separator.join if separator else partial(json.dumps, ensure_ascii=False)
        texts, size = map(join, chosen_names(classes, sets.values)), sets.sizes.astype(np.int64)
        return {"set": pa.array(list(texts), pa.string(), mask=~answered), "set_size": pa.array(size, mask=~answered)}


def target_numbers(chunk: Dataset) -> np.ndarray:
    """Return the labels of a file to predict as numbers (n,); nan where there is none."""
    if chunk.targets is not None:
        return chunk.targets
    return np.asarray([*(float(name) if is_finite(name) else np.nan for name in chunk.classes), np.nan])[chunk.y]


def class_indices(saved: SavedModel, dataset: Dataset) -> np.ndarray:
    """Return the labels (n,) of a file as classes of the model; -1 without a label that it knows."""
    known = {name: code for code, name in enumerate(saved.classes)}
    return np.asarray([*(known.get(name, -1) for name in dataset.classes), -1], dtype=np.int64)[dataset.y]
