"""Size of each package, so that growth is a decision that a diff shows.

budgets.toml has the largest number of code tokens per package, in thousands; a package far below its budget lowers it.
"""

import ast
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"holdfast": ROOT / "src" / "holdfast", "lab": ROOT / "lab"}
BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text(encoding="utf-8"))
SLACK = 3.0  # thousands of tokens that a package may be below its budget
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_tokens(path: Path) -> int:
    """Return the number of tokens of a file, without comments, docstrings and layout."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node, clean=False)]
    docstrings = {(node.body[0].lineno, node.body[0].col_offset) for node in nodes}
    with path.open("rb") as file:
        tokens = tokenize.tokenize(file.readline)
        return sum(each.type not in NO_CODE and each.start not in docstrings for each in tokens)


def sizes(root: Path) -> dict[str, float]:
    """Map every package below a folder, and `modules` for the files in it, to thousands of tokens."""
    found: dict[str, float] = {}
    for path in root.rglob("*.py"):
        first, *rest = path.relative_to(root).parts
        name = first if rest else "modules"
        found[name] = found.get(name, 0.0) + code_tokens(path) / 1000
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_keep_their_budgets(package):
    measured = sizes(PACKAGES[package])
    assert measured.keys() == BUDGETS[package].keys()
    over = {name: round(size, 1) for name, size in measured.items() if size > BUDGETS[package][name]}
    assert not over, "larger than tests/arch/budgets.toml: simplify, or raise the budget and give the reason"
    under = {name: round(size, 1) for name, size in measured.items() if size < BUDGETS[package][name] - SLACK}
    assert not under, "far smaller than tests/arch/budgets.toml: lower the budget"


def test_tokens_are_counted_without_comments_and_docstrings(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""Docstring."""\n\n# comment\nx = f(1)  # comment\n\n\ndef g():\n    """Docstring."""\n    return "text"\n'
    )
    assert code_tokens(path) == 13  # x = f ( 1 ) def g ( ) : return 'text', where 'text' is one token
