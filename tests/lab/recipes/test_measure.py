"""Measured cells of artificial records: units, means, incomplete seeds, remarks and gains."""

import re
from dataclasses import replace

import pytest

from holdfast.record import RunRecord
from lab.recipes.measure import Measurement, gain_remarks, jobs_for, mean_gain, measure, remarks
from lab.recipes.recipe import Budget, Cell, Column, Recipe, Row, load_recipe
from tests.lab.recipes.test_recipe import grid

COLUMNS = (
    Column(name="x", label="X", data="d", targets=("x",)),
    Column(name="y", label="Y", data="d", targets=("y",)),
    Column(name="m", label="Avg.", mean_of=("x", "y")),
    Column(name="both", label="Both", data="d", targets=("x", "y")),
    Column(name="dev", label="Dev", data="d", targets=("x", "y"), scores="valid"),
    Column(name="size", label="Size", data="d", targets=("x",), metric="parameters"),
)
ROWS = (Row(name="r", label="R"), Row(name="n", label="N", reason="it needs T5"))
PUBLISHED = {"r": (80.0, 90.0, 86.0, 85.0, None, 1.0)}
TABLE = Recipe(
    name="t",
    cells=grid("t", ROWS, COLUMNS, PUBLISHED),
    encoder="e",
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
    measurements = measure(TABLE, TABLE.choose(["r"]), {KEY: records}, reasons or {})
    return {one.cell.column.name: one for one in measurements}


def test_values_are_percentages_of_seeds_with_all_targets():
    values = {name: [round(v, 9) for v in one.values] for name, one in by_column(RUNS).items()}
    assert values == {"x": [70, 80], "y": [90], "m": [80], "both": [80], "dev": [80], "size": [2.5, 2.5]}


def test_json_of_a_measurement():
    cell = by_column(RUNS)["x"].json()
    assert {k: cell[k] for k in ("row", "column", "metric", "published", "n", "reason")} == {
        "row": "r", "column": "x", "metric": "macro_f1", "published": 80.0, "n": 2, "reason": "",
    }  # fmt: skip
    assert (cell["mean"], cell["stderr"]) == (pytest.approx(75), pytest.approx(5))
    assert cell["low"] < 70 < 80 < cell["high"]  # two seeds: the 95% interval is 12.7 standard errors
    cells = by_column(RUNS)
    assert [cells["x"].text(), cells["dev"].text(), by_column([])["y"].text()] == [
        "80.0 / 75.0 ± 5.0", "– / 80.0", "90.0 / –",
    ]  # fmt: skip
    one = cells["y"].json()
    assert (one["mean"], one["stderr"], one["low"]) == (pytest.approx(90), None, None)


def test_reason_of_a_cell_without_runs():
    nothing = by_column([], {KEY: "the file has no training rows"})
    assert {one.reason for one in nothing.values()} == {"the file has no training rows"}
    assert by_column(RUNS[:1])["m"].reason == "some of its runs are missing"
    (closed,) = measure(TABLE, TABLE.choose(["n"], ["x"]), {}, {})
    assert closed.reason == "it needs T5"


def test_a_row_is_scored_after_its_stage_with_the_digits_of_its_column():
    first, last = record("x", 0, 0.61234, (0.5, 0.5)), record("x", 0, 0.7, (0.5, 0.5))
    both = RunRecord(first.spec, "u>v", [*first.stages, *last.stages], {}, {}, first.cost)
    rows = tuple(Row(name=str(at), label=str(at), plan="stream", stage=at) for at in (0, 1, -1))
    columns = (Column(name="x", label="X", data="d", targets=("x",), digits=2),)
    table = replace(TABLE, cells=grid("t", rows, columns, {"0": (60.0,)}), notes=("mind the gap",))
    measurements = measure(table, table.cells, {(row.name, "d", "stream"): [both] for row in rows}, {})
    assert [one.text() for one in measurements] == ["60.00 / 61.23", "– / 70.00", "– / 70.00"]
    assert remarks(table, measurements)[:2] == ["t shows that more is better", "mind the gap"]


def test_remarks():
    lines = remarks(TABLE, measure(TABLE, TABLE.choose([], ["x", "y", "m"]), {KEY: RUNS[:1]}, {}))
    assert lines[:-1] == [
        "t shows that more is better",
        "R, published / measured: X 80.0 / 70.0, Y 90.0 / –, Avg. 86.0 / –",
        "R, Y, Avg. not run: some of its runs are missing",
        "N, published / measured: X – / –, Y – / –, Avg. – / –",
        "N not run: it needs T5",
    ]
    assert re.search(r"R, Avg\..*86\.0.*85\.0", lines[-1])


def test_a_published_error_follows_its_number():
    columns = COLUMNS[:2]
    cells = grid("t", ROWS[:1], columns, {"r": (80.0, 90.0)}, {"r": (0.5, None)})
    measurements = measure(replace(TABLE, cells=cells), cells, {KEY: RUNS}, {})
    assert [one.text() for one in measurements] == ["80.0 ± 0.5 / 75.0 ± 5.0", "90.0 / 90.0"]
    assert [one.json()["published_error"] for one in measurements] == [0.5, None]
    table = replace(TABLE, cells=cells)
    assert "R, published / measured: X 80.0 ± 0.5 / 75.0 ± 5.0, Y 90.0 / 90.0" in remarks(table, measurements)
    assert table.json()[0]["published_error"] == {"x": 0.5, "y": None}


SOURCES = {"plan.sources": ["b"]}
GAIN_COLUMNS = tuple(Column(name=n, label=n.upper(), data="d", targets=(n,), plan="single-source") for n in "abc")
GAIN_ROWS = (
    Row(name="plain", label="Plain", settings=SOURCES),
    Row(name="new", label="New", settings=SOURCES, gain_over=("plain",)),
)
GAIN_CELLS = grid("t", GAIN_ROWS, GAIN_COLUMNS, {"plain": (10.0, 50.0, 20.0), "new": (11.0, 60.0, 20.0)})
GAIN_TABLE = replace(TABLE, cells=GAIN_CELLS)


def gains(**rows: tuple[float | None, ...]) -> list[str]:
    """Return the remarks for rows measured with two seeds around these values."""
    return gain_remarks(
        GAIN_TABLE,
        [
            Measurement(GAIN_TABLE.cell(row, column.name), () if value is None else (value - 1, value + 1))
            for row, values in rows.items()
            for column, value in zip(GAIN_COLUMNS, values, strict=True)
        ],
    )


def test_gains_in_and_out_of_the_training_domain():
    inside, outside = gains(plain=(20.0, 80.0, 40.0), new=(30.0, 76.0, 44.0))
    assert re.search(r"New.*Plain in the training domain: -5\.0%.*\+20\.0%", inside)
    assert re.search(r"New.*Plain out of the training domain, mean of 2: \+30\.0%.*\+5\.0%", outside)


def test_gains_need_both_rows():
    assert gains(new=(30.0, 76.0, 44.0)) == []
    (inside,) = gains(plain=(None, 80.0, 40.0), new=(30.0, 80.0, 44.0))
    assert "in the training domain: +0.0%" in inside
    assert gains(plain=(0.0, None, 40.0), new=(30.0, 80.0, 44.0)) == []


def test_published_gains_of_gmoe_follow_from_the_printed_cells():
    recipe = load_recipe("gmoe/table3")
    numbers = {row: {c: recipe.cell(row, c).published for c in recipe.columns} for row in recipe.rows}
    others = [column for column in recipe.columns if column != "painting"]
    for row, inside, outside in (("resnet101", 1.1, 12.4), ("vit", 10.0, 38.2), ("gmoe", 10.5, 42.3)):
        for columns, gain in ((["painting"], inside), (others, outside)):
            assert mean_gain(numbers[row], numbers["resnet50"], columns) == pytest.approx(gain, abs=0.05)


def test_a_single_source_is_scored_on_its_validation_rows():
    row = Row(name="r", label="r", settings={"method": "erm"})
    columns = [
        Column(name=name, label=name, data="d", targets=(name,), plan="single-source", metric="accuracy")
        for name in ("a", "b")
    ]
    cells = [Cell(recipe="x", row=row, column=column, published=None) for column in columns]
    stage = {"train": ["a"], "valid": {"a": {"accuracy": 0.9}}, "test": {"b": {"accuracy": 0.25}}}
    cost = {"examples_per_second": 64.0, "peak_memory_mb": 2048.0}
    record = RunRecord({"seed": 0, "batch": 32}, "from-a", [stage], {}, {}, cost)
    recipe = replace(load_recipe("gmoe/table3"), cells=tuple(cells))
    measurements = measure(recipe, cells, {cells[0].key: [record]}, {})
    assert [one.values for one in measurements] == [(90.0,), (25.0,)]
    for metric, value in (("step_seconds", 0.5), ("memory", 2.0)):
        cell = replace(cells[1], column=replace(columns[1], metric=metric))
        (one,) = measure(replace(recipe, cells=(cell,)), [cell], {cell.key: [record]}, {})
        assert one.values == (value,)


def test_columns_that_a_benchmark_measures_are_not_run():
    recipe = load_recipe("gmoe/table16")
    measurements = measure(recipe, recipe.choose(["vit"]), {}, {})
    assert ["bench experts" in one.reason for one in measurements] == [False, False, True, True]
    jobs = jobs_for(recipe, recipe.choose(["vit"], ["predict"]))
    assert not jobs
