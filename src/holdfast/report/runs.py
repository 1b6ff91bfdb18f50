"""What was run: facts that all runs share, and each configuration with its settings, its runs and its command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.record import RunRecord
from holdfast.report.command import command

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
