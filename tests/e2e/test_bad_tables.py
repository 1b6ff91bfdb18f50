"""Tables as people have them: each kind of bad input is one clear message or a treatment that a note states."""

import time
from typing import Any

import numpy as np
import pandas as pd
import pytest

from holdfast.auditing.columns import column_facts
from holdfast.auditing.examples import Examples
from holdfast.core.errors import BadInput
from holdfast.train.training_data import training_data

ROWS = 120


def frame(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS).round(2)})
    roles = {"label": ["x", "y"] * (ROWS // 2), "domain": ["p", "q", "r"] * (ROWS // 3)}
    return data.assign(**columns, **roles)


def written(folder, data: pd.DataFrame, name: str = "data.csv"):
    data.to_csv(folder / name, index=False)
    return folder / name


def day(i: int) -> int:
    return i % 28 + 1


# column -> text of the note with which it is read
NOTED = {
    "decimal commas": ([f"{i},5" for i in range(ROWS)], "'m' is read as numbers with a decimal comma"),
    "percent signs": ([f"{i % 90}%" for i in range(ROWS)], "'m' is read as numbers with a percent sign (12% is 0.12)"),
    "a currency": ([f"$ {i}.50" for i in range(ROWS)], "'m' is read as numbers with the currency $"),
    "two currencies": (
        [f"{'$€'[i % 2]} {i}" for i in range(ROWS)], "'m' has numbers in several forms, such as '$ 0' and '€ 1'"),
    "numbers and texts": (
        [("1.5", "two", "3", "x")[i % 4] for i in range(ROWS)], "'m' has numbers and texts, such as '1.5' and 'two'"),
    "dates in two forms": (
        [f"{day(i):02d}.01.2024" if i % 2 else f"2024-01-{day(i):02d}" for i in range(ROWS)],
        "'m' has dates in several forms, such as '2024-01-01' and '02.01.2024'"),
    "a constant number": ([7] * ROWS, "no information: 'm' (a single value)"),
    "a constant text": (["same"] * ROWS, "not used: 'm' (a single value)"),
    "no values": ([None] * ROWS, "not used: 'm' (no values)"),
    "the label": (["yes", "no"] * (ROWS // 2), "the column 'm' determines the label exactly"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_a_note_states_how_a_column_is_read(tmp_path, case):
    values, note = NOTED[case]
    dataset = training_data(written(tmp_path, frame(m=values)))
    assert any(note in each for each in dataset.notes), dataset.notes
    assert len(dataset) == ROWS
    assert training_data(frame(m=values)).raw.kind == dataset.raw.kind  # a DataFrame is read in the same way


def test_more_than_100000_categories(tmp_path):
    rows = 100_500
    data = pd.DataFrame({"a": np.arange(rows) % 97, "code": [f"c{i}" for i in range(rows)]})
    data["label"], data["domain"] = np.arange(rows) % 2, np.arange(rows) % 3
    path = written(tmp_path, data)
    assert any("'code' (more than 100,000 distinct values)" in note for note in training_data(path).notes)
    fix = "group its values, or remove --column category=code"
    with pytest.raises(BadInput, match=f"column 'code' has more than 100,000 categories: {fix}"):
        training_data(path, columns={"category": "code"})


def test_5000_columns_are_read_quickly_and_audited(tmp_path):
    rng = np.random.default_rng(0)
    data = pd.DataFrame(rng.integers(0, 9, (ROWS, 5000)), columns=[f"c{i}" for i in range(5000)])
    path = written(tmp_path, pd.concat([data, frame(kind=["u", "v", None] * (ROWS // 3))], axis=1))
    start = time.process_time()
    dataset = training_data(path)
    assert time.process_time() - start < 30  # quadratic work would take minutes
    assert dataset.raw.kind == "table"
    assert len(dataset.columns or ()) == 5003
    assert any("and 4990 more" in note for note in dataset.notes)
    facts = column_facts(Examples(dataset), {name: dataset.rows_of(name) for name in dataset.domains})
    assert len(facts) == 5003
    assert [fact.column for fact in facts if fact.shift is not None and fact.shift.real] == ["kind"]
    assert [fact.column for fact in facts if fact.drift is not None and fact.drift.real] == ["kind"]
