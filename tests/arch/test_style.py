"""Style of the sources: short documented files, no unsafe imports, and a complete catalog."""

import ast
import importlib
import inspect
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import catalog
from holdfast.methods.base import Method
from holdfast.nn.backbones.base import Backbone
from tests.arch.sources import ROOT, Source, sources

MAX_LINES = 450
FORBIDDEN = {"pickle", "dill", "joblib", "torchvision"}
EXCEPTIONS = {"engines/pool.py": {"pickle"}}  # sends objects to its own workers, and never reads any
TENSORS = {"Tensor", "nn.Parameter", "nn.Module", "torch.Tensor"}


def faults(source: Source) -> Iterator[str]:
    """Yield what is wrong with the style of a file."""
    if source.text.count("\n") > MAX_LINES:
        yield f"it has more than {MAX_LINES} lines"
    if not ast.get_docstring(source.tree):
        yield "the module has no docstring"
    forbidden = FORBIDDEN - EXCEPTIONS.get(source.name, set())
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("print", "hasattr", "eval", "exec"):
                yield f"line {node.lineno} calls {node.func.id}"
        elif isinstance(node, ast.Attribute) and node.attr == "cuda" and not isinstance(node.value, ast.Name):
            yield f"line {node.lineno}: move tensors with .to(device)"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", "") or ""}
            if forbidden & names:
                yield f"line {node.lineno} imports {', '.join(forbidden & names)}"


def test_files_are_short_documented_and_safe():
    assert not [f"{each.name}: {fault}" for each in sources() for fault in faults(each)]


def test_checkable_protocols_declare_no_tensor_or_module():
    """From Python 3.12 on, `isinstance` calls no `__getattr__`, with which torch modules provide their parts."""
    classes = [
        node for each in sources() if "runtime_checkable" in each.text for node in each.nodes
        if isinstance(node, ast.ClassDef) and "runtime_checkable" in map(ast.unparse, node.decorator_list)
    ]  # fmt: skip
    assert len(classes) > 10
    for each in classes:
        for line in each.body:
            if isinstance(line, ast.AnnAssign):
                kinds = {kind.strip() for kind in ast.unparse(line.annotation).split("|")}
                assert not TENSORS & kinds, f"{each.name}.{ast.unparse(line.target)}: use a property or a method"


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
    for path in (ROOT / "train").glob("*.py"):
        module = importlib.import_module(f"holdfast.train.{path.stem}")
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__ and "episodes" in vars(value):
                plans.add(value)
    plans = {plan for plan in plans if plan.__name__ not in ("Plan", "Workspace")}
    assert len(plans) >= 6
    assert plans == listed


def owner(entry: catalog.Entry) -> type:
    target = entry.load()
    return target if inspect.isclass(target) else target.__self__


@pytest.mark.parametrize("section", catalog.SECTIONS)
def test_every_entry_loads_and_is_described(section):
    entries = {line["name"]: catalog.SECTIONS[section][line["name"]] for line in catalog.describe(section)}
    assert entries
    for name, entry in entries.items():
        assert entry.load() is not None, name
        assert 5 < len(entry.about) < 110, name
        assert "\n" not in entry.about
