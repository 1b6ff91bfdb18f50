"""Facts about the runs of a report: shared settings, and per configuration its settings, runs and command."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from holdfast.catalog.rates import changed_rates
from holdfast.defaults import DECAY
from holdfast.record import RunRecord
from holdfast.spec import Spec
from holdfast.stats.labels import is_combined

FACTS = {
    "data": "Data", "fingerprint": "Data fingerprint", "task": "Task", "encoder": "Encoder", "neck": "Neck",
    "head": "Head", "tune": "Tuning", "plan": "Plan", "select": "Selection", "metric": "Selection metric",
    "seed": "Seeds", "steps": "Steps", "batch": "Batch", "lr": "Learning rate", "optimizer": "Optimizer",
}  # fmt: skip
OPTIONS = ("encoder", "tune", "plan", "select", "metric", "steps", "batch", "lr")  # always part of a command
BY_ENCODER = (
    "clip",
    "schedule",
    "warmup",
    "average",
    "precision",
)  # their defaults depend on a trained encoder and on the machine
BY_TASK = ("head",)  # its default depends on the task
GROUPS = ("method", "encoder", "neck", "head", "plan", "task", "predict")
ELSEWHERE = (
    "data", "fingerprint", "method", "task", "seed", "every", "decay", "searched", "lr_args", *OPTIONS,
    *(f"{group}_args" for group in GROUPS),
)  # fmt: skip
DEFAULTS = {field.name: field.default for field in fields(Spec)}
REQUIRED = {"data", "method", "every", "plan_args", "method_args", *OPTIONS}  # specs of recipes omit some of them


def facts(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return (name, values that occur) for the settings, code versions and machines of the records."""
    runs = [record for record in records if not is_combined(record)] or records
    entries = [(name, _values(r.spec.get(key) for r in runs)) for key, name in FACTS.items()]
    entries.append(("Runs", str(len(runs))))
    total = sum(r.cost.get("seconds") or 0.0 for r in runs)
    entries.append(("Time, all runs", f"{total:,.0f} s" if total < 7200 else f"{total / 3600:,.1f} h"))
    entries.append(("Holdfast", _values(" ".join(map(str, r.code.values())) for r in records)))
    for key in dict.fromkeys(k for r in records for k in r.machine):
        entries.append((key.replace("_", " ").capitalize(), _values(r.machine.get(key) for r in records)))
    return [(name, value) for name, value in entries if value]


def _values(values: Iterable[Any]) -> str:
    """Join distinct values in order: `0, 1, 2`; empty if none is set."""
    values = list(values)
    if all(v is None for v in values):
        return ""
    numeric = all(isinstance(v, int | float) for v in values)
    return ", ".join(dict.fromkeys("none" if v is None else str(v) for v in (sorted(values) if numeric else values)))


def configurations(groups: Mapping[str, Sequence[RunRecord]], source: Sequence[str]) -> list[dict[str, Any]]:
    """Return label, settings, command and runs (id, episode, seed, selected step, seconds) per configuration."""
    entries = []
    for label, group in groups.items():
        seeds = [int(r.spec["seed"]) for r in group if r.spec.get("seed") is not None]
        analyses = list(dict.fromkeys(name for r in group for name in r.analysis))
        settings = {k: v for k, v in group[0].spec.items() if k != "seed"}
        entries.append({
            "label": label,
            "command": command(group[0].spec, seeds, analyses=analyses, source=source),
            "settings": json.dumps(settings, indent=1, sort_keys=True),
            "runs": [_run_line(record) for record in group],
        })  # fmt: skip
    return entries


def _run_line(record: RunRecord) -> tuple[str, list[tuple[str, Any]]]:
    seed, seconds = record.spec.get("seed"), record.cost.get("seconds")
    step = record.stages[-1].get("step") if record.stages else None
    cells = [(record.episode, None), ("" if seed is None else str(seed), seed)]
    cells += [("" if step is None else f"{step:,}", step), ("" if seconds is None else f"{seconds:,.1f}", seconds)]
    return record.id, cells


def command(
    spec: Mapping[str, Any], seeds: Sequence[int], *, analyses: Sequence[str] = (), source: Sequence[str] = ()
) -> str | None:
    """Return the `holdfast compare` command that repeats runs; None for runs of a search, a recipe or a fit.

    `source` holds the arguments that name the data: the file and, if given, options on it.
    """
    if set(spec) - set(DEFAULTS) or REQUIRED - set(spec) or spec["plan"] == "all":
        return None
    words = ["holdfast", "compare", *(source or [str(spec["data"])])]
    if spec.get("task", Spec.task) != Spec.task:
        words += ["--task", str(spec["task"])]
    words += ["--methods", str(spec["method"]), "--seeds", _seeds(seeds)]
    searched = spec.get("searched") or {}
    for name in OPTIONS:
        words += ["--search-rate"] if name in searched else [f"--{name}", str(spec[name])]
    for name, value in _settings(spec).items():
        words += ["--set", f"{name}={_setting_value(value)}"]
    if analyses:
        words += ["--analyse", ",".join(analyses)]
    words.append("--no-baselines")
    return " ".join(shlex.quote(word) for word in words)


def _settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for `--set`: those that differ from the default, or whose default depends on others."""
    settings: dict[str, Any] = {}
    if spec["every"] != max(1, min(25, spec["steps"] // 4)):
        settings["every"] = spec["every"]
    always = () if spec["tune"] == "frozen" else BY_ENCODER
    always += () if spec.get("task", Spec.task) == Spec.task else BY_TASK
    for name, default in DEFAULTS.items():
        if name not in ELSEWHERE and (name in always or spec.get(name, default) != default):
            settings[name] = spec.get(name, default)
    if spec.get("decay", Spec.decay) != DECAY and spec.get("weight_decay", Spec.weight_decay):
        settings["decay"] = spec.get("decay", Spec.decay)
    settings |= changed_rates(spec)
    for group in GROUPS:
        settings |= {f"{group}.{name}": value for name, value in spec.get(f"{group}_args", {}).items()}
    return settings


def _seeds(seeds: Sequence[int]) -> str:
    """Format seeds: `3` for the first three, else a list; a trailing comma marks a list of one."""
    chosen = sorted(set(seeds))
    if chosen == list(range(len(chosen))):
        return str(len(chosen))
    return ",".join(map(str, chosen)) + ("," if len(chosen) == 1 else "")


def _setting_value(value: Any) -> str:
    """Format a value: text that does not parse as JSON unchanged, everything else as JSON."""
    if isinstance(value, str) and "," not in value:
        try:
            json.loads(value)
        except json.JSONDecodeError:
            return value
    return json.dumps(value)
