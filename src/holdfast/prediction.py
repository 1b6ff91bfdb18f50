"""predict: a model folder and a file of examples to a file of what the model says of each; no domain column is needed.

n examples, c classes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from holdfast import catalog
from holdfast.comparison import load_data
from holdfast.core.errors import BadInput
from holdfast.core.files import write_text, write_whole
from holdfast.data.domain import Dataset
from holdfast.saved import load_model
from holdfast.settings import choose_device

SUFFIXES = (".csv", ".jsonl", ".parquet")
SAID = {"tag": "sentences", "span": "answers", "respond": "responses"}


@dataclass(frozen=True)
class Prediction:
    """Where the predictions are and how many; of labels how many of each, and the accuracy where the file has them."""

    path: Path
    examples: int
    counts: dict[str, int]
    accuracy: float | None
    scored: int
    what: str = "labels"


def predict(
    model: str | Path,
    data: str | Path | Dataset,
    out: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    device: str = "auto",
) -> Prediction:
    """Write what the model says of every example to `out`.

    That is id, label and one probability a class; or id and response, id, tokens and tags, id, answer and score.
    """
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise BadInput(f"cannot write '{out}': name a file that ends in {', '.join(SUFFIXES)}")
    saved = load_model(Path(model))
    form = catalog.make("tasks", saved.task, given={}).reads
    dataset = load_data(data, columns=columns, need=(), form=form)
    ids = list(dataset.ids) if dataset.ids is not None else [str(i + 1) for i in range(len(dataset))]
    if saved.answers:
        said = saved.responses(dataset.raw, device=choose_device(device))
        _write(pa.table({"id": ids, "response": said}), out)
        return Prediction(out, len(said), {}, None, 0, SAID[saved.task])
    if saved.task != "classify":
        told = saved.told(dataset.raw, device=choose_device(device))
        _write(pa.table({"id": ids, **told}), out)
        return Prediction(out, len(dataset), {}, None, 0, SAID[saved.task])
    found = saved.probabilities(dataset.raw, device=choose_device(device))
    classes = np.asarray(saved.classes, dtype=object)
    labels = classes[found.argmax(axis=1)]
    table = pa.table(
        {
            "id": ids,
            "label": labels.tolist(),
            **{f"p_{name}": found[:, i] for i, name in enumerate(saved.classes)},
        }
    )
    _write(table, out)
    accuracy, scored = _accuracy(dataset, labels, saved.classes)
    counts = {str(name): int((labels == name).sum()) for name in classes}
    return Prediction(out, len(dataset), counts, accuracy, scored)


def _accuracy(dataset: Dataset, labels: np.ndarray, known: tuple[str, ...]) -> tuple[float | None, int]:
    if not dataset.classes:
        return None, 0
    truth = np.asarray(dataset.classes, dtype=object)[dataset.y]
    fair = (dataset.y >= 0) & np.isin(truth, np.asarray(known, dtype=object))
    return (float((labels == truth)[fair].mean()) if fair.any() else None), int(fair.sum())


def _flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A list as one text with spaces between, since a csv file has no lists."""
    if not pa.types.is_list(column.type):
        return column
    return pa.chunked_array([[" ".join(each) for each in column.to_pylist()]])


def _write(table: pa.Table, out: Path) -> None:
    match out.suffix:
        case ".csv":
            table = pa.table({name: _flat(table.column(name)) for name in table.column_names})
            write_whole(out, lambda draft: pyarrow.csv.write_csv(table, draft))
        case ".parquet":
            write_whole(out, lambda draft: pyarrow.parquet.write_table(table, draft))
        case _:
            lines = table.to_pandas().to_json(orient="records", lines=True, force_ascii=False)
            write_text(out, lines if lines.endswith("\n") else lines + "\n")
