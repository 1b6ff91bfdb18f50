"""Cells, budgets, inconsistent means and jobs of a small table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from holdfast.core.errors import BadInput
from lab.recipes.measure import jobs_for
from lab.recipes.recipe import Budget, Cell, Column, Recipe, Row, load_recipe, mismatches

BUDGET = Budget(epochs=20, batch=32, warmup=500)
ROWS = (Row(name="r", label="R"), Row(name="s", label="S"), Row(name="o", label="O", plan="in-domain"))
COLUMNS = (
    Column(name="x", label="X", data="d", targets=("x",)),
    Column(name="y", label="Y", data="d", targets=("y",)),
    Column(name="m", label="Avg.", mean_of=("x", "y")),
    Column(name="p", label="P", data="d", targets=("p",), plan="cross-dataset", split="valid"),
    Column(name="q", label="Q", data="d", targets=("q",), plan="cross-dataset"),
)
PUBLISHED = {"r": (80.0, 90.0, 85.1, None, 1.0), "s": (80.0, None, 85.0, None, 2.0)}


Numbers = Mapping[str, Sequence[float | None]]


def grid(
    name: str, rows: Sequence[Row], columns: Sequence[Column], published: Numbers, errors: Numbers | None = None
) -> tuple[Cell, ...]:
    """Build the cells of a table from one list of numbers per row."""
    empty = [None] * len(columns)
    return tuple(
        Cell(recipe=name, row=row, column=column, published=value, error=error)
        for row in rows
        for column, value, error in zip(
            columns, published.get(row.name, empty), (errors or {}).get(row.name, empty), strict=True
        )
    )


def table(published=PUBLISHED) -> Recipe:
    return Recipe(name="t", cells=grid("t", ROWS, COLUMNS, published), encoder="e", settings={}, budget=BUDGET)


def test_budget_converts_epochs_to_steps():
    assert BUDGET.settings(domains=3, examples=4800) == {"steps": 3000, "warmup": 500.0, "every": 150, "batch": 11}
    assert BUDGET.turn(domains=3, steps=3000) == 50
    short = BUDGET.settings(domains=3, examples=4800, steps=60)
    assert short == {"steps": 60, "warmup": pytest.approx(1 / 6), "every": 6, "batch": 11}
    assert BUDGET.turn(domains=3, steps=60) == 1
    fraction = Budget(epochs=3, batch=64, warmup=0.06)
    assert fraction.settings(domains=1, examples=6400)["warmup"] == 0.06
    assert fraction.settings(domains=1, examples=6400, steps=7)["warmup"] == 0.06
    assert BUDGET.settings(domains=1, examples=100) == {"steps": 63, "warmup": 0.5, "every": 3, "batch": 32}


def test_choose_cells_by_name():
    assert len(table().choose()) == len(table().cells) == 15
    assert [(c.row.name, c.column.name) for c in table().choose(["s"], ["m", "x"])] == [("s", "x"), ("s", "m")]
    assert [c.published for c in table().choose(["o"])] == [None] * 5
    with pytest.raises(BadInput, match=r"row of t 'rr'.*'r'"):
        table().choose(["rr"])
    with pytest.raises(BadInput, match=r"column of t 'z'.*m, p, q, x, y"):
        table().choose([], ["z"])


def test_reasons_are_grouped_and_the_plan_of_a_row_replaces_that_of_the_column():
    rows = (*ROWS, Row(name="a", label="A", reason="no data"), Row(name="b", label="B", reason="no data"))
    assert replace(table(), cells=grid("t", rows, COLUMNS, {})).reasons == {"no data": ["a", "b"]}
    (cell,) = cells = grid("t", (Row(name="w", label="W", plan="stream"),), COLUMNS[:1], {})
    assert (cell.plan, cell.key) == ("stream", ("w", "d", "stream"))
    (job,) = jobs_for(replace(table(), cells=cells), cells)
    assert (job.plan, job.only, job.targets) == ("stream", None, {"x": "test"})


def test_mismatches_allow_for_rounding():
    assert list(mismatches(table())) == []  # 85.1 instead of 85.0 can be rounding; row s lacks a cell
    ((cell, mean),) = mismatches(table(PUBLISHED | {"r": (80.0, 90.0, 85.2, None, None)}))
    assert (cell.row.name, cell.published, mean) == ("r", 85.2, 85.0)


def test_jobs_include_the_columns_of_a_mean_and_share_cross_dataset_training():
    recipe = table()
    (within,) = jobs_for(recipe, recipe.choose(["r"], ["m"]))
    assert (within.key, within.sets, within.only) == (("r", "d", "leave-one-out"), ("d",), {"to-x", "to-y"})
    (across,) = jobs_for(recipe, recipe.choose(["r"], ["p", "q"]))
    assert (across.plan, across.sets, across.only) == ("cross-dataset", ("d", "p", "q"), None)
    assert across.targets == {"p": "valid", "q": "test"}
    inside = jobs_for(recipe, recipe.choose(["o"], ["x", "p"]))
    assert [(job.data, job.plan, job.only) for job in inside] == [
        ("d", "in-domain", {"in-x"}),
        ("p", "in-domain", {"in-p"}),
    ]
    closed = replace(recipe, cells=tuple(replace(c, row=replace(c.row, reason="no")) for c in recipe.cells))
    assert jobs_for(closed, closed.cells) == []


def test_load_recipe_inherits_settings_and_prefers_entries_of_the_table():
    first, third = load_recipe("mil/table1"), load_recipe("mil/table3")
    assert (third.settings, third.budget, third.encoder) == (first.settings, first.budget, first.encoder)
    assert first.columns["average"].mean_of == ("books", "dvd", "electronics", "kitchen")
    assert third.columns["average"].mean_of == ("amazon", "mnli")
    assert third.rows["untrained-memory"].settings == third.rows["memory"].settings | {"neck.frozen": True}
    assert load_recipe("gmoe/table1").cell("irm", "domain-net").printed() == "33.9 ± 2.8"
    assert load_recipe("gmoe/table1").cell("irm", "sviro").printed() == "–"
    with pytest.raises(BadInput, match=r"recipe 'mil/tabel1'.*mil/table1"):
        load_recipe("mil/tabel1")
