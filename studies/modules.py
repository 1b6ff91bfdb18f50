"""Page of all modules for the documentation site, from the first lines of their docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

from studies.tables import header

ROOT = Path(__file__).parents[1]
PACKAGES = {"holdfast": ROOT / "src" / "holdfast", "lab": ROOT / "lab"}


def page() -> str:
    """Return the page: one section per package, one line per module."""
    lines = [
        "# Modules",
        "",
        "Every module with the first line of its docstring. [Design](../design.md) explains them.",
        "",
    ]
    for name, root in PACKAGES.items():
        folders = sorted({path.parent for path in root.rglob("*.py")} - {root})
        lines += _section(name, sorted(root.glob("*.py")), root)
        for folder in (each for each in folders if each.parent == root):
            lines += _section(f"{name}.{folder.name}", sorted(folder.rglob("*.py")), root)
    return "\n".join(lines)


def _section(title: str, paths: list[Path], root: Path) -> list[str]:
    lines = [f"## {title}", "", *header("module", "content")]
    for path in paths:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"| `{path.relative_to(root)}` | {docstring.splitlines()[0]} |")
    return [*lines, ""]
