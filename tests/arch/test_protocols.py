"""Runtime-checkable protocols must not declare tensors or modules as data.

From Python 3.12 on `isinstance` with a protocol does not call `__getattr__`, which is how torch modules provide their
parameters, buffers and submodules.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
TENSORS = {"Tensor", "nn.Parameter", "nn.Module", "torch.Tensor"}


def checkable() -> list[tuple[str, ast.ClassDef]]:
    protocols = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "runtime_checkable" in text else ():
            if isinstance(node, ast.ClassDef) and "runtime_checkable" in map(ast.unparse, node.decorator_list):
                protocols.append((f"{path.relative_to(SOURCE)}:{node.name}", node))
    return protocols


CHECKABLE = checkable()


def test_protocols_are_found():
    assert len(CHECKABLE) > 10


@pytest.mark.parametrize(("name", "node"), CHECKABLE, ids=[name for name, _ in CHECKABLE])
def test_no_checkable_protocol_declares_a_tensor_or_module(name, node):
    data = {
        ast.unparse(line.target): ast.unparse(line.annotation) for line in node.body if isinstance(line, ast.AnnAssign)
    }
    wrong = {key: kind for key, kind in data.items() if TENSORS & {piece.strip() for piece in kind.split("|")}}
    assert not wrong, f"{name} declares {wrong}: make it a property or a method"
