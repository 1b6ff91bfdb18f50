"""reproduce: a published table, row by row, beside what is measured here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast import catalog
from holdfast.assembly import Workshop
from holdfast.comparison import training_data
from holdfast.core.errors import BadInput, unknown
from holdfast.core.files import cache_folder
from holdfast.data.domain import SPLITS, Dataset
from holdfast.data.join import join
from holdfast.data.splits import shares
from holdfast.engines.local import run_all
from holdfast.engines.watch import Watch
from holdfast.experiment import episodes, training_domains
from holdfast.recipes.base import Key, Recipe
from holdfast.recipes.jobs import Job, jobs_for
from holdfast.recipes.measure import Measured, measure, remarks
from holdfast.record import RunRecord
from holdfast.report.page import write_page
from holdfast.settings import choose_device, make_spec, unfit
from holdfast.spec import Spec

ROWS_SAY = ("method", "neck", "plan", "task", "seed")
COLUMNS_SAY = ("plan.targets", "plan.sources", "plan.order", "plan.domains", "plan.scored")
BY_PLAN = ("steps", "every", "batch", "warmup")  # follow from how many domains and examples train
SECTIONS = {"method": "methods", "encoder": "encoders", "neck": "necks", "plan": "protocols"}


@dataclass(frozen=True)
class Reproduction:
    """What a reproduced table leaves: its cells with what was measured, the records, the page and remarks."""

    recipe: Recipe
    cells: list[Measured]
    records: list[RunRecord]
    report: Path
    notes: tuple[str, ...] = ()

    def table(self) -> list[dict[str, Any]]:
        """One dict a cell: row, column, metric, published, mean, stderr, low, high, n, reason; numbers as printed."""
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
    watch: Watch | None = None,
) -> Reproduction:
    """Run the chosen rows and columns of a published table with its settings, or with what is given in their place."""
    table: Recipe = catalog.entry("recipes", recipe).load()()
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
    if encoder is not None and any("encoder" in job.row.settings for job in jobs):
        raise BadInput(f"the rows of {table.name} say what their encoder is: leave --encoder out")
    where, folder = choose_device(device), cache_folder() if cache else None
    names = dict.fromkeys(name for job in jobs for name in job.sets)
    sets = {name: training_data(name, task=table.settings.get("task"), data_dir=data_dir) for name in names}
    first = {job.sets: job for job in jobs}  # any of the jobs on these data sets
    shops = {key: Workshop(dataset_of(job, sets, examples), device=where, cache=folder) for key, job in first.items()}
    maker = Maker(table, jobs, encoder=encoder, steps=steps, given=given)
    reasons = {job.key: reason for job in jobs if (reason := lacks(job, sets))}
    specs = {job.key: maker.spec(job, shops[job.sets]) for job in jobs if job.key not in reasons}
    for job in jobs:
        if job.key in specs and (reason := _as_baseline(specs[job.key], shops[job.sets])):
            reasons[job.key] = reason
    chosen = [job for job in jobs if job.key not in reasons]
    if not chosen:
        raise BadInput(f"nothing of {table.name} can be run here: {'; '.join(dict.fromkeys(reasons.values()))}")
    records = _run(chosen, specs, numbers, shops, Path(out), watch)
    made = measure(table, cells, records, reasons)
    runs = list({record.id: record for own in records.values() for record in own}.values())
    notes = (
        *maker.told(chosen, specs),
        *remarks(table, made),
        *(note for each in sets.values() for note in each.notes),
    )
    title = f"Holdfast: {table.name}, published and measured"
    metric = str(table.settings["metric"])
    page = write_page(_plain(runs, jobs), Path(out) / "report.html", title=title, metric=metric, notes=notes)
    return Reproduction(table, made, runs, page, notes)


def dataset_of(job: Job, sets: Mapping[str, Dataset], examples: int | None) -> Dataset:
    """The data set that trains, joined with the scored rows of those that do not; at most so many of each domain."""
    parts = [sets[job.data]]
    for name in job.sets[1:]:
        rows = shares(sets[name])[name].tested(job.targets[name]).rows
        parts.append(replace(sets[name].subset(rows), split=None))
    found = join(parts) if len(parts) > 1 else parts[0]
    return found if examples is None else found.limited(examples)


def lacks(job: Job, sets: Mapping[str, Dataset]) -> str:
    """Why the data cannot serve a job; empty where it can."""
    split = sets[job.data].split
    untrained = split is not None and not (split == SPLITS.index("train")).any()
    return f"the file of {job.data} has no training rows" if untrained else ""


def _as_baseline(spec: Spec, shop: Workshop) -> str:
    """Why a row has too few domains or would train exactly as the baseline; empty where it would not."""
    sources = training_domains(episodes(spec, shop), spec.select)
    return unfit(spec.method, spec, sources).partition(" (")[0]  # without the mends, which the rows do not allow


def _run(
    jobs: Sequence[Job],
    specs: Mapping[Key, Spec],
    seeds: Sequence[int],
    shops: Mapping[tuple[str, ...], Workshop],
    out: Path,
    watch: Watch | None,
) -> dict[Key, list[RunRecord]]:
    """The records of each job; jobs that share data and plan run together, equal specs once."""
    found: dict[Key, list[RunRecord]] = {}
    for place in dict.fromkeys((job.sets, job.plan) for job in jobs):
        together = [job for job in jobs if (job.sets, job.plan) == place]
        every = [replace(specs[job.key], seed=seed) for job in together for seed in seeds]
        unique = list({str(spec.json()): spec for spec in every}.values())
        done = run_all(unique, shops[place[0]], out, only=together[0].only, watch=watch)
        for job in together:
            own = {**specs[job.key].json(), "seed": None}
            found[job.key] = [record for record in done if {**record.spec, "seed": None} == own]
    return found


class Maker:
    """From a job to its spec: what was published, with what the user says over it."""

    def __init__(
        self,
        recipe: Recipe,
        jobs: Sequence[Job],
        *,
        encoder: str | None,
        steps: int | None,
        given: Mapping[str, Any],
    ) -> None:
        self.recipe, self.encoder, self.steps, self.given = recipe, encoder, steps, given
        for key in given:
            group, _, inner = key.partition(".")
            known = {name for job in jobs for name in self._settings(group, job)} if group in SECTIONS else {inner}
            if inner not in known:
                article = "an" if group == "encoder" else "a"
                raise unknown(f"setting of {article} {group} of {recipe.name}", inner, known)

    def spec(self, job: Job, shop: Workshop) -> Spec:
        """The published number of epochs is counted in the examples that train here."""
        settings = {**self.recipe.settings, **job.row.settings, "plan": job.plan}
        if self.encoder is None:
            settings |= self.recipe.encoder_settings.get(job.data, {})
        if job.plan == "cross-dataset":
            settings["plan.targets"] = list(job.targets)
        elif job.plan == "leave-one-out" and set(job.targets.values()) != {"test"}:
            (settings["plan.scored"],) = set(job.targets.values())
        own = {key: value for key, value in self.given.items() if self._applies(key, job)}
        name = self._encoder(job)
        first = make_spec(shop.dataset, encoder=name, device=shop.device, settings={**settings, **own})
        trained = [stage.train for episode in episodes(first, shop) for stage in episode.stages]
        domains, examples = max(map(len, trained)), max(sum(map(len, parts)) for parts in trained)
        budget = self.recipe.budget
        settings |= budget.settings(domains=domains, examples=examples, steps=self.steps)
        if job.row.turns:
            settings[job.row.turns] = budget.turn(domains=domains, steps=settings["steps"])
        return make_spec(shop.dataset, encoder=name, device=shop.device, settings={**settings, **own})

    def _applies(self, key: str, job: Job) -> bool:
        """A setting of a method, an encoder, a neck or a plan goes to the jobs whose part has it."""
        group, _, inner = key.partition(".")
        return group not in SECTIONS or inner in self._settings(group, job)

    def _encoder(self, job: Job) -> str:
        return str(job.row.settings.get("encoder") or self.encoder or self.recipe.encoder)

    def _settings(self, group: str, job: Job) -> list[str]:
        """What can be set of a job's method, encoder, neck or plan."""
        own = {"plan": job.plan, "encoder": self._encoder(job)}
        part = own.get(group) or str(job.row.settings.get(group, "none"))
        return [name for _, layer in catalog.layers(SECTIONS[group], part) for name in layer.settings()]

    def told(self, jobs: Iterable[Job], specs: Mapping[Key, Spec]) -> list[str]:
        """Which encoder stands in for the published one, what else was set, and how long each plan trained."""
        found = []
        if self.encoder not in (None, self.recipe.encoder):
            found.append(f"published with {self.recipe.encoder}, run with {self.encoder} and its own settings")
        if self.given:
            over = ", ".join(f"{key}={value}" for key, value in self.given.items())
            found.append(f"set here, over what was published: {over}")
        for job in jobs:
            spec = specs[job.key]
            long = (
                f"{spec.steps} steps in each phase, {spec.batch} examples of each domain in a batch, rate {spec.lr:g}"
            )
            found.append(f"{spec.data}, {job.plan}: {long}, tuning {spec.tune}")
        return list(dict.fromkeys(found))


def _plain(records: Iterable[RunRecord], jobs: Iterable[Job]) -> list[RunRecord]:
    """The records without what follows from the plan, so that a row has one name on the page."""
    turns = {job.row.turns.removeprefix("method.") for job in jobs}
    found = []
    for record in records:
        spec = {key: value for key, value in record.spec.items() if key not in BY_PLAN}
        args = {key: value for key, value in spec["method_args"].items() if key not in turns}
        found.append(replace(record, spec={**spec, "method_args": args}))
    return found
