"""What the tables of every system are asked: that each cell is there, once, under its own name."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast import catalog
from holdfast.recipes.base import Recipe


def recipes_of(system: str) -> dict[str, Recipe]:
    return {
        name: entry.load()() for name, entry in catalog.SECTIONS["recipes"].items() if name.startswith(f"{system}/")
    }


def check_cells(recipes: Mapping[str, Recipe], sizes: Mapping[str, tuple[int, int, int]]) -> None:
    """`sizes` has the rows, columns and cells with a printed number of each table."""
    found = {
        name: (len(r.rows), len(r.columns), sum(cell.published is not None for cell in r.cells))
        for name, r in recipes.items()
    }
    assert found == sizes
    for name, recipe in recipes.items():
        assert recipe.name == name
        assert {cell.recipe for cell in recipe.cells} == {name}
        assert len({(cell.row.name, cell.column.name) for cell in recipe.cells}) == len(recipe.cells)
        assert len(recipe.cells) == sizes[name][0] * sizes[name][1]
