"""Build the specs of a published table: its settings, overridden by the user's options."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast import catalog
from holdfast.core.errors import check_known
from holdfast.data.dataset import Dataset
from holdfast.spec import RATE_PARTS, Spec
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from lab.recipes.measure import TableJob
from lab.recipes.recipe import Key, Recipe

# unless a recipe sets them; the defaults of other runs may change without changing a recipe
PUBLISHED = {"decay": "all", "schedule": "constant", "average": "none", "patience": 0, "encoder.length": None}
FROM_SCRATCH, FINE_TUNING = {"lr": 1e-3, "clip": 0.0}, {"lr": 5e-5, "clip": 1.0}
SECTIONS = {"method": "methods", "encoder": "encoders", "neck": "necks", "plan": "protocols", "task": "tasks"}


class SpecBuilder:
    """Builds the spec of every job of a table."""

    def __init__(
        self, recipe: Recipe, jobs: Sequence[TableJob], *,
        encoder: str | None, steps: int | None, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.recipe, self.encoder, self.steps, self.options = recipe, encoder, steps, options
        for key in options:
            group, _, name = key.partition(".")
            if group == "lr" and name:
                check_known("setting of lr", name, RATE_PARTS)
            if group in SECTIONS:
                known = {other for job in jobs for other in self._setting_names(group, job)}
                check_known(f"{group} setting of {recipe.name}", name, known)

    def spec(self, job: TableJob, workspace: Workspace) -> Spec:
        """Return the spec of a job; published epochs are converted to steps on the given training data."""
        data_settings = self.recipe.data_settings.get(job.data, {})
        settings = {
            **PUBLISHED,
            **self.recipe.settings,
            **{key: value for key, value in data_settings.items() if key != "encoder" and self._applies(key, job)},
            **job.row.settings,
            **job.row.data_settings.get(job.data, {}),
            "plan": job.plan,
        }
        if self.encoder is None:
            settings |= self.recipe.encoder_settings.get(job.data, {})
        settings |= self.recipe.starts.get(job.row.start, {}).get(job.data, {})
        if job.plan == "cross-dataset":
            settings["plan.targets"] = list(job.targets)
        elif job.plan == "leave-one-out" and set(job.targets.values()) != {"test"}:
            (settings["plan.scored"],) = set(job.targets.values())
        if job.select:
            settings["select"] = job.select
        options = {key: _filled(value, job) for key, value in self.options.items() if self._applies(key, job)}
        encoder, device = self._encoder(job), workspace.device
        first = _published_spec(workspace.dataset, {**settings, **options}, encoder=encoder, device=device)
        trained = [stage.train for episode in workspace.episodes(first) for stage in episode.stages]
        domains, examples = max(map(len, trained)), max(sum(map(len, domains)) for domains in trained)
        budget = self.recipe.budgets.get(job.data, self.recipe.budget)
        if job.row.steps:
            budget = replace(budget, steps=job.row.steps, epochs=0)
        settings |= budget.settings(domains=domains, examples=examples, steps=self.steps)
        if job.row.turn_setting:
            settings[job.row.turn_setting] = budget.turn(domains=domains, steps=settings["steps"])
        return _published_spec(workspace.dataset, {**settings, **options}, encoder=encoder, device=device)

    def notes(self, jobs: Iterable[TableJob], specs: Mapping[Key, Spec]) -> list[str]:
        """Return what differs from the published settings, and the length of every job."""
        lines = []
        if self.encoder not in (None, self.recipe.encoder):
            lines.append(f"published with {self.recipe.encoder}, run with {self.encoder} and its default settings")
        if self.options:
            changes = ", ".join(f"{key}={value}" for key, value in self.options.items())
            lines.append(f"changed from the published settings: {changes}")
        for job in jobs:
            spec = specs[job.key]
            length = f"{spec.steps} steps per phase, {spec.batch} examples per domain, learning rate {spec.lr:g}"
            lines.append(f"{spec.data}, {job.plan}: {length}, tune {spec.tune}")
        return list(dict.fromkeys(lines))

    def _applies(self, key: str, job: TableJob) -> bool:
        """Whether the part of a job has this setting; settings of the run always apply."""
        group, dot, name = key.partition(".")
        return not dot or group not in SECTIONS or name in self._setting_names(group, job)

    def _encoder(self, job: TableJob) -> str:
        data_encoder = self.recipe.data_settings.get(job.data, {}).get("encoder")
        return str(job.row.settings.get("encoder") or self.encoder or data_encoder or self.recipe.encoder)

    def _setting_names(self, group: str, job: TableJob) -> list[str]:
        chosen = {"plan": job.plan, "encoder": self._encoder(job), "task": self.recipe.task(job.data)}
        part = chosen.get(group) or str(job.row.settings.get(group, "none"))
        return [name for _, entry in catalog.unwrap(SECTIONS[group], part) for name in entry.setting_names()]


def _published_spec(dataset: Dataset, settings: Mapping[str, Any], **options: Any) -> Spec:
    """Return the spec of these settings, with one learning rate for all parts unless `lr.NAME` changes it."""
    rates = {key: value for key, value in settings.items() if key.startswith("lr.")}
    spec = make_spec(dataset, settings={key: settings[key] for key in settings.keys() - rates.keys()}, **options)
    tuned = spec.tune != "frozen" and "lr_args" in catalog.lookup("encoders", spec.encoder).defaults
    defaults = FINE_TUNING if tuned else FROM_SCRATCH
    unset = {key: value for key, value in defaults.items() if key not in settings}
    return replace(spec, lr_args={part: rates.get(f"lr.{part}", 1.0) for part in spec.lr_args}, **unset)


def _filled(value: Any, job: TableJob) -> Any:
    """Replace `{start}` and `{data}` in a path."""
    if not isinstance(value, str):
        return value
    return value.replace("{start}", job.row.start).replace("{data}", job.data.partition("@")[0])
