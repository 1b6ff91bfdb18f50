"""Entry points of the laboratory: complete packages, and the names that Holdfast reports where it is not installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

from holdfast.core.errors import LABORATORY
from lab.analysis.catalog import ANALYSES
from lab.dialogue.catalog import TASKS

ROOT = Path(__file__).parents[2] / "lab"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_names_are_those_of_the_entry_points():
    points = PROJECT["project"]["entry-points"]
    added = {kind: set(points[f"holdfast.{kind}s"]) for kind in ("command", "encoder")}
    added |= {"data set": set(points["holdfast.datasets"]), "analysis": set(ANALYSES), "task": set(TASKS)}
    assert {kind: set(names) for kind, names in LABORATORY.items()} == added


def test_all_packages_are_installed():
    folders = {path.parent.relative_to(ROOT.parent) for path in ROOT.rglob("__init__.py")}
    assert {".".join(folder.parts) for folder in folders} == set(PROJECT["tool"]["setuptools"]["packages"])
