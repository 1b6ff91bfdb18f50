"""Table of all modules (docs/modules.md), from the first lines of their docstrings."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path

from studies.tables import header

PACKAGE = Path(__file__).parents[1] / "src" / "holdfast"


def packages() -> list[str]:
    """Return the top-level packages; `holdfast` stands for the modules of the root."""
    return ["holdfast", *sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))]


def modules(package: str) -> list[str]:
    """Return one line per module of a package."""
    paths = PACKAGE.glob("*.py") if package == "holdfast" else (PACKAGE / package).rglob("*.py")
    lines = header("module", "content")
    for path in sorted(paths):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"| `{path.relative_to(PACKAGE)}` | {docstring.splitlines()[0]} |")
    return [*lines, ""]  # an empty line keeps the table open


TABLES: dict[str, Callable[[], list[str]]] = {package: partial(modules, package) for package in packages()}
