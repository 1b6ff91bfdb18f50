"""Audit per column: planted shifts, gaps and leaks are reported for their column and for no other."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from holdfast.auditing.audit import audit
from holdfast.auditing.columns import LEAK, ColumnFacts, column_advice, column_facts
from holdfast.auditing.examples import Examples
from holdfast.data.copies import copies_note, label_copies
from holdfast.data.readers.in_memory import read_frame
from holdfast.train.training_data import training_data


def frame(rows: int = 900, seed: int = 0) -> pd.DataFrame:
    """Columns without any relation to the domain or, except for `age`, to the label."""
    rng = np.random.default_rng(seed)
    age, days = rng.normal(50, 10, rows), pd.to_timedelta(np.arange(rows) % 50, "D")
    return pd.DataFrame({
        "age": age, "weight": rng.normal(70, 9, rows), "colour": rng.choice(["red", "blue", "green"], rows),
        "smoker": rng.random(rows) > 0.5, "visit": pd.Timestamp("2024-01-01") + days,
        "label": np.where(age + rng.normal(0, 10, rows) > 50, "yes", "no"), "domain": np.arange(rows) % 3,
    }).assign(domain=lambda data: data["domain"].map({0: "a", 1: "b", 2: "c"}))  # fmt: skip


def measured(data: Any, **options) -> list[ColumnFacts]:
    dataset = training_data(data, **options)
    return column_facts(Examples(dataset), {name: dataset.rows_of(name) for name in dataset.domains})


def facts(data: Any, **options) -> dict[str, Any]:
    return {column.column: column for column in measured(data, **options)}


def test_nothing_is_reported_without_a_shift():
    columns = measured(frame())
    assert [column.column for column in columns] == ["age", "weight", "colour", "smoker", "visit"]
    for column in columns:
        assert not column.shift.real, column
        assert column.drift is None
        assert not column.leaks
    assert column_advice(columns) == []


@pytest.mark.parametrize("column", ["weight", "colour", "smoker", "visit"])
def test_a_planted_shift_is_found_in_its_column(column):
    data = frame()
    where = data["domain"] == "b"
    changes = {
        "weight": data["weight"] + 5, "colour": "red", "smoker": True, "visit": data["visit"] + pd.Timedelta(days=20),
    }  # fmt: skip
    data[column] = data[column].where(~where, changes[column])
    by_name = facts(data)
    shift = by_name[column].shift
    assert (shift.real, shift.domain) == (True, "b")
    assert shift.distance > 0.2
    assert not any(other.shift.real for name, other in by_name.items() if name != column)
    (sentence,) = [each for each in column_advice(measured(data)) if each.startswith("Columns with the largest shift")]
    assert f"'{column}' ({shift.distance:.2f} in b)" in sentence


def test_distances_are_those_of_the_definitions():
    data = frame()
    others, fourth = (data["domain"] != "c").to_numpy(), np.arange(900) // 3 % 4 == 0
    data["colour"] = np.where(others, np.where(fourth, "red", "blue"), np.where(fourth, "blue", "green"))
    data["weight"] = np.where(others, 1.0, 2.0) + np.arange(len(data)) / 1e6
    by_name = facts(data)
    assert by_name["colour"].shift.distance == pytest.approx(0.75, abs=0.01)  # only blue is shared: 1 - 1/4
    assert by_name["weight"].shift.distance == 1
    assert by_name["weight"].shift.domain == by_name["colour"].shift.domain == "c"


def test_many_rare_categories_are_no_shift():
    data = frame().assign(town=[f"town {i}" for i in np.random.default_rng(1).integers(300, size=900)])
    shift = facts(data)["town"].shift
    assert not shift.real
    assert shift.distance < 0.2


def test_drift_of_missing_values_is_reported():
    data = frame()
    data.loc[(data["domain"] == "a") & (np.arange(900) % 2 == 0), "colour"] = None
    data.loc[np.arange(900) % 7 == 0, "weight"] = np.nan
    by_name = facts(data)
    drift = by_name["colour"].drift
    assert (drift.real, drift.domain, drift.outside) == (True, "a", 0)
    assert drift.inside == pytest.approx(0.5)
    assert by_name["weight"].missing == pytest.approx(1 / 7, abs=0.001)
    assert not by_name["weight"].drift.real
    assert "'colour' is missing in 50% of the rows of a and in 0% of the others" in " ".join(
        column_advice(measured(data))
    )


def test_gaps_of_repeated_rows_are_counted():
    data = frame()[["age", "label", "domain"]]
    data.loc[(data["domain"] == "c") & (np.arange(900) % 6 < 4), "age"] = np.nan  # equal rows once they are missing
    assert facts(data)["age"].drift.inside > 0.3


def test_a_column_that_gives_the_label_away_is_reported():
    data = frame()
    rng = np.random.default_rng(1)
    noise = np.where(rng.random(900) < 0.02, "left", "stayed")
    data["exit"] = np.where(data["label"] == "yes", "left", noise)
    data["risk"] = np.where(data["label"] == "yes", 3.0, 1.0) + rng.random(900)
    data["code"] = rng.integers(450, size=900).astype(str)  # explains every training row, and no other
    by_name = facts(data)
    assert LEAK <= by_name["exit"].explained < 1
    assert not by_name["exit"].copy
    assert by_name["risk"].leaks
    assert "code" not in by_name or not by_name["code"].leaks
    assert by_name["age"].explained < 0.7
    advice = " ".join(column_advice(list(by_name.values())))
    assert "'exit' alone explains" in advice
    assert "--column ignore=risk" in advice


@pytest.mark.parametrize("copy", ["texts", "numbers", "booleans"])
def test_the_label_under_another_name_is_reported(copy):
    data, yes = frame(), frame()["label"] == "yes"
    data["outcome"] = {"texts": np.where(yes, "dead", "alive"), "numbers": np.where(yes, 1, 0), "booleans": yes}[copy]
    dataset = read_frame(data)
    assert label_copies(dataset) == ["outcome"]
    note = "the column 'outcome' determines the label exactly and may be the label under another name"
    assert any(each.startswith(note) for each in training_data(data).notes)
    by_name = facts(data)
    assert (
        column_advice(list(by_name.values()))[0]
        == "'outcome' is the label under another name: leave it out with --column ignore=outcome."
    )
    assert by_name["outcome"].copy
    assert by_name["outcome"].leaks
    other = data["outcome"].iloc[int((data["label"] != data["label"].iloc[5]).argmax())]
    data.loc[5, "outcome"] = other
    assert label_copies(read_frame(data)) == []


def test_a_linear_function_of_a_numeric_label_is_reported():
    data = frame()
    data["label"] = data["age"] * 3 + np.random.default_rng(2).normal(0, 1, 900)
    data["euro"] = data["label"] * 0.91 + 7
    data["log"] = np.exp(data["label"] / 300)
    by_name = facts(data)
    assert [name for name, column in by_name.items() if column.copy] == ["euro"]
    assert by_name["log"].leaks
    assert by_name["colour"].explained < 0.1


def test_sets_of_labels_are_compared_one_by_one():
    data = frame()
    blue, old = data["colour"] == "blue", data["age"] > 50
    pairs = zip(blue, old, strict=True)
    data["label"] = ["|".join([*(["blue"] if b else []), *(["old"] if o else [])]) or None for b, o in pairs]
    data["is old"] = old
    by_name = facts(data, task="multilabel")
    assert by_name["is old"].copy
    assert by_name["colour"].leaks  # it determines one of the labels
    assert not by_name["weight"].leaks


def test_few_rows_and_other_kinds_have_no_findings():
    small = frame(24)
    assert copies_note(read_frame(small.head(12).assign(copy=small.head(12)["label"]))) == ""
    assert all(column.shift is None for column in measured(frame(12)))
    texts = pd.DataFrame({"text": [f"text {i}" for i in range(40)], "label": [0, 1] * 20, "domain": ["a", "b"] * 20})
    assert measured(texts) == []
    one = measured(frame().assign(domain="a"))
    assert all(column.shift is None and column.explained is not None for column in one)


def test_an_audit_has_the_columns_first_and_in_its_json():
    data = frame(240)
    data["outcome"] = data["label"].map({"yes": "dead", "no": "alive"})
    result = audit(data, near=1.0)
    assert result.advice[0].startswith("'outcome' is the label under another name")
    (grid,) = [grid for grid in result.grids if grid.title == "Columns"]
    assert (grid.lines[0][0], grid.lines[0][1][-1]) == ("outcome", ("copy", 1.0))
    columns = {column["column"]: column for column in result.json()["columns"]}
    assert columns["outcome"]["leaks"]
    assert set(columns["age"]["shift"]) == {"domain", "distance", "p", "inside", "outside"}
