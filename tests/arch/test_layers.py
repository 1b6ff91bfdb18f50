"""The dependency direction is a test, not a hope."""

import ast
import re
import subprocess
import sys

import pytest

from tests.arch.sources import Source, sources

# a package imports only from packages on earlier lines
ORDER = (
    ("core",),
    ("record", "spec"),
    ("defaults",),
    ("ops",),
    ("accel",),
    ("nn", "data"),
    ("tasks",),
    ("methods",),
    ("catalog",),
    ("stats",),
    ("report",),
    ("analysis",),
    ("train",),
    ("engines",),
    ("uncertainty",),
    ("folders",),
    ("prediction",),
    ("adaptation",),
    ("training",),
    ("estimator", "auditing", "search", "monitor"),
    ("final_model",),
    ("api", "serve"),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
NEVER = {  # narrower than the order alone
    "methods": {"data"},
    "analysis": {"methods", "train", "catalog"},
    "catalog": {"nn", "data", "tasks", "methods", "train", "analysis"},  # entries name their targets
    "stats": {"nn", "data", "tasks", "methods", "train"},  # reads records only
    "report": {"nn", "data", "tasks", "methods", "train"},  # loads analyses by name
}
TOP = {"cli", "__init__", "__main__"}  # may import anything


def layer(source: Source) -> str:
    return source.name.partition("/")[0].removesuffix(".py")


LIGHT = {("catalog", "registry"), ("catalog", "holdfast.data.registry")}  # a table of names, without torch


def imported(source: Source) -> set[str]:
    layers = set()
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if any((layer(source), name) in LIGHT for name in (node.module, *names)):
                continue
            if node.module == "holdfast":
                layers |= set(names)
            elif (node.module or "").startswith("holdfast."):
                layers.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            layers |= {a.name.split(".")[1] for a in node.names if a.name.startswith("holdfast.")}
    return layers


def test_finds_the_files():
    assert len(sources()) > 50
    assert {layer(each) for each in sources()} == set(RANK) | TOP


def test_imports_point_down():
    edges = {(each.name, layer(each), other) for each in sources() if layer(each) in RANK for other in imported(each)}
    wrong = {
        f"{name} must not import {other}"
        for name, own, other in edges
        if own != other and (RANK[other] >= RANK[own] or other in NEVER.get(own, set()))
    }
    assert not wrong


def test_the_library_does_not_know_its_laboratory():
    named = re.compile(r"^\s*(from|import) lab\b|[\"']lab[.:]", re.MULTILINE)  # imported, or the target of an entry
    assert not [each.name for each in sources() if named.search(each.text)]


def test_only_parallel_knows_torch_distributed():
    assert [each.path.name for each in sources() if "torch.distributed" in each.text] == ["parallel.py"]


ACCELERATED = re.compile(
    r"^\s*(import|from) triton\b|\bCUDAGraph\b|\bcuda\.graphs?\b|\bgraph_pool_handle\b", re.MULTILINE
)


def test_only_accel_knows_triton_and_cuda_graphs():
    """Both directions, so that the expression finds what it should."""
    knows = {each.name for each in sources() if ACCELERATED.search(each.text)}
    assert {layer(each) for each in sources() if each.name in knows} == {"accel"}
    assert {"accel/graphs.py", "accel/norm_kernels.py", "accel/registry.py"} <= knows


LIGHT_MODULES = ("stats.decision", "report.page", "record", "cli", "catalog")


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_modules_need_no_torch(module):
    code = f"import holdfast.{module}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_needs_no_transformers_no_compiler_and_no_scikit_learn_until_a_run_does():
    slow = {"transformers", "torch._dynamo", "sklearn"}  # each takes a second or more to load
    loaded = "holdfast.engines.worker, holdfast.api, holdfast.tasks.classify, holdfast.uncertainty.conformal"
    code = f"import {loaded}, sys; print({slow} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "set()"
