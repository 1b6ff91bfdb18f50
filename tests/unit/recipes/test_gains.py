"""Relative gains of rows over another: in and out of the domain that trained, from what was measured in both."""

from __future__ import annotations

import pytest

from holdfast.recipes.base import Budget, Column, Recipe, Row, grid
from holdfast.recipes.measure import Measured, gains_told, mean_gain
from tests.unit.recipes.whole import recipes_of

COLUMNS = tuple(Column(name=n, label=n.upper(), data="d", targets=(n,), plan="single-source") for n in "abc")
ROWS = (
    Row(name="plain", label="Plain", settings={"plan.sources": ["b"]}),
    Row(name="new", label="New", settings={"plan.sources": ["b"]}, gain_over=("plain",)),
)
PRINTED = {"plain": (10.0, 50.0, 20.0), "new": (11.0, 60.0, 20.0)}
TABLE = Recipe(
    name="t", cells=grid("t", ROWS, COLUMNS, PRINTED), encoder="e", encoder_settings={}, settings={},
    budget=Budget(epochs=1, batch=1),
)  # fmt: skip


def made(**lines: tuple[float | None, ...]) -> list[Measured]:
    """The cells of these rows, measured twice each, around the number that is given."""
    return [
        Measured(TABLE.at(row, column.name), () if value is None else (value - 1, value + 1))
        for row, values in lines.items()
        for column, value in zip(COLUMNS, values, strict=True)
    ]


def test_both_rows_measured():
    told = gains_told(TABLE, made(plain=(20.0, 80.0, 40.0), new=(30.0, 76.0, 44.0)))
    assert told == [
        "New, gain over Plain in the domain that trained: -5.0 % measured; the printed cells give +20.0 %",
        "New, gain over Plain out of it, the mean of 2: +30.0 % measured; the printed cells give +5.0 %",
    ]


def test_only_what_is_measured_in_both_is_told():
    assert gains_told(TABLE, made(new=(30.0, 76.0, 44.0))) == []
    half = gains_told(TABLE, made(plain=(None, 80.0, 40.0), new=(30.0, 80.0, 44.0)))
    assert half == ["New, gain over Plain in the domain that trained: +0.0 % measured; the printed cells give +20.0 %"]
    nothing_right = made(plain=(0.0, None, 40.0), new=(30.0, 80.0, 44.0))
    assert gains_told(TABLE, nothing_right) == []


def test_published_gains_over_resnet_50_follow_from_the_printed_cells():
    recipe = recipes_of("gmoe")["gmoe/table3"]
    lines = {row: {c: recipe.at(row, c).published for c in recipe.columns} for row in ("resnet50", "resnet101", "gmoe")}
    others = [column for column in recipe.columns if column != "painting"]
    for row, inside, outside in (("resnet101", 1.1, 12.4), ("gmoe", 10.5, 42.3)):
        assert mean_gain(lines[row], lines["resnet50"], ["painting"]) == pytest.approx(inside, abs=0.05)
        assert mean_gain(lines[row], lines["resnet50"], others) == pytest.approx(outside, abs=0.05)


def test_rows_of_the_single_source_tables_are_held_against_their_baselines():
    for name, before in (("table3", ""), ("table12", "real+")):
        rows = recipes_of("gmoe")[f"gmoe/{name}"].rows
        first, plain = f"{before}resnet50", f"{before}vit"
        assert rows[first].gain_over == ()
        assert rows[f"{before}resnet101"].gain_over == rows[plain].gain_over == (first,)
        for row in ("gmoe", "random-routing", "same-size", "gmoe-released"):
            assert rows[before + row].gain_over == (first, plain)
