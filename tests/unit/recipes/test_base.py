"""Choosing cells, counting epochs in steps, and finding printed means that do not add up."""

from dataclasses import replace

import pytest

from holdfast.core.errors import BadInput
from holdfast.recipes.base import Budget, Column, Recipe, Row, grid, mismatches
from holdfast.recipes.measure import jobs_for

BUDGET = Budget(epochs=20, batch=32, warmup=500)
ROWS = (Row(name="r", label="R"), Row(name="s", label="S"), Row(name="o", label="O", plan="in-domain"))
COLUMNS = (
    Column(name="x", label="X", data="d", targets=("x",)),
    Column(name="y", label="Y", data="d", targets=("y",)),
    Column(name="m", label="Avg.", mean_of=("x", "y")),
    Column(name="p", label="P", data="d", targets=("p",), plan="cross-dataset", split="valid"),
    Column(name="q", label="Q", data="d", targets=("q",), plan="cross-dataset"),
)
PRINTED = {"r": (80.0, 90.0, 85.1, None, 1.0), "s": (80.0, None, 85.0, None, 2.0)}


def table(printed=PRINTED) -> Recipe:
    cells = grid("t", ROWS, COLUMNS, printed)
    return Recipe(name="t", cells=cells, encoder="e", encoder_settings={}, settings={}, budget=BUDGET)


def test_published_epochs_are_counted_in_steps():
    assert BUDGET.settings(domains=3, examples=4800) == {"steps": 3000, "warmup": 500.0, "every": 150, "batch": 11}
    assert BUDGET.turn(domains=3, steps=3000) == 50
    short = BUDGET.settings(domains=3, examples=4800, steps=60)
    assert short == {"steps": 60, "warmup": pytest.approx(1 / 6), "every": 6, "batch": 11}
    assert BUDGET.turn(domains=3, steps=60) == 1
    assert BUDGET.settings(domains=1, examples=100) == {"steps": 63, "warmup": 0.5, "every": 3, "batch": 32}


def test_cells_are_chosen_by_name():
    assert len(table().choose()) == len(table().cells) == 15
    assert [(c.row.name, c.column.name) for c in table().choose(["s"], ["m", "x"])] == [("s", "x"), ("s", "m")]
    assert [c.published for c in table().choose(["o"])] == [None] * 5  # not printed: a control of our own
    with pytest.raises(BadInput, match="unknown row of t 'rr': did you mean 'r'"):
        table().choose(["rr"])
    with pytest.raises(BadInput, match="unknown column of t 'z': known: m, p, q, x, y"):
        table().choose([], ["z"])


def test_rows_that_cannot_be_run_are_told_by_their_reason():
    rows = (*ROWS, Row(name="a", label="A", reason="no data"), Row(name="b", label="B", reason="no data"))
    assert replace(table(), cells=grid("t", rows, COLUMNS, {})).reasons == {"no data": ["a", "b"]}
    assert table().reasons == {}


def test_a_row_may_have_a_plan_of_its_own():
    streamed = grid("t", (Row(name="w", label="W", plan="stream"),), COLUMNS[:1], {})
    assert [(cell.plan, cell.key) for cell in streamed] == [("stream", ("w", "d", "stream"))]
    (job,) = jobs_for(replace(table(), cells=streamed), streamed)
    assert (job.plan, job.only, job.targets) == ("stream", None, {"x": "test"})


def test_rounding_explains_a_tenth_and_no_more():
    assert list(mismatches(table())) == []  # 85.1 for 85.0 can be rounding; the mean of s has a gap
    ((cell, mean),) = mismatches(table(PRINTED | {"r": (80.0, 90.0, 85.2, None, None)}))
    assert (cell.row.name, cell.published, mean) == ("r", 85.2, 85.0)


def test_jobs_bring_the_columns_of_a_mean_and_one_training_for_all_that_is_scored_elsewhere():
    found = table()
    (alone,) = jobs_for(found, found.choose(["r"], ["m"]))
    assert (alone.key, alone.sets, alone.only) == (("r", "d", "leave-one-out"), ("d",), {"to-x", "to-y"})
    (across,) = jobs_for(found, found.choose(["r"], ["p", "q"]))
    assert (across.plan, across.sets, across.only) == ("cross-dataset", ("d", "p", "q"), None)
    assert across.targets == {"p": "valid", "q": "test"}
    inside = jobs_for(found, found.choose(["o"], ["x", "p"]))
    assert [(job.data, job.plan, job.only) for job in inside] == [
        ("d", "in-domain", {"in-x"}),
        ("p", "in-domain", {"in-p"}),
    ]
    closed = replace(found, cells=tuple(replace(c, row=replace(c.row, reason="no")) for c in found.cells))
    assert jobs_for(closed, closed.cells) == []
