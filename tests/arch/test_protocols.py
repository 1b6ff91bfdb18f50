"""What is asked at run time whether an object has it must lie where every Python finds it.

From Python 3.12 on `isinstance` with a protocol looks an attribute up without calling `__getattr__`, and only that
finds parameters, buffers and submodules of a torch module.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
TENSORS = {"Tensor", "nn.Parameter", "nn.Module", "torch.Tensor"}


def asked() -> list[tuple[str, ast.ClassDef]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "runtime_checkable" in text else ():
            if isinstance(node, ast.ClassDef) and "runtime_checkable" in map(ast.unparse, node.decorator_list):
                found.append((f"{path.relative_to(SOURCE)}:{node.name}", node))
    return found


ASKED = asked()


def test_there_are_protocols_to_look_at():
    assert len(ASKED) > 10


@pytest.mark.parametrize(("name", "node"), ASKED, ids=[name for name, _ in ASKED])
def test_no_protocol_that_is_asked_names_a_tensor_or_module_as_data(name, node):
    data = {
        ast.unparse(part.target): ast.unparse(part.annotation) for part in node.body if isinstance(part, ast.AnnAssign)
    }
    wrong = {key: kind for key, kind in data.items() if TENSORS & {piece.strip() for piece in kind.split("|")}}
    assert not wrong, f"{name} asks for {wrong}: make it a property or a method"
