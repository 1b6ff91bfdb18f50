"""The runs of a search: every trial with every seed; one that diverges is left out and not tried again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from holdfast.assembly import Workshop
from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.engines.job import Engine
from holdfast.engines.many import run_all
from holdfast.engines.watch import Watch
from holdfast.protocols.divergence import Diverged
from holdfast.record import RunRecord, run_id
from holdfast.report.selection import RULES, Choice, choose, overall, trial
from holdfast.spec import Spec

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
        workshop: Workshop,
        out: Path,
        seeds: Sequence[int],
        select: str,
        *,
        watch: Watch,
        engine: Engine | None = None,
    ) -> None:
        self.engine = engine
        self.workshop, self.out, self.seeds, self.select, self.watch = workshop, out, seeds, select, watch
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
            specs, self.workshop, self.out, watch=self.watch, engine=self.engine, diverged=self._leave_out
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
        judged = {key: overall(runs, RULES[self.select], self.folds) for key, runs in own.items()}
        whole = {key: found for key, found in judged.items() if found and key not in self.failures}
        return [whole[each.key][each.spec.method][1] if each.key in whole else None for each in asked]

    def chosen(self) -> list[Choice]:
        """The trial taken for each method, episode and seed."""
        return choose(self.runs, RULES[self.select], self.folds)

    def best(self) -> dict[str, Trial]:
        """Method -> the trial that is best over all episodes and seeds."""
        return {m: self.found[key] for m, (key, _) in overall(self.runs, RULES[self.select], self.folds).items()}

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
        domains = self.workshop.dataset.domains
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
