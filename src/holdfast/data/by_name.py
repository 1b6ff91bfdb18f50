"""Features of a table in the order that a model learned them: found by their names, wherever they stand.

n examples, d features
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.columns import listed
from holdfast.data.domain import Dataset
from holdfast.data.raw import Vectors


def in_order(dataset: Dataset, learned: Sequence[str] | None) -> Dataset:
    """The data set with its features as the model has them, others left aside; without names they go by position."""
    there = dataset.columns
    if learned is None or there is None or there == tuple(learned):
        return dataset
    place = {name: i for i, name in enumerate(there)}
    missing = [name for name in learned if name not in place]
    if missing:
        has = f" (it has {listed(there)})" if there else ""
        raise BadInput(
            f"{dataset.name} lacks numbers that this model was trained on: {listed(missing)}{has}; "
            "rename or add columns"
        )
    rows = dataset.raw.take(np.arange(len(dataset))).numpy()  # (n, d)
    return replace(dataset, raw=Vectors(rows[:, [place[name] for name in learned]]), columns=tuple(learned))
