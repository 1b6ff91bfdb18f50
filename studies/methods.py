"""Tables of training methods in docs/methods.md, generated from the catalog and results/bench.

A method appears with its catalog entry alone; its cost is shown if a benchmark has measured it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.catalog import METHODS
from holdfast.catalog.entry import MethodEntry
from holdfast.core.settings import settings_class

ROOT = Path(__file__).parents[1]
CASES = {"mil": ("mil", "meta-step/erm-on-seen"), "hma": ("hma", "hma-step/plain, full")}  # benches of their own
NEEDS = {"features": "trained features", "backbone": "a trained encoder", "stream": "a stream"}


def reference() -> list[str]:
    """Return one table per family: description, needs, settings with defaults, and cost relative to ERM."""
    lines: list[str] = []
    for family, names in _by_family().items():
        lines += [f"### {family.capitalize()}", "", "| method | objective | needs | settings | GPU | CPU |"]
        lines += ["|---|---|---|---|---|---|"]
        for name in names:
            entry = METHODS[name]
            settings = ", ".join(f"`{key}={value}`" for key, value in defaults(entry).items())
            cells = [f"`{name}`", entry.about, needs(entry), settings, cost(name, "cuda"), cost(name, "cpu")]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return lines[:-1]


def _by_family() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, entry in METHODS.items():
        groups.setdefault(entry.family, []).append(name)
    return groups


def defaults(entry: MethodEntry) -> dict[str, Any]:
    """Return the settings of a method with their default values."""
    part = entry.load()
    values = {name: parameter.default for name, parameter in inspect.signature(part).parameters.items()}
    declared = settings_class(part)
    values |= {field.name: field.default for field in dataclasses.fields(declared)} if declared else {}
    return {name: entry.preset.get(name, values[name]) for name in entry.setting_names()}


def descriptions() -> dict[str, str]:
    """Return the hand-written descriptions in docs/methods.md by method: the objective, and when to use it."""
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("\n## Objectives\n")[2]
    sections = re.findall(r"^### `([^`\n]+)`\n\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: section.strip() for name, section in sections}


def setting_helps(entry: MethodEntry) -> dict[str, str]:
    """Return the help texts of the settings of a method; empty for one that is not declared with `setting`."""
    declared = settings_class(entry.load())
    helps = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(declared)} if declared else {}
    return {name: helps.get(name, "") for name in entry.setting_names()}


def needs(entry: MethodEntry) -> str:
    """Return what a method needs besides one training domain."""
    domains = entry.load().min_domains
    needed = [f"{domains} domains"] if domains > 1 else []
    needed += [f"{entry.takes} data"] if entry.takes else []
    needed += [f"encoder `{entry.encoders[0]}`"] if entry.encoders else []
    needed += [f"neck `{entry.necks[0]}`"] if entry.necks else []
    return ", ".join([*needed, *([NEEDS[entry.acts_on]] if entry.acts_on else [])])


def cost(name: str, device: str) -> str:
    """Return the measured cost of a training step relative to ERM, or an empty string."""
    if name == "erm":
        return "1"
    bench, case = CASES.get(name, ("", f"{name.replace('METHOD', 'erm')}/erm"))
    for file in (bench,) if bench else ("methods", "costs"):
        if case in _ratios(file, device):
            return _ratios(file, device)[case]
    return ""


@cache
def _ratios(bench: str, device: str) -> dict[str, str]:
    path = ROOT / "results" / "bench" / f"{bench}-{device}.json"
    results = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    return {row["case"]: str(Decimal(str(row["ratio"])).quantize(Decimal("0.01"), ROUND_HALF_UP)) for row in results}


FILES: dict[Path, Mapping[str, Callable[[], list[str]]]] = {
    ROOT / "docs" / "methods.md": {"methods": reference},
}
