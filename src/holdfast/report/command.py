"""The command that runs a configuration again, from its spec: all is told whose default could be another elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from holdfast.spec import Spec

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
