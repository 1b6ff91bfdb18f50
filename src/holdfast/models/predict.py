"""Write predictions of a model folder for a file of examples; no domain column is needed (n examples, c classes)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.align import align_features
from holdfast.data.dataset import Dataset
from holdfast.data.load import load_chunks
from holdfast.data.write import check_not_input, check_suffix, write_tables
from holdfast.models.saved import WINDOW, SavedModel, load_model
from holdfast.run.workspace import choose_device

OUTPUTS = {"tag": "sentences", "span": "answers", "respond": "responses", "masked": "texts"}
NOT_CALIBRATED = "the probabilities are uncalibrated and `foreign` is missing: fit the model again to calibrate it"


@dataclass
class Prediction:
    """Path and number of predictions; for classifiers also counts per label, and accuracy if the file has labels."""

    path: Path
    examples: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    scored: int = 0  # examples with a predicted label and a true label the model knows
    right: int = 0
    what: str = "labels"
    abstained: int = 0
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float | None:
        return self.right / self.scored if self.scored else None


def predict(
    model: str | Path, data: str | Path | Dataset, out: str | Path, *, columns: Mapping[str, str] | None = None,
    device: str = "auto", calibrated: bool = True, abstain_above: float | None = None,
) -> Prediction:  # fmt: skip
    """Write the predictions for every example to `out` in chunks, so that tables of any length fit in memory.

    Classifiers write id, label, one probability per class and `foreign`; other tasks id and response, id, tokens and
    tags, id, answer and score, or id, words and scores. Examples whose `foreign` percentile is above `abstain_above`
    get no label.
    """
    out = Path(out)
    check_suffix(out)
    check_not_input("--out", out, data)
    saved, target = load_model(Path(model)), choose_device(device)
    result = Prediction(out, what=OUTPUTS.get(saved.task, "labels"))
    _check(saved, abstain_above, result)
    form = catalog.build("tasks", saved.task, options={}).data_form
    at_once = saved.task not in ("classify", "respond")  # the type of list columns is known only at the end
    chunks = load_chunks(data, columns=columns, form=form, rows=(1 << 62) if at_once else WINDOW)
    tables = (
        _table(saved, align_features(chunk, saved.columns), target, result, calibrated, abstain_above)
        for chunk in chunks
    )
    write_tables(out, tables, escape_formulas=True)
    return result


def _check(saved: SavedModel, abstain_above: float | None, result: Prediction) -> None:
    if saved.task == "classify" and saved.calibration is None:
        result.notes = (NOT_CALIBRATED,)
    if abstain_above is None:
        return
    if saved.task != "classify":
        raise BadInput(f"--abstain-above works with classifiers only, this model has the task {saved.task}: remove it")
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
    ids = [str(first + i + 1) for i in range(len(chunk))] if chunk.ids is None else list(chunk.ids)
    if saved.task == "respond":
        return pa.table({"id": ids, "response": pa.array(saved.responses(chunk.raw, device=device), pa.string())})
    if saved.task != "classify":
        return pa.table({"id": ids, **saved.predict_columns(chunk.raw, device=device)})
    predictions = saved.predict(chunk.raw, device=device, calibrated=calibrated)
    labels = np.asarray(saved.classes, dtype=object)[predictions.probabilities.argmax(axis=1)]
    answered = np.ones(len(chunk), dtype=bool)
    if abstain_above is not None and predictions.foreign is not None:
        answered = predictions.foreign <= abstain_above
    _count(result, saved.classes, labels, answered, chunk)
    extra = {"foreign": predictions.foreign, "undecided": predictions.undecided}
    return pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "label": pa.array(labels, pa.string(), mask=~answered),
            **{f"p_{name}": predictions.probabilities[:, i] for i, name in enumerate(saved.classes)},
            **{name: value for name, value in extra.items() if value is not None},
        }
    )


def _count(
    result: Prediction, known: tuple[str, ...], labels: np.ndarray, answered: np.ndarray, chunk: Dataset
) -> None:
    for name in known:
        result.counts[name] = result.counts.get(name, 0) + int((labels[answered] == name).sum())
    result.abstained += int((~answered).sum())
    if not chunk.classes:
        return
    truth = np.asarray(chunk.classes, dtype=object)[chunk.y]
    scorable = (chunk.y >= 0) & np.isin(truth, np.asarray(known, dtype=object)) & answered
    result.scored += int(scorable.sum())
    result.right += int((labels == truth)[scorable].sum())
