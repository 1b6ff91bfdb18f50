"""Published and measured tables in a terminal of 80 columns."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from lab.recipes.command import _table, published_table
from lab.recipes.recipe import load_recipe


def rendered(table) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize("name", ["mil/table1", "gmoe/table1"])
def test_published_table_truncates_nothing(name):
    recipe = load_recipe(name)
    text = rendered(published_table(recipe))
    assert "…" not in text
    assert all(row in text for row in recipe.rows)
    assert all(cell.printed() in text for cell in recipe.choose(list(recipe.rows)))
    assert max(map(len, text.splitlines())) <= 80


def test_reproduction_table_shows_both_numbers_of_every_cell():
    recipe = load_recipe("gmoe/table1")
    cells = [
        SimpleNamespace(cell=cell, values=[0.5], text=lambda at=at: f"{at}.12 ± 0.10 / 50.0 ± 1.0")
        for at, cell in enumerate(recipe.choose(["erm", "gmoe"]))
    ]
    text = rendered(_table(SimpleNamespace(recipe=recipe, cells=cells)))
    assert "…" not in text
    assert all(cell.text() in text for cell in cells)
    assert max(map(len, text.splitlines())) <= 80
