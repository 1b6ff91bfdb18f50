"""reproduce: a published table, row by row, beside what is measured here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast import catalog
from holdfast.comparison import not_analysed, training_data
from holdfast.core.errors import Absent, BadInput
from holdfast.core.files import cache_folder
from holdfast.data.dataset import SPLITS, Dataset, join
from holdfast.data.splits import rows_by_domain
from holdfast.recipes.base import Key, Recipe
from holdfast.recipes.measure import Job, Measured, gains_told, jobs_for, measure, remarks
from holdfast.recipes.specs import Maker
from holdfast.record import RunRecord
from holdfast.report.page import write_report
from holdfast.run.assemble import Workspace
from holdfast.run.jobs import Engine
from holdfast.run.many import run_all
from holdfast.run.progress import ProgressListener
from holdfast.run.settings import choose_analyses, choose_device, unfit
from holdfast.run.train import episodes, training_domains
from holdfast.spec import Spec

ROWS_SAY = ("method", "neck", "plan", "task", "seed")
COLUMNS_SAY = ("plan.targets", "plan.sources", "plan.order", "plan.domains", "plan.scored")
BY_PLAN = ("steps", "every", "batch", "warmup")  # follow from how many domains and examples train


@dataclass(frozen=True)
class Reproduction:
    """What a reproduced table leaves: its cells with what was measured, the records, the page and remarks."""

    recipe: Recipe
    cells: list[Measured]
    records: list[RunRecord]
    report: Path
    notes: tuple[str, ...] = ()

    def table(self) -> list[dict[str, Any]]:
        """One dict a cell: row, column, metric, published and its error, mean, stderr, low, high, n, reason."""
        return [cell.json() for cell in self.cells]


def reproduce(
    recipe: str,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int | Sequence[int] = 5,
    out: str | Path = "runs/reproduce",
    encoder: str | None = None,
    tune: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    device: str = "auto",
    cache: bool = True,
    examples: int | None = None,
    data_dir: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    analyse: Sequence[str] = (),
    watch: ProgressListener | None = None,
    engine: Engine | None = None,
) -> Reproduction:
    """Run the chosen rows and columns of a published table with its settings, or with what is given in their place."""
    table: Recipe = catalog.lookup("recipes", recipe).load()()
    cells = table.choose(rows, columns)
    jobs = jobs_for(table, cells)
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise BadInput("nothing to run: give at least one seed")
    if not jobs:
        asked = {cell.row.name for cell in cells}
        why = "; ".join(reason for reason, names in table.reasons.items() if asked & set(names))
        raise BadInput(f"nothing of {table.name} is to be run ({why}): name other rows or another table")
    given = {"tune": tune, "batch": batch, "lr": lr, **(settings or {})}
    given = {key: value for key, value in given.items() if value is not None}
    for name in ROWS_SAY:
        if name in given:
            raise BadInput(f"the rows of {table.name} say what {name} is: leave --set {name}=... out")
    for name in COLUMNS_SAY:
        if name in given:
            raise BadInput(f"the columns of {table.name} say what {name} is: choose some with --columns")
    steps, encoder = given.pop("steps", steps), given.pop("encoder", encoder)
    saying = dict.fromkeys(job.row.name for job in jobs if "encoder" in job.row.settings and not unsaid(job, given))
    if encoder is not None and saying:
        all_of_them = len(saying) == len({job.row.name for job in jobs})
        which, out = ("", "--encoder") if all_of_them else (f" {', '.join(saying)}", "--encoder or these rows")
        raise BadInput(f"the rows{which} of {table.name} say what their encoder is: leave {out} out")
    where, folder = choose_device(device), cache_folder() if cache else None
    names = dict.fromkeys(name for job in jobs for name in job.sets)
    tasks = {name: table.task(name) for name in names}
    wanted = choose_analyses(analyse, tasks.values())
    sets, absent = _read_all(tasks, data_dir=data_dir)
    first = {job.sets: job for job in jobs if not absent.keys() & set(job.sets)}  # any of the jobs on these data sets
    workspaces = {
        key: Workspace(dataset_of(job, sets, examples), device=where, cache=folder) for key, job in first.items()
    }
    maker = Maker(table, jobs, encoder=encoder, steps=steps, given=given)
    reasons = {job.key: reason for job in jobs if (reason := lacks(job, sets, absent) or unsaid(job, given))}
    specs = {job.key: maker.spec(job, workspaces[job.sets]) for job in jobs if job.key not in reasons}
    for job in jobs:
        if job.key in specs and (reason := _as_baseline(specs[job.key], workspaces[job.sets])):
            reasons[job.key] = reason
    chosen = [job for job in jobs if job.key not in reasons]
    if not chosen:
        raise BadInput(f"nothing of {table.name} can be run here: {'; '.join(dict.fromkeys(reasons.values()))}")
    records = _run(chosen, specs, numbers, workspaces, Path(out), watch, wanted, engine)
    made = measure(table, cells, records, reasons)
    runs = list({record.id: record for own in records.values() for record in own}.values())
    notes = (
        *maker.told(chosen, specs),
        *remarks(table, made),
        *gains_told(table, made),
        *(note for each in sets.values() for note in each.notes),
        *not_analysed(runs, wanted),
    )
    title = f"Holdfast: {table.name}, published and measured"
    metric = str(table.settings["metric"])
    page = write_report(_plain(runs, jobs), Path(out) / "report.html", title=title, metric=metric, notes=notes)
    return Reproduction(table, made, runs, page, notes)


def dataset_of(job: Job, sets: Mapping[str, Dataset], examples: int | None) -> Dataset:
    """The data set that trains, joined with the scored rows of those that do not; at most so many of each domain."""
    parts = [sets[job.data]]
    for name in job.sets[1:]:
        rows = rows_by_domain(sets[name])[name].test_part(job.targets[name]).rows
        parts.append(replace(sets[name].subset(rows), split=None))
    found = join(parts) if len(parts) > 1 else parts[0]
    return found if examples is None else found.limited(examples)


def _read_all(tasks: Mapping[str, str], *, data_dir: Path | None) -> tuple[dict[str, Dataset], dict[str, str]]:
    """The data sets that the user brought, and why others are not there; where none is, that is an error."""
    found: dict[str, Dataset] = {}
    absent: dict[str, Absent] = {}
    for name, task in tasks.items():
        try:
            found[name] = training_data(name, task=task, data_dir=data_dir)
        except Absent as error:
            absent[name] = error
    if not found:
        raise next(iter(absent.values()))
    return found, {name: str(error) for name, error in absent.items()}


def lacks(job: Job, sets: Mapping[str, Dataset], absent: Mapping[str, str] | None = None) -> str:
    """Why the data cannot serve a job; empty where it can."""
    missing = [reason for name, reason in (absent or {}).items() if name in job.sets]
    if missing:
        return missing[0]
    split = sets[job.data].split
    untrained = split is not None and not (split == SPLITS.index("train")).any()
    return f"the file of {job.data} has no training rows" if untrained else ""


def unsaid(job: Job, given: Mapping[str, Any]) -> str:
    """Why a row cannot be run without a setting that only the user can give; empty where it is given, or needs none."""
    return next((why for name, why in job.row.asks.items() if name not in given), "")


def _as_baseline(spec: Spec, workspace: Workspace) -> str:
    """Why a row has too few domains or would train exactly as the baseline; empty where it would not."""
    sources = training_domains(episodes(spec, workspace), spec.select)
    return unfit(spec.method, spec, sources).partition(" (")[0]  # without the mends, which the rows do not allow


def _run(
    jobs: Sequence[Job],
    specs: Mapping[Key, Spec],
    seeds: Sequence[int],
    workspaces: Mapping[tuple[str, ...], Workspace],
    out: Path,
    watch: ProgressListener | None,
    analyse: Sequence[str],
    engine: Engine | None,
) -> dict[Key, list[RunRecord]]:
    """The records of each job; jobs that share data and plan run together, equal specs once."""
    found: dict[Key, list[RunRecord]] = {}
    for place in dict.fromkeys((job.sets, job.plan) for job in jobs):
        together = [job for job in jobs if (job.sets, job.plan) == place]
        every = [replace(specs[job.key], seed=seed) for job in together for seed in seeds]
        unique = list({str(spec.json()): spec for spec in every}.values())
        done = run_all(
            unique, workspaces[place[0]], out, only=together[0].only, watch=watch, analyse=analyse, engine=engine
        )
        for job in together:
            own = {**specs[job.key].json(), "seed": None}
            found[job.key] = [record for record in done if {**record.spec, "seed": None} == own]
    return found


def _plain(records: Iterable[RunRecord], jobs: Iterable[Job]) -> list[RunRecord]:
    """The records without what follows from the plan, so that a row has one name on the page."""
    turns = {job.row.turns.removeprefix("method.") for job in jobs}
    found = []
    for record in records:
        spec = {key: value for key, value in record.spec.items() if key not in BY_PLAN}
        args = {key: value for key, value in spec["method_args"].items() if key not in turns}
        found.append(replace(record, spec={**spec, "method_args": args}))
    return found
