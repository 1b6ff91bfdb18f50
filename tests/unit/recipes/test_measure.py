"""Cells measured from made-up records: units, means over targets and columns, seeds that are incomplete."""

from dataclasses import replace

import pytest

from holdfast.recipes.base import Budget, Column, Recipe, Row, grid
from holdfast.recipes.measure import measure, remarks
from holdfast.record import RunRecord

COLUMNS = (
    Column(name="x", label="X", data="d", targets=("x",)),
    Column(name="y", label="Y", data="d", targets=("y",)),
    Column(name="m", label="Avg.", mean_of=("x", "y")),
    Column(name="both", label="Both", data="d", targets=("x", "y")),
    Column(name="dev", label="Dev", data="d", targets=("x", "y"), scores="valid"),
    Column(name="size", label="Size", data="d", targets=("x",), metric="parameters"),
)
ROWS = (Row(name="r", label="R"), Row(name="n", label="N", reason="it needs T5"))
PRINTED = {"r": (80.0, 90.0, 86.0, 85.0, None, 1.0)}
TABLE = Recipe(
    name="t",
    cells=grid("t", ROWS, COLUMNS, PRINTED),
    encoder="e",
    encoder_settings={},
    settings={},
    budget=Budget(epochs=1, batch=1, warmup=1),
    claim="more is better",
)
KEY = ("r", "d", "leave-one-out")


def record(target: str, seed: int, test: float, valid: tuple[float, float]) -> RunRecord:
    scores = {"u": {"macro_f1": valid[0]}, "v": {"macro_f1": valid[1]}}
    stage = {
        "train": ["u", "v"],
        "step": 1,
        "valid": scores,
        "test": {target: {"macro_f1": test}},
        "history": [],
        "sizes": {},
    }
    return RunRecord({"method": "erm", "seed": seed}, f"to-{target}", [stage], {}, {}, {"parameters": 2_500_000})


RUNS = [record("x", 0, 0.7, (0.8, 0.6)), record("y", 0, 0.9, (1.0, 0.8)), record("x", 1, 0.8, (0.5, 0.5))]


def by_column(records, reasons=None):
    made = measure(TABLE, TABLE.choose(["r"]), {KEY: records}, reasons or {})
    return {one.cell.column.name: one for one in made}


def test_values_in_percent_one_a_seed_that_has_all_targets():
    found = {name: [round(v, 9) for v in one.values] for name, one in by_column(RUNS).items()}
    assert found == {"x": [70, 80], "y": [90], "m": [80], "both": [80], "dev": [80], "size": [2.5, 2.5]}


def test_for_machines():
    told = by_column(RUNS)["x"].json()
    assert {k: told[k] for k in ("row", "column", "metric", "published", "n", "reason")} == {
        "row": "r", "column": "x", "metric": "macro_f1", "published": 80.0, "n": 2, "reason": "",
    }  # fmt: skip
    assert (told["mean"], told["stderr"]) == (pytest.approx(75), pytest.approx(5))
    assert told["low"] < 70 < 80 < told["high"]  # two seeds: 12.7 standard errors to each side
    one = by_column(RUNS)["y"].json()
    assert (one["mean"], one["stderr"], one["low"]) == (pytest.approx(90), None, None)


def test_for_people():
    found = by_column(RUNS)
    assert found["x"].text() == "80.0 / 75.0 ± 5.0"
    assert found["dev"].text() == "– / 80.0"
    assert by_column([])["y"].text() == "90.0 / –"


def test_a_cell_without_runs_says_why():
    nothing = by_column([], {KEY: "the file has no training rows"})
    assert {one.reason for one in nothing.values()} == {"the file has no training rows"}
    assert by_column(RUNS[:1])["m"].reason == "not all of its runs are done"
    (closed,) = measure(TABLE, TABLE.choose(["n"], ["x"]), {}, {})
    assert closed.reason == "it needs T5"


def test_a_row_is_scored_after_its_stage_and_told_in_the_digits_of_its_column():
    first, last = record("x", 0, 0.61234, (0.5, 0.5)), record("x", 0, 0.7, (0.5, 0.5))
    both = RunRecord(first.spec, "u>v", [*first.stages, *last.stages], {}, {}, first.cost)
    rows = tuple(Row(name=str(at), label=str(at), plan="stream", stage=at) for at in (0, 1, -1))
    columns = (Column(name="x", label="X", data="d", targets=("x",), digits=2),)
    table = replace(TABLE, cells=grid("t", rows, columns, {"0": (60.0,)}), notes=("mind the gap",))
    made = measure(table, table.cells, {(row.name, "d", "stream"): [both] for row in rows}, {})
    assert [one.text() for one in made] == ["60.00 / 61.23", "– / 70.00", "– / 70.00"]
    assert remarks(table, made)[:2] == ["t shows that more is better", "mind the gap"]


def test_remarks_tell_the_claim_each_row_the_gaps_and_a_printed_mean_that_is_wrong():
    told = remarks(TABLE, measure(TABLE, TABLE.choose([], ["x", "y", "m"]), {KEY: RUNS[:1]}, {}))
    assert told == [
        "t shows that more is better",
        "R, published / measured: X 80.0 / 70.0, Y 90.0 / –, Avg. 86.0 / –",
        "R, Y, Avg. not run: not all of its runs are done",
        "N, published / measured: X – / –, Y – / –, Avg. – / –",
        "N not run: it needs T5",
        "R, Avg.: 86.0 is printed, but the printed cells average 85.0",
    ]


def test_a_printed_error_stands_beside_its_number():
    columns = COLUMNS[:2]
    cells = grid("t", ROWS[:1], columns, {"r": (80.0, 90.0)}, {"r": (0.5, None)})
    made = measure(replace(TABLE, cells=cells), cells, {KEY: RUNS}, {})
    assert [one.text() for one in made] == ["80.0 ± 0.5 / 75.0 ± 5.0", "90.0 / 90.0"]
    assert [one.json()["published_error"] for one in made] == [0.5, None]
    table = replace(TABLE, cells=cells)
    assert "R, published / measured: X 80.0 ± 0.5 / 75.0 ± 5.0, Y 90.0 / 90.0" in remarks(table, made)
    assert table.json()[0]["published_error"] == {"x": 0.5, "y": None}
