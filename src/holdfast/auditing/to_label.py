"""Choose which new rows to label next: uncertain, foreign, and different from each other.

The score of a row is the mean of two percentiles: of its uncertainty among the new rows, 1 minus the difference of
the two largest probabilities, and its `foreign` percentile. Rows are chosen one by one, and the score is multiplied
by the distance to the nearest chosen row in units of the median distance, at most 1 (n rows, d features).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.auditing.clean import original_rows
from holdfast.core.errors import BadInput
from holdfast.data.write import check_not_input, check_suffix, write_tables
from holdfast.folders.format import load_model
from holdfast.train.workspace import choose_device
from holdfast.uncertainty.calibration import percentiles
from holdfast.uncertainty.left_out import Projection

MAX_CANDIDATES = 2000  # rows with the largest scores among which the choice is diverse; ten times the choice if more


@dataclass(frozen=True)
class Labelling:
    """Chosen rows, from 1 and in the order of their choice, and the table to fill in."""

    path: Path
    rows: list[int]
    examples: int
    column: str  # to fill in
    notes: tuple[str, ...] = ()


def choose_rows(score: np.ndarray, features: np.ndarray, most: int) -> np.ndarray:
    """Return the chosen rows in order, from scores (n,) in 0 to 1 and features (n, d)."""
    order = np.argsort(-score, kind="stable")[: max(MAX_CANDIDATES, 10 * most)]
    x, values = features[order].astype(np.float64), score[order] + 1e-9
    typical = float(np.median(np.linalg.norm(x - np.median(x, axis=0), axis=1))) or 1.0
    nearest, chosen = np.full(len(order), np.inf), list[int]()
    available = np.ones(len(order), dtype=bool)
    for _ in range(min(most, len(order))):
        gain = np.where(available, values * np.minimum(1.0, nearest / typical), -1.0)
        best = int(gain.argmax())
        chosen.append(best)
        available[best] = False
        nearest = np.minimum(nearest, np.linalg.norm(x - x[best], axis=1))
    return order[chosen]


def rows_to_label(
    model: str | Path, data: str | Path, out: str | Path, *, most: int = 100,
    columns: Mapping[str, str] | None = None, device: str = "auto",
) -> Labelling:  # fmt: skip
    """Write the rows of a file to label next, with an empty label column, for `holdfast adapt`.

    The table has all columns of the file, the predicted class, and the score.
    """
    out = Path(out)
    if most < 1:
        raise BadInput(f"--most must be at least 1, got {most}")
    check_suffix(out)
    check_not_input("--out", out, data)
    saved, target = load_model(Path(model)), choose_device(device)
    if saved.predicts != "classes":
        raise BadInput(f"rows to label are chosen for classes, not for the task {saved.task}: use a classifier")
    dataset = saved.read(data, columns=columns, need=())
    raw = dataset.raw
    predicted = saved.predict(raw, device=target)
    top = np.sort(predicted.values, axis=1)[:, -2:]
    uncertain = 1 - (top[:, -1] - top[:, 0]) if top.shape[1] == 2 else np.zeros(len(top))
    score = percentiles(uncertain, np.sort(uncertain)) / 100
    if predicted.foreign is not None:
        score = (score + predicted.foreign / 100) / 2
    features = saved.observe(raw, device=target).features
    projection = Projection.fit(features)
    chosen = choose_rows(score, features if projection is None else projection(features), most)
    column = (columns or {}).get("label", "label")
    table = original_rows(data, dataset, chosen)
    names = [saved.classes[i] for i in predicted.values[chosen].argmax(axis=1)]
    new = {column: [""] * len(chosen), "predicted": names, "score": [f"{value:.4f}" for value in score[chosen]]}
    for name, values in new.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array(values, pa.string()))
    write_tables(out, iter([table]), escape_formulas=True)
    numbers = chosen + 1 if dataset.file_rows is None else dataset.file_rows[chosen]
    return Labelling(out, numbers.tolist(), len(dataset), column, dataset.notes)
