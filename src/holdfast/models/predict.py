"""Write predictions of a model folder for a file of examples; no domain column is needed (n examples, c classes)."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset, is_finite
from holdfast.data.load import load_chunks
from holdfast.data.readers.cells import READING, SKIPPED
from holdfast.data.targets import SEPARATORS
from holdfast.data.write import check_not_input, check_suffix, write_tables
from holdfast.models.outputs import LabelPredictions, NumberPredictions, chosen_names, predict_labels, predict_numbers
from holdfast.models.saved import WINDOW, ClassPredictions, SavedModel, load_model
from holdfast.run.workspace import choose_device

NUMBERS = "numbers"
OUTPUTS = {"regress": NUMBERS, "tag": "sentences", "span": "answers", "respond": "responses", "masked": "texts"}
NOT_CALIBRATED = "the probabilities are uncalibrated and `foreign` is missing: fit the model again to calibrate it"


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
    skip_bad: bool = False,
) -> Prediction:  # fmt: skip
    """Write the predictions for every example to `out` in chunks, so that tables of any length fit in memory.

    Classifiers write id, label (or labels), one probability per class and `foreign`; regressions id, prediction, the
    ends `low` and `high` of its interval and `foreign`; other tasks id and response, id, tokens and tags, id, answer
    and score, or id, words and scores. Examples whose `foreign` percentile is above `abstain_above` get no prediction.

    `carry` names columns of a table that are copied behind the predictions; one that has the name of a prediction
    column is written as `input_NAME`. With `skip_bad`, rows of a table with bad cells are left out and counted, and
    the ids of the others are still their rows in the file.
    """
    out = Path(out)
    check_suffix(out)
    check_not_input("--out", out, data)
    saved, target = load_model(Path(model)), choose_device(device)
    result = Prediction(out, what=OUTPUTS.get(saved.task, "labels"))
    _check(saved, abstain_above, result)
    form = catalog.build("tasks", saved.task, options={}).data_form
    at_once = not saved.predicts and saved.task != "respond"  # the type of list columns is known only at the end
    chunks = load_chunks(
        data, columns=saved.read_columns(columns), form=form, rows=(1 << 62) if at_once else WINDOW, skip_bad=skip_bad,
        carry=carry,
    )  # fmt: skip
    tables = (
        _with_carried(_table(saved, saved.align(chunk), target, result, calibrated, abstain_above), chunk)
        for chunk in _noted(chunks, result)
    )
    write_tables(out, tables, escape_formulas=True)
    return result


def _noted(chunks: Iterable[Dataset], result: Prediction) -> Iterator[Dataset]:
    """Yield the chunks, and add to the result how the file was read and which rows were left out."""
    for chunk in chunks:
        notes = (note for note in chunk.notes if READING in note or note.startswith(SKIPPED))
        result.notes = tuple(dict.fromkeys((*result.notes, *notes)))
        yield chunk


def _with_carried(table: pa.Table, chunk: Dataset) -> pa.Table:
    """Append the columns of the input that are copied."""
    if chunk.carried is None:
        return table
    for name, column in zip(chunk.carried.column_names, chunk.carried.columns, strict=True):
        table = table.append_column(f"input_{name}" if name in table.column_names else name, column)
    return table


def _check(saved: SavedModel, abstain_above: float | None, result: Prediction) -> None:
    if saved.predicts and saved.calibration is None:
        result.notes = (NOT_CALIBRATED,)
    if abstain_above is None:
        return
    if not saved.predicts:
        raise BadInput(f"--abstain-above does not support models of the task {saved.task}: remove it")
    if saved.calibration is None:
        raise BadInput("--abstain-above needs `foreign`, which this model folder does not have: fit the model again")
    if not 0 <= abstain_above <= 100:
        raise BadInput(f"--abstain-above must be a percentile between 0 and 100; got {abstain_above:g}")


def _table(
    saved: SavedModel, chunk: Dataset, device: torch.device, result: Prediction, calibrated: bool,
    abstain_above: float | None,
) -> pa.Table:  # fmt: skip
    """Return the predictions for a chunk and add it to the counts."""
    first, result.examples = result.examples, result.examples + len(chunk)
    rows = range(first + 1, first + len(chunk) + 1) if chunk.file_rows is None else chunk.file_rows.tolist()
    ids = [str(row) for row in rows] if chunk.ids is None else list(chunk.ids)
    if saved.task == "respond":
        return pa.table({"id": ids, "response": pa.array(saved.responses(chunk.raw, device=device), pa.string())})
    if not saved.predicts:
        return pa.table({"id": ids, **saved.predict_columns(chunk.raw, device=device)})
    answer: NumberPredictions | LabelPredictions | ClassPredictions
    if saved.predicts == "numbers":
        answer = predict_numbers(saved, chunk.raw, device=device)
    elif saved.predicts == "labels":
        answer = predict_labels(saved, chunk.raw, device=device)
    else:
        answer = saved.predict(chunk.raw, device=device, calibrated=calibrated)
    answered = np.ones(len(chunk), dtype=bool)
    if abstain_above is not None and answer.foreign is not None:
        answered = answer.foreign <= abstain_above
    result.abstained += int((~answered).sum())
    if isinstance(answer, NumberPredictions):
        columns = _number_columns(answer, answered, chunk, result)
    elif isinstance(answer, LabelPredictions):
        columns = _label_columns(saved, answer, answered, chunk, result)
    else:
        columns = _class_columns(saved, answer, answered, chunk, result)
    extra = {"foreign": answer.foreign, "undecided": answer.undecided}
    columns |= {name: value for name, value in extra.items() if value is not None}
    return pa.table({"id": pa.array(ids, pa.string()), **columns})


def _class_columns(
    saved: SavedModel, answer: ClassPredictions, answered: np.ndarray, chunk: Dataset, result: Prediction
) -> dict[str, Any]:
    labels = np.asarray(saved.classes, dtype=object)[answer.probabilities.argmax(axis=1)]
    _count(result, saved.classes, labels, answered, chunk)
    probabilities = {f"p_{name}": answer.probabilities[:, i] for i, name in enumerate(saved.classes)}
    return {"label": pa.array(labels, pa.string(), mask=~answered), **probabilities}


def _number_columns(
    answer: NumberPredictions, answered: np.ndarray, chunk: Dataset, result: Prediction
) -> dict[str, Any]:
    truth = target_numbers(chunk)
    scorable = np.isfinite(truth) & answered
    errors = (answer.values - truth)[scorable]
    result.scored += int(scorable.sum())
    result.absolute += float(np.abs(errors).sum())
    result.squared += float((errors**2).sum())
    columns = {"prediction": answer.values, "low": answer.low, "high": answer.high}
    return {name: pa.array(each, mask=~answered) for name, each in columns.items() if each is not None}


def target_numbers(chunk: Dataset) -> np.ndarray:
    """Return the labels of a file to predict as numbers (n,); nan where there is none."""
    if chunk.targets is not None:
        return chunk.targets
    return np.asarray([*(float(name) if is_finite(name) else np.nan for name in chunk.classes), np.nan])[chunk.y]


def _label_columns(
    saved: SavedModel, answer: LabelPredictions, answered: np.ndarray, chunk: Dataset, result: Prediction
) -> dict[str, Any]:
    separator = saved.record.spec.get("task_args", {}).get("separator") or SEPARATORS[0]
    texts = [separator.join(chosen_names(saved.classes, row)) for row in answer.predicted]
    for i, name in enumerate(saved.classes):
        result.counts[name] = result.counts.get(name, 0) + int(answer.predicted[answered, i].sum())
    if (chunk.y >= 0).any():
        truth: Dataset = saved.build_task().convert(chunk)
        names = [set(chosen_names(truth.classes, row)) for row in (truth.targets if truth.targets is not None else ())]
        pairs = zip(answer.predicted, names, strict=True)
        right = [set(chosen_names(saved.classes, row)) == known for row, known in pairs]
        result.scored += int(answered.sum())
        result.right += int((np.asarray(right) & answered).sum())
    probabilities = {f"p_{name}": answer.probabilities[:, i] for i, name in enumerate(saved.classes)}
    return {"labels": pa.array(texts, pa.string(), mask=~answered), **probabilities}


def _count(
    result: Prediction, known: tuple[str, ...], labels: np.ndarray, answered: np.ndarray, chunk: Dataset
) -> None:
    for name in known:
        result.counts[name] = result.counts.get(name, 0) + int((labels[answered] == name).sum())
    if not chunk.classes:
        return
    truth = np.asarray(chunk.classes, dtype=object)[chunk.y]
    scorable = (chunk.y >= 0) & np.isin(truth, np.asarray(known, dtype=object)) & answered
    result.scored += int(scorable.sum())
    result.right += int((labels == truth)[scorable].sum())
