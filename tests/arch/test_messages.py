"""Every error message is one line of text.

The messages are read from the source: `raise BadInput(...)` and its subclasses, f-string expressions in braces.
"""

import ast
from collections.abc import Iterator

from tests.arch.sources import sources


def error_classes() -> set[str]:
    """Return the names of BadInput and all its subclasses."""
    classes = [node for each in sources() for node in each.nodes if isinstance(node, ast.ClassDef)]
    names = {"BadInput"}
    while added := {c.name for c in classes if names & {ast.unparse(base) for base in c.bases}} - names:
        names |= added
    return names


def render(node: ast.expr) -> str:
    """Return a message with placeholders for its expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(render(value) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return render(node.left) + render(node.right)
    return "{" + ast.unparse(node) + "}"


def messages() -> Iterator[str]:
    """Yield one line per place that creates an error: module and message."""
    names = error_classes()
    for each in sources():
        for node in each.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names and node.args:
                yield f"{each.name}: {' '.join(render(node.args[0]).split())}"


def test_messages_contain_text_and_fit_one_line():
    lines = list(messages())
    assert len(lines) > 300
    for line in lines:
        assert "\n" not in line
        assert len(line.partition(": ")[2]) >= 3, line
