"""Helpers for tests of published tables."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.data.dataset import Dataset
from holdfast.spec import Spec
from holdfast.train.plan import Episode
from holdfast.train.resolve import check_episode
from holdfast.train.workspace import Workspace
from lab.recipes.catalog import RECIPES
from lab.recipes.measure import TableJob, jobs_for
from lab.recipes.recipe import Cell, Column, Recipe, Row, load_recipe
from lab.recipes.reproduce import job_dataset, missing_data
from lab.recipes.specs import SpecBuilder

Numbers = Mapping[str, Sequence[float | None]]


class Built(NamedTuple):
    """A job of a table with its spec and its episodes."""

    job: TableJob
    spec: Spec
    episodes: list[Episode]


def build(
    name: str, sets: Mapping[str, Dataset], rows: Sequence[str] = (), columns: Sequence[str] = (), **options: Any
) -> list[Built]:
    """Build the specs of the chosen rows whose data suffices, and check that their episodes score the targets."""
    recipe = load_recipe(name)
    return build_jobs(recipe, sets, jobs_for(recipe, recipe.choose(rows, columns)), **options)


def build_jobs(recipe: Recipe, sets: Mapping[str, Dataset], jobs: Sequence[TableJob], **options: Any) -> list[Built]:
    builder = SpecBuilder(recipe, jobs, encoder=None, steps=None, options=options)
    workspaces: dict[str, Workspace] = {}
    done = []
    for job in jobs:
        if missing_data(job, sets):
            continue
        key = str((job.sets, job.targets if len(job.sets) > 1 else ""))
        if key not in workspaces:
            workspaces[key] = Workspace(job_dataset(job, sets, None))
        spec = builder.spec(job, workspaces[key])
        plan, scored = workspaces[key].episodes(spec), set()
        for episode in plan:
            check_episode(spec, episode)
            for stage in episode.stages:
                scored |= {part.domain for part in (*stage.test, *(stage.valid if job.plan == "single-source" else ()))}
        assert scored >= set(job.targets)
        assert (job.only or set()) <= {episode.name for episode in plan}
        done.append(Built(job, spec, plan))
    return done


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
