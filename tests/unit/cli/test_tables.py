"""Published tables, alone and beside what was measured, in a terminal of 80 columns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from holdfast.cli.report import _published_table
from holdfast.cli.reproduce import _table
from holdfast.recipes.recipe import load_recipe


def printed(thing) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(thing)
    return capture.get()


@pytest.mark.parametrize("name", ["mil/table1", "gmoe/table1"])
def test_no_number_and_no_name_of_a_row_is_cut(name):
    recipe = load_recipe(name)
    text = printed(_published_table(recipe))
    assert "…" not in text
    assert all(row in text for row in recipe.rows)
    assert all(cell.printed() in text for cell in recipe.choose(list(recipe.rows)))
    assert max(map(len, text.splitlines())) <= 80


def test_both_numbers_of_every_cell_are_there():
    recipe = load_recipe("gmoe/table1")
    cells = [
        SimpleNamespace(cell=cell, values=[0.5], text=lambda at=at: f"{at}.12 ± 0.10 / 50.0 ± 1.0")
        for at, cell in enumerate(recipe.choose(["erm", "gmoe"]))
    ]
    text = printed(_table(SimpleNamespace(recipe=recipe, cells=cells)))
    assert "…" not in text
    assert all(cell.text() in text for cell in cells)
    assert max(map(len, text.splitlines())) <= 80
