"""sweep: a hyper-parameter search for each method, chosen by validation alone, to a table and files to fit by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from holdfast.comparison import as_names, training_data
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder, write_text
from holdfast.data.readers.memory import Source
from holdfast.protocols.fit import Diverged
from holdfast.record import LOWER_IS_BETTER, RunRecord, paths, run_id
from holdfast.report.page import write_report
from holdfast.report.selection import CRITERIA, Choice, choose, overall, trial
from holdfast.report.table import flat_table
from holdfast.run.assemble import Workspace
from holdfast.run.jobs import Engine
from holdfast.run.many import run_all
from holdfast.run.occupied import COMPARED, check_own
from holdfast.run.progress import ProgressListener
from holdfast.run.settings import choose_device, choose_methods, make_spec
from holdfast.run.train import scored_episodes, training_domains
from holdfast.search.space import make_sampler, space_of
from holdfast.spec import Spec

NOT_IN_A_FILE = ("data", "fingerprint", "seed", "plan", "plan_args", "select", "precision")


@dataclass(frozen=True)
class Sweep:
    """What a search leaves: the chosen run of each method, target and seed, and one configuration of each method."""

    chosen: list[Choice]
    trials: dict[str, Trial]  # by the key a choice names
    searched: tuple[str, ...]  # the settings that trials differ in
    select: str
    metric: str
    best: dict[str, Path]  # method -> a file for `--config`
    report: Path
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> list[RunRecord]:
        """The chosen runs as they were recorded."""
        return [choice.run for choice in self.chosen]

    def told(self) -> list[RunRecord]:
        """The chosen runs with what was searched taken out of their specs, so that a method is one row of a table."""
        return [replace(choice.run, spec=self._without(choice.run.spec)) for choice in self.chosen]

    def table(self) -> list[dict[str, Any]]:
        """One dict a cell: method, target, metric, mean, stderr, n."""
        return flat_table(self.told(), self.metric)

    def choices(self) -> list[dict[str, Any]]:
        """Which trial was taken where, and by which validation score."""
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        found = []
        for c in self.chosen:
            taken = {"method": c.method, "episode": c.episode, "seed": c.seed, "trial": self.trials[c.trial].number}
            told = {"settings": self.trials[c.trial].drawn, "validation": sign * c.score, "record": c.run.id}
            found.append(taken | told)
        return found

    def _without(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: dict(value) if isinstance(value, dict) else value for key, value in spec.items()}
        for key in self.searched:
            group, dot, inner = key.partition(".")
            (kept[f"{group}_args"] if dot else kept).pop(inner if dot else key, None)
        return kept | {"select": self.select, "trials": 1 + max(each.number for each in self.trials.values())}


def sweep(
    data: Source,
    *,
    methods: str | Sequence[str] = ("all",),
    trials: int = 20,
    seeds: int | Sequence[int] = 3,
    sampler: str = "random",
    out: str | Path = "runs/sweep",
    encoder: str = "auto",
    tune: str = "auto",
    plan: str = "leave-one-out",
    select: str = "train-validation",
    metric: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    device: str = "auto",
    cache: bool = True,
    columns: Mapping[str, str] | None = None,
    examples: int | None = None,
    data_dir: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watch: ProgressListener | None = None,
    engine: Engine | None = None,
) -> Sweep:
    """Run every trial of every method: trial 0 is the defaults, the others are drawn; what the user sets is fixed."""
    if trials < 1:
        raise BadInput(f"--trials must be at least 1, not {trials}: trial 0 is the published defaults")
    make_sampler(sampler, {})  # a wrong name or a missing package is said before anything is read
    dataset = training_data(data, task=(settings or {}).get("task"), columns=columns, data_dir=data_dir)
    if examples is not None:
        dataset = dataset.limited(examples)
    where, methods = choose_device(device), as_names(methods)
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or not methods:
        raise BadInput("nothing to run: give at least one seed and one method")
    if any("+" in name for name in methods):
        raise BadInput("a sweep takes names of methods alone: give the neck with --set neck=NAME")
    given = {"steps": steps, "batch": batch, "lr": lr, **(settings or {})}
    given = {key: value for key, value in given.items() if value is not None}
    often = {} if steps is None else {"every": max(1, min(25, steps // 4))}

    def trial(name: str | None, number: int, drawn: dict[str, Any]) -> Trial:
        spec = make_spec(
            dataset, encoder=encoder, tune=tune, settings={**often, **given, **drawn}, device=where,
            method=name, plan=plan, select=select, metric=metric,
        )  # fmt: skip
        return Trial(number, drawn, spec)

    workspace = Workspace(dataset, device=where, cache=cache_folder() if cache else None)
    first = trial(None if methods[0] == "all" else methods[0], 0, {}).spec
    check_folds(first, dataset.domains)
    if any(Path(out).glob("best-*.json")):
        check_own(Path(out), paths(Path(out)), first, settings=COMPARED)
    names, left = choose_methods(methods, first, training_domains(scored_episodes(first, workspace), first.select))
    spaces = {name: space_of(trial(name, 0, {}).spec, given) for name in names}
    samplers = {name: make_sampler(sampler, space) for name, space in spaces.items()}
    rounds = [list(range(trials))] if sampler == "random" else [[number] for number in range(trials)]
    done = Trials(
        workspace,
        Path(out),
        numbers,
        first.select,
        watch=_Once(watch or ProgressListener(), len(rounds)),
        engine=engine,
    )
    for some in rounds:
        pairs = [(name, number) for number in some for name in names]
        asked = [trial(name, number, samplers[name].ask(number) if number else {}) for name, number in pairs]
        done.run(asked)
        for each, score in zip(asked, done.judge(asked), strict=True):
            samplers[each.spec.method].tell(each.number, score)
    searched = tuple(dict.fromkeys(key for space in spaces.values() for key in space))
    return _finish(done, names, searched, Path(out), f"{dataset.name}, {trials} trials", (*dataset.notes, *left))


def _finish(
    done: Trials, names: Sequence[str], searched: tuple[str, ...], out: Path, title: str, notes: tuple[str, ...]
) -> Sweep:
    """Choose, and write the page and a file for each method."""
    best = done.best()
    for name in names:
        if name not in best:
            raise BadInput(f"every trial of {name} failed: lower --lr, or use --set clip=1")
    count = 1 + max(each.number for each in done.found.values())
    told = [f"scores are of the trial, among {count}, that {done.select} chose for each target and seed"]
    for name in names:
        said = ", ".join(f"{key}={value}" for key, value in best[name].drawn.items()) or "the defaults"
        told.append(f"{name}: over all targets and seeds trial {best[name].number} is best ({said})")
    made = Sweep(
        done.chosen(), done.found, searched, done.select, best[names[0]].spec.metric,
        {name: _write_best(best[name].spec, out) for name in names}, out / "report.html",
        (*notes, *told, *done.failures.values()),
    )  # fmt: skip
    write_report(made.told(), made.report, title=f"Holdfast: {title}", metric=made.metric, notes=made.notes)
    return made


def _write_best(spec: Spec, out: Path) -> Path:
    """Every setting of a spec but what belongs to the data, the plan and the machine, as `--config` takes them."""
    found: dict[str, Any] = {}
    for key, value in spec.json().items():
        group, args, _ = key.partition("_args")
        if key not in NOT_IN_A_FILE:
            found |= {f"{group}.{inner}": each for inner, each in value.items()} if args else {key: value}
    name = re.sub(r"[^\w.+-]+", "-", spec.method).strip("-")
    return write_text(out / f"best-{name}.json", json.dumps(found, indent=1) + "\n")


class _Once(ProgressListener):
    """One count of runs for all rounds, told when the first begins."""

    def __init__(self, inner: ProgressListener, rounds: int) -> None:
        self.inner, self.rounds, self.told = inner, rounds, False
        self.begin, self.step, self.end, self.encoding = inner.begin, inner.step, inner.end, inner.encoding
        self.worker_steps = inner.worker_steps

    def start(self, total: int, finished: int) -> None:
        if not self.told:
            self.inner.start(total * self.rounds, finished)
        self.told = True


FOLDS = "leave-one-domain-out"


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration of one method: its number, the settings drawn for it, and the spec they make."""

    number: int
    drawn: dict[str, Any]
    spec: Spec

    @property
    def key(self) -> str:
        return trial(self.spec.json())


