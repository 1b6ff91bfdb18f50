"""Style of the sources: short documented files, no unsafe imports, and a complete catalog."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import holdfast
from holdfast import catalog
from holdfast.methods.base import Method
from holdfast.nn.backbones.base import Backbone

ROOT = Path(holdfast.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MAX_LINES = 450
FORBIDDEN = {"pickle", "dill", "joblib", "torchvision"}
EXCEPTIONS = {"engines/local.py": {"pickle"}}  # sends objects to its own workers, and never reads any


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= MAX_LINES
    assert ast.get_docstring(tree), "the module has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "hasattr", "eval", "exec"), node.func.id
        if isinstance(node, ast.Attribute):
            assert node.attr != "cuda" or isinstance(node.value, ast.Name), "move tensors with .to(device)"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] + [getattr(node, "module", "") or ""]
            allowed = EXCEPTIONS.get(path.relative_to(ROOT).as_posix(), set())
            assert not (FORBIDDEN - allowed) & set(names)


def test_public_names_are_sorted_and_exist():
    assert holdfast.__all__ == sorted(holdfast.__all__)
    assert len(holdfast.__all__) >= 10
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None


def concrete(base: type, folder: str) -> set[type]:
    for path in (ROOT / folder).rglob("*.py"):
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(module)
    classes, queue = set(), [base]
    while queue:
        for child in queue.pop().__subclasses__():
            queue.append(child)
            if child.__module__.startswith("holdfast.") and not inspect.isabstract(child):
                classes.add(child)
    return classes


def test_every_method_is_in_the_catalog():
    listed = {owner(entry) for entry in catalog.METHODS.values()}
    assert concrete(Method, "methods") <= listed


def test_every_backbone_is_in_the_catalog():
    listed = {owner(entry) for entry in catalog.ENCODERS.values()}
    classes = concrete(Backbone, "nn/backbones")
    assert len(classes) >= 7
    assert classes <= listed


def test_every_plan_is_in_the_catalog():
    listed = {entry.load() for entry in catalog.PLANS.values()}
    plans = set()
    for path in (ROOT / "protocols").glob("*.py"):
        module = importlib.import_module(f"holdfast.protocols.{path.stem}")
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__ and "episodes" in vars(value):
                plans.add(value)
    plans = {plan for plan in plans if plan.__name__ != "Plan"}
    assert len(plans) >= 6
    assert plans == listed


def owner(entry: catalog.Entry) -> type:
    target = entry.load()
    return target if inspect.isclass(target) else target.__self__


@pytest.mark.parametrize("section", catalog.SECTIONS)
def test_every_entry_loads_and_is_described(section):
    entries = catalog.SECTIONS[section]
    assert entries
    for name, entry in entries.items():
        assert entry.load() is not None, name
        assert 5 < len(entry.about) < 110, name
        assert "\n" not in entry.about
