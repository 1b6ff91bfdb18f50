"""From the rows of a published table to specs: what was published, with what the user says over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast import catalog
from holdfast.core.errors import unknown
from holdfast.recipes.base import Key, Recipe
from holdfast.recipes.measure import Job
from holdfast.run.assemble import Workspace
from holdfast.run.settings import make_spec
from holdfast.run.train import episodes
from holdfast.spec import Spec

SECTIONS = {"method": "methods", "encoder": "encoders", "neck": "necks", "plan": "protocols", "task": "tasks"}


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

    def spec(self, job: Job, workspace: Workspace) -> Spec:
        """The published number of epochs is counted in the examples that train here."""
        of_data = self.recipe.data_settings.get(job.data, {})
        of_data = {key: value for key, value in of_data.items() if key != "encoder" and self._applies(key, job)}
        own_there = job.row.on.get(job.data, {})
        settings = {**self.recipe.settings, **of_data, **job.row.settings, **own_there, "plan": job.plan}
        if self.encoder is None:
            settings |= self.recipe.encoder_settings.get(job.data, {})
        settings |= self.recipe.starts.get(job.row.start, {}).get(job.data, {})
        if job.plan == "cross-dataset":
            settings["plan.targets"] = list(job.targets)
        elif job.plan == "leave-one-out" and set(job.targets.values()) != {"test"}:
            (settings["plan.scored"],) = set(job.targets.values())
        if job.select:
            settings["select"] = job.select
        own = {key: _filled(value, job) for key, value in self.given.items() if self._applies(key, job)}
        name = self._encoder(job)
        first = make_spec(workspace.dataset, encoder=name, device=workspace.device, settings={**settings, **own})
        trained = [stage.train for episode in episodes(first, workspace) for stage in episode.stages]
        domains, examples = max(map(len, trained)), max(sum(map(len, parts)) for parts in trained)
        budget = self.recipe.budgets.get(job.data, self.recipe.budget)
        if job.row.steps:
            budget = replace(budget, steps=job.row.steps, epochs=0)
        settings |= budget.settings(domains=domains, examples=examples, steps=self.steps)
        if job.row.turns:
            settings[job.row.turns] = budget.turn(domains=domains, steps=settings["steps"])
        return make_spec(workspace.dataset, encoder=name, device=workspace.device, settings={**settings, **own})

    def _applies(self, key: str, job: Job) -> bool:
        """A setting of a method, an encoder, a neck, a plan or a task goes to the jobs whose part has it."""
        group, dot, inner = key.partition(".")
        return not dot or group not in SECTIONS or inner in self._settings(group, job)

    def _encoder(self, job: Job) -> str:
        of_data = self.recipe.data_settings.get(job.data, {}).get("encoder")
        return str(job.row.settings.get("encoder") or self.encoder or of_data or self.recipe.encoder)

    def _settings(self, group: str, job: Job) -> list[str]:
        """What can be set of a job's method, encoder, neck, plan or task."""
        own = {"plan": job.plan, "encoder": self._encoder(job), "task": self.recipe.task(job.data)}
        part = own.get(group) or str(job.row.settings.get(group, "none"))
        return [name for _, layer in catalog.unwrap(SECTIONS[group], part) for name in layer.setting_names()]

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


def _filled(value: Any, job: Job) -> Any:
    """`models/{start}-{data}` names a folder for each start of a row and each data set."""
    if not isinstance(value, str):
        return value
    return value.replace("{start}", job.row.start).replace("{data}", job.data.partition("@")[0])
