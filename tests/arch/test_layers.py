"""The dependency direction is a test, not a hope."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

CORE = {"core"}
MAY = {
    "core": set(),
    "record": CORE,
    "occupied": CORE | {"record", "spec"},
    "nn": CORE,
    "data": CORE,
    "tasks": CORE | {"record", "nn"},
    "methods": CORE | {"nn", "tasks"},
    "protocols": CORE | {"nn", "data", "tasks", "methods", "record"},
    "analysis": CORE | {"nn", "data", "methods"},
    "report": CORE | {"record", "spec"},
    "catalog": CORE,
    "spec": CORE,
    "network": CORE | {"nn", "data", "tasks", "methods", "catalog", "spec"},
    "assembly": CORE | {"nn", "data", "tasks", "methods", "network", "protocols", "catalog", "spec"},
    "experiment": CORE
    | {"analysis", "data", "methods", "nn", "protocols", "catalog", "assembly", "cost", "record", "spec"},
    "cost": CORE | {"assembly", "nn", "protocols", "spec"},
    "settings": CORE | {"catalog", "data", "nn", "spec"},
    "engines": CORE | {"methods", "protocols", "assembly", "experiment", "record", "spec"},
    "comparison": CORE
    | {"catalog", "assembly", "data", "engines", "experiment", "occupied", "record", "report", "settings"},
    "search": CORE
    | {"catalog", "assembly", "comparison", "data", "engines", "experiment", "protocols", "record", "report"}
    | {"occupied", "settings", "spec"},
    "pretraining": CORE
    | {"catalog", "assembly", "comparison", "data", "engines", "experiment", "nn", "protocols", "record", "report"}
    | {"occupied", "settings"},
    "inspection": CORE | {"analysis", "comparison", "data", "report", "settings", "spec"},
    "recipes": CORE | {"record", "report"},
    "recipe_specs": CORE | {"catalog", "assembly", "experiment", "recipes", "settings", "spec"},
    "reproduction": CORE
    | {"catalog", "assembly", "comparison", "data", "engines", "experiment", "recipe_specs", "recipes", "record"}
    | {"report", "settings", "spec"},
    "card": {"catalog", "record"},
    "trust": CORE | {"nn", "data"},
    "grafting": CORE | {"nn"},
    "versions": CORE,
    "saved": CORE | {"card", "catalog", "data", "nn", "record", "tasks", "trust", "versions"},
    "adapting": CORE
    | {"assembly", "catalog", "comparison", "data", "engines", "experiment", "nn", "protocols", "record", "saved"}
    | {"settings", "spec", "trust", "versions"},
    "estimator": CORE
    | {"adapting", "assembly", "data", "engines", "experiment", "occupied", "protocols", "record", "saved", "settings"}
    | {"trust"},
    "refitting": CORE
    | {"comparison", "data", "engines", "estimator", "occupied", "record", "report", "saved", "settings"},
    "serve": CORE | {"data", "saved", "settings", "versions"},
    "export": CORE | {"data", "saved"},
    "prediction": CORE | {"catalog", "data", "saved", "settings"},
}
TOP = {"cli", "bench", "__init__", "__main__"}  # may import anything


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "holdfast":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("holdfast.")}
    return found


def test_finds_the_files():
    assert len(FILES) > 50
    assert {layer(p) for p in FILES} == set(MAY) | TOP


@pytest.mark.parametrize("path", [p for p in FILES if layer(p) in MAY], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    own = layer(path)
    assert imported(path) - {own} <= MAY[own]


def test_only_parallel_knows_torch_distributed():
    users = [p.name for p in FILES if "torch.distributed" in p.read_text()]
    assert users == ["parallel.py"]


@pytest.mark.parametrize("module", ["holdfast.report.page", "holdfast.record", "holdfast.cli", "holdfast.catalog"])
def test_light_modules_need_no_torch(module):
    code = f"import {module}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_needs_no_transformers_no_compiler_and_no_scikit_learn_until_a_run_does():
    slow = {"transformers", "torch._dynamo", "sklearn"}  # each takes a second or more to load
    loaded = "holdfast.run.worker, holdfast.comparison, holdfast.tasks.classify"
    code = f"import {loaded}, sys; print({slow} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "set()"
