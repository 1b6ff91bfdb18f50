"""predict: a model folder and a file of examples to a file of what the model says of each; no domain column is needed.

n examples, c classes
"""

from __future__ import annotations

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

SAID = {"tag": "sentences", "span": "answers", "respond": "responses", "masked": "texts"}
WITHOUT = (
    "this model folder holds no calibration and no measure of foreignness: probabilities are as the network gives "
    "them; fit the model again to have both"
)


@dataclass
class Prediction:
    """Where the predictions are and how many; of labels how many of each, and the accuracy where the file has them."""

    path: Path
    examples: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    scored: int = 0  # examples that got a label, and have one that the model knows
    right: int = 0
    what: str = "labels"
    abstained: int = 0
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float | None:
        return self.right / self.scored if self.scored else None


def predict(
    model: str | Path,
    data: str | Path | Dataset,
    out: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    device: str = "auto",
    calibrated: bool = True,
    abstain_above: float | None = None,
) -> Prediction:
    """Write what the model says of every example to `out`, piece by piece, so that a table may be of any length.

    That is id, label, one probability a class and how foreign the example is; or id and response, id, tokens and tags,
    id, answer and score, id, words and scores. Above `abstain_above`, a percentile of foreignness, there is no label.
    """
    out = Path(out)
    check_suffix(out)
    check_not_input("--out", out, data)
    saved, where = load_model(Path(model)), choose_device(device)
    done = Prediction(out, what=SAID.get(saved.task, "labels"))
    _check(saved, abstain_above, done)
    form = catalog.build("tasks", saved.task, options={}).data_form
    whole = saved.task not in ("classify", "respond")  # what it says are lists, whose kind is known at the end alone
    tables = (
        _table(
            saved, align_features(piece, saved.columns), where, done, calibrated=calibrated, abstain_above=abstain_above
        )
        for piece in load_chunks(data, columns=columns, form=form, rows=(1 << 62) if whole else WINDOW)
    )
    write_tables(out, tables, escape_formulas=True)
    return done


def _check(saved: SavedModel, abstain_above: float | None, done: Prediction) -> None:
    if saved.task == "classify" and saved.gauge is None:
        done.notes = (WITHOUT,)
    if abstain_above is None:
        return
    if saved.task != "classify":
        raise BadInput(f"--abstain-above is for classifiers, and this model is for the task {saved.task}: leave it out")
    if saved.gauge is None:
        raise BadInput(
            "this model folder holds no measure of foreignness, so it cannot abstain: fit the model again, or leave "
            "--abstain-above out"
        )
    if not 0 <= abstain_above <= 100:
        raise BadInput(f"--abstain-above is a percentile between 0 and 100, not {abstain_above:g}")


def _table(
    saved: SavedModel,
    piece: Dataset,
    device: torch.device,
    done: Prediction,
    *,
    calibrated: bool,
    abstain_above: float | None,
) -> pa.Table:
    """What the model says of a piece, added to what was counted of those before."""
    first, done.examples = done.examples, done.examples + len(piece)
    ids = [str(first + i + 1) for i in range(len(piece))] if piece.ids is None else list(piece.ids)
    if saved.answers:
        return pa.table({"id": ids, "response": pa.array(saved.responses(piece.raw, device=device), pa.string())})
    if saved.task != "classify":
        return pa.table({"id": ids, **saved.told(piece.raw, device=device)})
    judged = saved.judge(piece.raw, device=device, calibrated=calibrated)
    labels = np.asarray(saved.classes, dtype=object)[judged.probabilities.argmax(axis=1)]
    answered = np.ones(len(piece), dtype=bool)
    if abstain_above is not None and judged.foreign is not None:
        answered = judged.foreign <= abstain_above
    _count(done, saved.classes, labels, answered, piece)
    extra = {"foreign": judged.foreign, "undecided": judged.undecided}
    return pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "label": pa.array(labels, pa.string(), mask=~answered),
            **{f"p_{name}": judged.probabilities[:, i] for i, name in enumerate(saved.classes)},
            **{name: value for name, value in extra.items() if value is not None},
        }
    )


def _count(done: Prediction, known: tuple[str, ...], labels: np.ndarray, answered: np.ndarray, piece: Dataset) -> None:
    for name in known:
        done.counts[name] = done.counts.get(name, 0) + int((labels[answered] == name).sum())
    done.abstained += int((~answered).sum())
    if not piece.classes:
        return
    truth = np.asarray(piece.classes, dtype=object)[piece.y]
    fair = (piece.y >= 0) & np.isin(truth, np.asarray(known, dtype=object)) & answered
    done.scored += int(fair.sum())
    done.right += int((labels == truth)[fair].sum())
