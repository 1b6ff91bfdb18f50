"""What has to be trained for some cells of a table: one job for all cells that the same runs score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.recipes.base import Cell, Key, Recipe, Row, run_key


@dataclass(frozen=True)
class Job:
    """What one row trains on one data set by one plan."""

    row: Row
    data: str
    plan: str
    select: str = ""  # how a step is chosen, where the table has several ways
    targets: dict[str, str] = field(default_factory=dict)  # target -> which of its rows are scored

    @property
    def key(self) -> Key:
        return run_key(self.row, self.data, self.plan, self.select)

    @property
    def sets(self) -> tuple[str, ...]:
        """The data sets to be read, the one that trains first."""
        return (self.data, *self.targets) if self.plan == "cross-dataset" else (self.data,)

    @property
    def only(self) -> set[str] | None:
        """The names of the episodes it needs; None where it needs all."""
        before = {"leave-one-out": "to", "in-domain": "in"}.get(self.plan)
        return {f"{before}-{target}" for target in self.targets} if before else None


def jobs_for(recipe: Recipe, cells: Sequence[Cell]) -> list[Job]:
    """The jobs of these cells and of the columns that their means are of, in the order of the table."""
    wanted = {(cell.row.name, column) for cell in cells for column in (cell.column.name, *cell.column.mean_of)}
    found: dict[Key, Job] = {}
    for cell in recipe.cells:
        if (cell.row.name, cell.column.name) in wanted and not cell.reason and not cell.column.mean_of:
            job = found.setdefault(cell.key, Job(cell.row, cell.data, cell.plan, cell.column.select))
            job.targets.update(dict.fromkeys(cell.column.targets, cell.column.split))
    return list(found.values())
