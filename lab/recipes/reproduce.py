"""Run the rows of a published table and compare them with the printed numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.errors import Absent, BadInput
from holdfast.core.files import cache_folder
from holdfast.data.dataset import SPLITS, Dataset, join
from holdfast.data.splits import rows_by_domain
from holdfast.engines.work import run_all
from holdfast.record import RunRecord
from holdfast.report.page import write_report
from holdfast.spec import Spec
from holdfast.stats.summary import summarise
from holdfast.train.analyses import analysis_notes, choose_analyses
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Request, exclusion_reason, resolve, seed_list, training_domains
from holdfast.train.run import Engine
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace, choose_device
from lab.recipes.measure import Measurement, TableJob, gain_remarks, jobs_for, measure, remarks
from lab.recipes.recipe import Key, Recipe, load_recipe
from lab.recipes.specs import SpecBuilder

ROW_SETTINGS = ("method", "neck", "plan", "task", "seed")  # the rows of a table define these
COLUMN_SETTINGS = ("plan.targets", "plan.sources", "plan.order", "plan.domains", "plan.scored")  # and its columns these
DERIVED_SETTINGS = ("steps", "every", "batch", "warmup")  # depend on the number of training domains and examples


@dataclass(frozen=True)
class Reproduction:
    """A reproduced table: measured cells, records, report and notes."""

    recipe: Recipe
    cells: list[Measurement]
    records: list[RunRecord]
    report: Path
    notes: tuple[str, ...] = ()

    def table(self) -> list[dict[str, Any]]:
        """Return one dict per cell: row, column, metric, published number and error, mean, stderr, low, high, n."""
        return [cell.json() for cell in self.cells]


def reproduce(
    recipe: str, *, rows: Sequence[str] = (), columns: Sequence[str] = (), seeds: int | Sequence[int] = 5,
    out: str | Path = "runs/reproduce", encoder: str | None = None, tune: str | None = None,
    steps: int | None = None, batch: int | None = None, lr: float | None = None, device: str = "auto",
    cache: bool = True, examples: int | None = None, data_dir: Path | None = None,
    settings: Mapping[str, Any] | None = None, analyse: Sequence[str] = (),
    watch: ProgressListener | None = None, engine: Engine | None = None,
) -> Reproduction:  # fmt: skip
    """Run rows and columns of a published table with its settings; arguments other than None replace them."""
    table = load_recipe(recipe)
    cells = table.choose(rows, columns)
    jobs = jobs_for(table, cells)
    if not seed_list(seeds):
        raise BadInput("nothing to run: give at least one seed")
    if not jobs:
        names = {cell.row.name for cell in cells}
        why = "; ".join(reason for reason, rows in table.reasons.items() if names & set(rows))
        raise BadInput(f"no chosen row of {table.name} can be run ({why}): choose other rows or another table")
    options = {"tune": tune, "batch": batch, "lr": lr, **(settings or {})}
    options = {key: value for key, value in options.items() if value is not None}
    steps, encoder = options.pop("steps", steps), options.pop("encoder", encoder)
    _check_options(table, jobs, encoder, options)
    tasks = {name: table.task(name) for job in jobs for name in job.sets}
    analyses = choose_analyses(analyse, tasks.values())
    sets, absent = _read_all(tasks, data_dir=data_dir)
    by_sets = {job.sets: job for job in jobs if not absent.keys() & set(job.sets)}
    shared = {"cache": cache_folder() if cache else None, "out": Path(out), "analyse": tuple(analyses)}
    on = choose_device(device)
    workspaces = {key: Workspace(job_dataset(job, sets, examples), on, **shared) for key, job in by_sets.items()}
    builder = SpecBuilder(table, jobs, encoder=encoder, steps=steps, options=options)
    missing = {job.key: missing_data(job, sets, absent) or missing_option(job, options) for job in jobs}
    reasons = {key: reason for key, reason in missing.items() if reason}
    specs = {job.key: builder.spec(job, workspaces[job.sets]) for job in jobs if job.key not in reasons}
    for job in jobs:
        if job.key in specs and (reason := _equals_baseline(specs[job.key], workspaces[job.sets])):
            reasons[job.key] = reason
    runnable = [job for job in jobs if job.key not in reasons]
    if not runnable:
        raise BadInput(f"no row of {table.name} can be run here: {'; '.join(dict.fromkeys(reasons.values()))}")
    records = _run(runnable, specs, seed_list(seeds), workspaces, watch, engine)
    measurements = measure(table, cells, records, reasons)
    runs = list({record.id: record for group in records.values() for record in group}.values())
    notes = (
        *builder.notes(runnable, specs),
        *remarks(table, measurements),
        *gain_remarks(table, measurements),
        *(note for dataset in sets.values() for note in dataset.notes),
        *analysis_notes(runs, analyses),
    )
    title = f"Holdfast: {table.name}, published and measured"
    summary = summarise(_plain(runs, jobs), str(table.settings["metric"]))
    page = write_report(summary, Path(out) / "report.html", title=title, notes=notes)
    return Reproduction(table, measurements, runs, page, notes)


def _check_options(table: Recipe, jobs: Sequence[TableJob], encoder: str | None, options: Mapping[str, Any]) -> None:
    """Raise `BadInput` for options that the rows or columns of the table define."""
    for name in options:
        if name in ROW_SETTINGS:
            raise BadInput(f"the rows of {table.name} define {name}: leave --set {name}=... out")
        if name in COLUMN_SETTINGS:
            raise BadInput(f"the columns of {table.name} define {name}: choose columns with --columns")
    rows = [job.row.name for job in jobs if "encoder" in job.row.settings and not missing_option(job, options)]
    if encoder is not None and rows:
        every = {job.row.name for job in jobs} == set(rows)
        named = "" if every else f" {', '.join(dict.fromkeys(rows))}"
        fix = "--encoder" if every else "--encoder or these rows"
        raise BadInput(f"the rows{named} of {table.name} define their encoder: leave {fix} out")


def job_dataset(job: TableJob, sets: Mapping[str, Dataset], examples: int | None) -> Dataset:
    """Join the training data set with the scored rows of the others, with at most `examples` per domain."""
    members = [sets[job.data]]
    for name in job.sets[1:]:
        rows = rows_by_domain(sets[name])[name].test_part(job.targets[name]).rows
        members.append(replace(sets[name].subset(rows), split=None))
    dataset = join(members) if len(members) > 1 else members[0]
    return dataset if examples is None else dataset.limited(examples)


def _read_all(tasks: Mapping[str, str], *, data_dir: Path | None) -> tuple[dict[str, Dataset], dict[str, str]]:
    """Return the available data sets and why others are missing; raise if all are missing."""
    sets: dict[str, Dataset] = {}
    absent: dict[str, Absent] = {}
    for name, task in tasks.items():
        try:
            sets[name] = training_data(name, task=task, data_dir=data_dir)
        except Absent as error:
            absent[name] = error
    if not sets:
        raise next(iter(absent.values()))
    return sets, {name: str(error) for name, error in absent.items()}


def missing_data(job: TableJob, sets: Mapping[str, Dataset], absent: Mapping[str, str] | None = None) -> str:
    """Return why the data does not suffice for a job, or an empty string."""
    missing = [reason for name, reason in (absent or {}).items() if name in job.sets]
    if missing:
        return missing[0]
    split = sets[job.data].split
    untrained = split is not None and not (split == SPLITS.index("train")).any()
    return f"the file of {job.data} has no training rows" if untrained else ""


def missing_option(job: TableJob, options: Mapping[str, Any]) -> str:
    """Return the message for a setting that the user has to supply for this row, or an empty string."""
    return next((message for name, message in job.row.required.items() if name not in options), "")


def _equals_baseline(spec: Spec, workspace: Workspace) -> str:
    """Return why a row has too few domains or would train exactly as the baseline, or an empty string."""
    sources = training_domains(workspace.episodes(spec), spec.select, spec.domains_per_step)
    reason, _, _ = exclusion_reason(spec.method, spec, sources).partition(" (")  # the rows do not allow its fix
    return reason


def _run(
    jobs: Sequence[TableJob], specs: Mapping[Key, Spec], seeds: Sequence[int],
    workspaces: Mapping[tuple[str, ...], Workspace], watch: ProgressListener | None, engine: Engine | None,
) -> dict[Key, list[RunRecord]]:  # fmt: skip
    """Return the records of every job; jobs that share data and plan run together, equal specs once."""
    records: dict[Key, list[RunRecord]] = {}
    for group in dict.fromkeys((job.sets, job.plan) for job in jobs):
        members = [job for job in jobs if (job.sets, job.plan) == group]
        seeded = [replace(specs[job.key], seed=seed) for job in members for seed in seeds]
        unique = list({str(spec.json()): spec for spec in seeded}.values())
        workspace = workspaces[group[0]]
        runs = resolve(Request(specs=unique, only=members[0].only), workspace)
        done = run_all(runs, workspace, watch=watch, engine=engine)
        for job in members:
            spec = {**specs[job.key].json(), "seed": None}
            records[job.key] = [record for record in done if {**record.spec, "seed": None} == spec]
    return records


def _plain(records: Iterable[RunRecord], jobs: Iterable[TableJob]) -> list[RunRecord]:
    """Drop derived settings from the records, so that a row has one name in the report."""
    turns = {job.row.turn_setting.removeprefix("method.") for job in jobs}

    def spec(record: RunRecord) -> dict[str, Any]:
        args = {key: value for key, value in record.spec["method_args"].items() if key not in turns}
        plain = {key: value for key, value in record.spec.items() if key not in DERIVED_SETTINGS}
        return {**plain, "method_args": args}

    return [replace(record, spec=spec(record)) for record in records]
