"""Tables of methods are generated, descriptions of methods name real settings, and a new method needs no document."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from holdfast import catalog
from holdfast.catalog import ENCODERS, METHODS, NECKS
from holdfast.nn.graft.insert import PLACES
from holdfast.nn.memory.heterogeneous import CONTEXTS
from holdfast.nn.memory.queue import STARTS
from studies import methods
from studies.build import block, blocks, build
from tests.unit.catalog.test_plugins import clean_catalog  # noqa: F401

ROOT = methods.ROOT
SYMBOLS = {"risk", "risk_i", "risk_rest", "z", "z0", "p", "s", "l", "g", "r", "j", "w", "omega", "q_i", "v_i", "inner"}


def sections() -> dict[str, str]:
    """Return the hand-written descriptions by method."""
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8").partition("\n## Objectives\n")[2]
    return dict(re.findall(r"^### `([^`\n]+)`\n\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL))


def check_sections() -> None:
    """Check that descriptions belong to methods, in catalog order, and name only real settings."""
    described = sections()
    assert [name for name in METHODS if name in described] == list(described)
    for name, text in described.items():
        words = set(re.findall(r"`([a-z_]+)`", text)) - SYMBOLS
        known = {*METHODS, *NECKS, *METHODS[name].setting_names()}
        assert words <= known, (name, words - known)


@pytest.mark.parametrize("path", methods.FILES, ids=lambda path: path.name)
def test_tables_are_up_to_date(path):
    text = path.read_text(encoding="utf-8")
    assert blocks(text) == list(methods.FILES[path])
    assert build(path, text) == text, "run `python -m studies.build`"


def test_descriptions_name_real_methods_and_settings():
    assert len(sections()) > 20
    check_sections()


def test_settings_of_hma_are_described_with_all_values():
    text = sections()["hma"]
    described = re.findall(r"`(neck|encoder)\.([a-z_]+)(?:=([a-z]+))?`", text)
    known = {"neck": NECKS["heterogeneous"].setting_names(), "encoder": ENCODERS["vit-s/16"].setting_names()}
    assert {setting for part, setting, _ in described if setting not in known[part]} == set()
    for key, values in (("context", CONTEXTS), ("start", STARTS), ("prompt", PLACES)):
        assert {value for _, setting, value in described if setting == key and value} == set(values)
    assert set(METHODS["hma"].necks) - {"heterogeneous"} <= set(re.findall(r"`([a-z-]+)`", text))


def test_costs_come_from_the_benchmarks():
    assert methods.cost("coral", "cuda")
    assert methods.cost("swad(METHOD)", "cpu")
    assert methods.cost("unmeasured", "cuda") == ""


PLUGIN = '''
from dataclasses import dataclass

from holdfast.core.settings import log, setting
from holdfast.methods.erm import ERM


class Toy(ERM):
    """ERM with a setting that has no effect."""

    @dataclass(frozen=True)
    class Settings:
        strength: float = setting(1.0, search=log(0.1, 10))

    def __init__(self, model, *, task, optimizer, **settings):
        super().__init__(model, task=task, optimizer=optimizer)
        self.options = self.Settings(**settings)
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Install a package with the method `toy`; no document, golden curve or benchmark mentions it."""
    (tmp_path / "toy_method.py").write_text(PLUGIN)
    info = tmp_path / "toy_method-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-method\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[holdfast.methods]\ntoy = toy_method:Toy\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("clean_catalog")
def test_a_new_method_is_documented_by_its_catalog_entry(toy):
    entry = catalog.lookup("methods", "toy")
    assert entry.search_space() == {"strength": {"log": [0.1, 10]}}
    check_sections()  # it has no description
    table = block("methods", methods.reference())
    assert "### Other methods" in table
    row = "| `toy` | ERM with a setting that has no effect. |  | `strength=1.0` |  |  |"
    assert row in table
    assert "| other methods | `toy` |" in block("methods", methods.families())


def test_a_new_method_passes_the_contract_and_needs_no_golden_curve(toy):
    files = ["tests/contract/test_methods.py", "tests/golden/test_curves.py", "tests/unit/search/test_space.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(toy), str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "-k", "toy", "-m", "not slow", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 10
