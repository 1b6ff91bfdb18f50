"""Helpers for tests of published tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.recipes.catalog import RECIPES
from lab.recipes.recipe import Cell, Column, Recipe, Row, load_recipe

Numbers = Mapping[str, Sequence[float | None]]


def recipes_of(paper: str) -> dict[str, Recipe]:
    """Load all tables of a paper."""
    return {name: load_recipe(name) for name in RECIPES if name.startswith(f"{paper}/")}


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


def gmoe_domains() -> dict[str, tuple[str, ...]]:
    """Domains of the image data sets by name, from the columns of the GMoE tables."""
    domains = {column.data: column.targets for column in load_recipe("gmoe/table1").columns.values()}
    return domains | {"cub-dg": tuple(load_recipe("gmoe/table17").columns)}
