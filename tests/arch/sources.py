"""Sources of the package, read and parsed once for all checks."""

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import holdfast

ROOT = Path(holdfast.__file__).resolve().parent


@dataclass(frozen=True)
class Source:
    """One file with its syntax tree."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """Path below the package."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))


@cache
def sources() -> tuple[Source, ...]:
    """Return all files of the package."""
    return tuple(Source(path, path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py")))


def source(path: Path) -> Source:
    """Return a file of the package, or another one, which is not kept in memory."""
    inside = {each.path: each for each in sources()} if path.is_relative_to(ROOT) else {}
    return inside.get(path) or Source(path, path.read_text(encoding="utf-8"))
