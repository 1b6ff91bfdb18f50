"""What was run: facts that all runs share, and each configuration with its settings, its runs and its command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from holdfast.record import RunRecord
from holdfast.spec import Spec

FACTS = {
    "data": "Data",
    "fingerprint": "Data fingerprint",
    "task": "Task",
    "encoder": "Encoder",
    "neck": "Neck",
    "head": "Head",
    "tune": "Tuning",
    "plan": "Plan",
    "select": "Selection",
    "metric": "Selection metric",
    "seed": "Seeds",
    "steps": "Steps",
    "batch": "Batch",
    "lr": "Learning rate",
    "optimizer": "Optimizer",
}


def facts(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """What was run, each with the values that occur."""
    found = [(name, _values(r.spec.get(key) for r in records)) for key, name in FACTS.items()]
    found.append(("Runs", str(len(records))))
    total = sum(r.cost.get("seconds") or 0.0 for r in records)
    found.append(("Time, all runs", f"{total:,.0f} s" if total < 7200 else f"{total / 3600:,.1f} h"))
    found.append(("Holdfast", _values(" ".join(map(str, r.code.values())) for r in records)))
    for key in dict.fromkeys(k for r in records for k in r.machine):
        found.append((key.replace("_", " ").capitalize(), _values(r.machine.get(key) for r in records)))
    return [(name, value) for name, value in found if value]


def _values(values: Iterable[Any]) -> str:
    """Distinct values in order: `0, 1, 2`; nothing where none is set."""
    given = list(values)
    if all(v is None for v in given):
        return ""
    numeric = all(isinstance(v, int | float) for v in given)
    distinct = dict.fromkeys("none" if v is None else str(v) for v in (sorted(given) if numeric else given))
    return ", ".join(distinct)


def configurations(groups: Mapping[str, Sequence[RunRecord]], source: Sequence[str]) -> list[dict[str, Any]]:
    """Label, settings, command to run it again, and the runs, each with its id, seed, episode, kept step and time."""
    made = []
    for label, group in groups.items():
        seeds = [int(r.spec["seed"]) for r in group if r.spec.get("seed") is not None]
        analyses = list(dict.fromkeys(name for r in group for name in r.analysis))
        settings = {k: v for k, v in group[0].spec.items() if k != "seed"}
        made.append({
            "label": label,
            "command": command(group[0].spec, seeds, analyses=analyses, source=source),
            "settings": json.dumps(settings, indent=1, sort_keys=True),
            "runs": [_run(record) for record in group],
        })  # fmt: skip
    return made


def _run(record: RunRecord) -> dict[str, Any]:
    seed, seconds = record.spec.get("seed"), record.cost.get("seconds")
    step = record.stages[-1].get("step") if record.stages else None
    cells = [(record.episode, None), ("" if seed is None else str(seed), seed)]
    cells += [("" if step is None else f"{step:,}", step), ("" if seconds is None else f"{seconds:,.1f}", seconds)]
    return {"label": record.id, "cells": cells}


OPTIONS = ("encoder", "tune", "plan", "select", "metric", "steps", "batch", "lr")  # told always, by their own options
BY_ENCODER = ("clip", "warmup", "precision")  # an encoder that learns, and the machine, bring other defaults
BY_TASK = ("head",)
GROUPS = ("method", "encoder", "neck", "head", "plan", "task")
ELSEWHERE = ("data", "fingerprint", "method", "task", "seed", "every", *OPTIONS, *(f"{group}_args" for group in GROUPS))
DEFAULTS = {each.name: each.default for each in fields(Spec)}
NEEDED = {
    "data",
    "method",
    "every",
    "plan_args",
    "method_args",
    *OPTIONS,
}  # pages about a row of a table leave some out


def command(
    spec: Mapping[str, Any], seeds: Sequence[int], *, analyses: Sequence[str] = (), source: Sequence[str] = ()
) -> str | None:
    """`holdfast compare ...`; None where a run came of something else, such as a search or a fit on all domains.

    `source` is how the data was named: the file and, where there were any, options about it.
    """
    if set(spec) - set(DEFAULTS) or NEEDED - set(spec) or spec["plan"] == "all":
        return None
    words = ["holdfast", "compare", *(source or [str(spec["data"])])]
    if spec.get("task", Spec.task) != Spec.task:
        words += ["--task", str(spec["task"])]
    words += ["--methods", str(spec["method"]), "--seeds", _seeds(seeds)]
    for name in OPTIONS:
        words += [f"--{name}", str(spec[name])]
    for name, value in _settings(spec).items():
        words += ["--set", f"{name}={_told(value)}"]
    if analyses:
        words += ["--analyse", ",".join(analyses)]
    return " ".join(shlex.quote(word) for word in words)


def _settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What `--set` must say: what is not the default, or where the default depends on what else is chosen."""
    told: dict[str, Any] = {}
    if spec["every"] != max(1, min(25, spec["steps"] // 4)):
        told["every"] = spec["every"]
    always = (() if spec["tune"] == "frozen" else BY_ENCODER) + (
        () if spec.get("task", Spec.task) == Spec.task else BY_TASK
    )
    for name, usual in DEFAULTS.items():
        if name not in ELSEWHERE and (name in always or spec.get(name, usual) != usual):
            told[name] = spec.get(name, usual)
    for group in GROUPS:
        told |= {f"{group}.{name}": value for name, value in spec.get(f"{group}_args", {}).items()}
    return told


def _seeds(seeds: Sequence[int]) -> str:
    """`3` for the first three, else the numbers; a comma makes a list of a single one."""
    chosen = sorted(set(seeds))
    if chosen == list(range(len(chosen))):
        return str(len(chosen))
    return ",".join(map(str, chosen)) + ("," if len(chosen) == 1 else "")


def _told(value: Any) -> str:
    """As it is where it is read as a plain word again, else as JSON."""
    if isinstance(value, str) and "," not in value:
        try:
            json.loads(value)
        except json.JSONDecodeError:
            return value
    return json.dumps(value)
