"""Importing any module of the package does not need modules that exist only on Unix."""

import ast
from pathlib import Path

import holdfast

UNIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios"}


def unguarded_imports(body: list[ast.stmt]) -> list[str]:
    """Return the modules that are imported when a module is imported, outside of `try`."""
    names = []
    for node in body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.If | ast.With | ast.ClassDef):
            names += unguarded_imports([*node.body, *getattr(node, "orelse", [])])
    return names


def test_no_import_needs_a_unix_only_module():
    assert unguarded_imports(ast.parse("class A:\n    import fcntl").body) == ["fcntl"]
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        assert not UNIX_ONLY & set(unguarded_imports(ast.parse(path.read_text()).body)), path