class Trials:
    """The trials run so far, told apart by what makes them; the rule that judges them is that of their specs."""

    def __init__(
        self,
        workspace: Workspace,
        out: Path,
        seeds: Sequence[int],
        select: str,
        *,
        watch: ProgressListener,
        engine: Engine | None = None,
    ) -> None:
        self.engine = engine
        self.workspace, self.out, self.seeds, self.select, self.watch = workspace, out, seeds, select, watch
        self.found: dict[str, Trial] = {}  # by key; of equal trials the first
        self.runs: list[RunRecord] = []
        self.folds: list[RunRecord] = []  # runs that leave out two domains, for leave-one-domain-out
        self.failures: dict[str, str] = {}  # key -> what was said when it diverged

    def run(self, asked: Sequence[Trial]) -> None:
        """Run what is not done yet, all at once; what diverges is written down, and the others are kept."""
        specs = []
        for each in asked:
            if self.found.setdefault(each.key, each) is each:
                specs += [job for seed in self.seeds for job in self._jobs(replace(each.spec, seed=seed))]
        specs = [spec for spec in specs if not self._failed(spec)]
        for record in run_all(
            specs, self.workspace, self.out, watch=self.watch, engine=self.engine, diverged=self._leave_out
        ):
            fold = self.select == FOLDS and record.spec["plan"] == "cross-dataset"
            (self.folds if fold else self.runs).append(record)

    def judge(self, asked: Sequence[Trial]) -> list[float | None]:
        """The mean validation score of each over all episodes and seeds, higher is better; None where it failed."""
        keys = {each.key for each in asked}
        own: dict[str, list[RunRecord]] = {key: [] for key in keys}
        for run in self.runs:
            if (key := trial(run.spec)) in keys:
                own[key].append(run)
        judged = {key: overall(runs, CRITERIA[self.select], self.folds) for key, runs in own.items()}
        whole = {key: found for key, found in judged.items() if found and key not in self.failures}
        return [whole[each.key][each.spec.method][1] if each.key in whole else None for each in asked]

    def chosen(self) -> list[Choice]:
        """The trial taken for each method, episode and seed."""
        return choose(self.runs, CRITERIA[self.select], self.folds)

    def best(self) -> dict[str, Trial]:
        """Method -> the trial that is best over all episodes and seeds."""
        return {m: self.found[key] for m, (key, _) in overall(self.runs, CRITERIA[self.select], self.folds).items()}

    def _leave_out(self, spec: Spec, error: Diverged) -> None:
        number = self.found[trial(spec.json())].number
        write_text(self._failure(spec), f"{spec.method}, trial {number}, seed {spec.seed} is left out: {error}")
        self._failed(spec)

    def _jobs(self, spec: Spec) -> Iterator[Spec]:
        """The run itself, and for leave-one-domain-out those that leave out a second domain as well."""
        if self.select != FOLDS:
            yield spec
            return
        spec = replace(spec, select="train-validation")
        yield spec
        domains = self.workspace.dataset.domains
        targets = spec.plan_args.get("targets") or domains
        share = {key: value for key, value in spec.plan_args.items() if key == "valid"}
        for pair in combinations(domains, 2):
            if set(pair) & set(targets):
                rest = [domain for domain in domains if domain not in pair]
                yield replace(spec, plan="cross-dataset", plan_args={"targets": list(pair), "sources": rest} | share)

    def _failed(self, spec: Spec) -> bool:
        """Whether it is written down that this spec diverged."""
        path = self._failure(spec)
        if path.exists():
            self.failures[trial(spec.json())] = path.read_text(encoding="utf-8")
        return path.exists()

    def _failure(self, spec: Spec) -> Path:
        return self.out / "diverged" / f"{run_id(spec.json(), 'diverged')}.txt"


def check_folds(spec: Spec, domains: Sequence[str]) -> None:
    """One sentence where leave-one-domain-out has nothing to leave out."""
    if spec.select == FOLDS and (spec.plan != "leave-one-out" or len(domains) < 3):
        raise BadInput(
            f"a sweep selects by {FOLDS} with the plan leave-one-out and at least 3 domains; here the plan is "
            f"{spec.plan} and the data has {len(domains)} domains: use --select train-validation"
        )
