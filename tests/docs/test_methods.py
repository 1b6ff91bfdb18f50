"""Tables of methods are generated, descriptions of methods name real settings, and a new method needs no document."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields

import pytest

from holdfast import catalog, compare, world
from holdfast.catalog import ENCODERS, METHODS, NECKS
from holdfast.core.settings import settings_class
from studies import methods
from studies.build import block

ROOT = methods.ROOT
SYMBOLS = {"risk", "risk_i", "risk_rest", "z", "z0", "p", "s", "l", "g", "r", "j", "w", "omega", "q_i", "v_i", "inner"}
SYMBOLS |= {"t", "queue_mass", "same_class"}  # metrics of HMA


def check_sections() -> None:
    """Check that descriptions belong to methods, in catalog order, and name only real settings."""
    described = methods.descriptions()
    assert [name for name in METHODS if name in described] == list(described)
    for name, text in described.items():
        words = set(re.findall(r"`([a-z_]+)`", text)) - SYMBOLS
        known = {*METHODS, *NECKS, *METHODS[name].setting_names()}
        assert words <= known, (name, words - known)


def test_descriptions_name_real_methods_and_settings():
    assert methods.descriptions().keys() == METHODS.keys()
    check_sections()


def test_settings_of_hma_are_described_with_all_values():
    text = methods.descriptions()["hma"]
    described = re.findall(r"`(neck|encoder)\.([a-z_]+)(?:=([a-z]+))?`", text)
    known = {"neck": NECKS["heterogeneous"].setting_names(), "encoder": ENCODERS["vit-s/16"].setting_names()}
    assert {setting for part, setting, _ in described if setting not in known[part]} == set()
    for entry, keys in (
        (NECKS["heterogeneous"], ("context", "start", "input_norm")),
        (ENCODERS["vit-s/16"], ("prompt",)),
    ):
        declared = {field.name: field for field in fields(settings_class(entry.load()))}
        for key in keys:
            choices = declared[key].metadata["choices"]
            assert {value for _, setting, value in described if setting == key and value} == set(choices)
    assert set(METHODS["hma"].necks) - {"heterogeneous"} <= set(re.findall(r"`([a-z-]+)`", text))


def test_costs_come_from_the_benchmarks():
    assert methods.cost("coral", "cuda")
    assert methods.cost("swad(METHOD)", "cpu")
    assert methods.cost("unmeasured", "cuda") == ""


def doc_block(language: str) -> str:
    """Return the only block of this language in docs/adding-a-method.md."""
    text = (ROOT / "docs/adding-a-method.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return code


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install the documented plug-in `tilted`, which no other document, golden curve or benchmark mentions."""
    (tmp_path / "tilted.py").write_text(doc_block("python").partition("\ndata = ")[0])
    groups = tomllib.loads(doc_block("toml"))["project"]["entry-points"]
    info = tmp_path / "holdfast_tilted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-tilted\nVersion: 1.0\n")
    points = [f"[{group}]\n{name} = {target}\n" for group, named in groups.items() for name, target in named.items()]
    (info / "entry_points.txt").write_text("".join(points))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("clean_catalog", "plugin")
def test_a_new_method_is_documented_by_its_catalog_entry():
    assert doc_block("python").count("\n") <= 40
    assert catalog.lookup("methods", "tilted").search_space() == {"tilt": {"log": [0.1, 10]}}
    check_sections()  # it has no description
    table = block("methods", methods.reference())
    assert "### Other methods" in table
    assert re.search(r"^\| `tilted` \| .+ \| `tilt=", table, re.MULTILINE)


@pytest.mark.usefixtures("clean_catalog", "plugin")
def test_a_new_method_is_compared_inside_another(tmp_path):
    data = world("vector", "none", domains=3, size=20, seed=0)
    result = compare(data, baselines=False, methods=["swad(tilted)"], steps=4, seeds=1, out=tmp_path / "runs")
    assert {record.spec["method"] for record in result.records} == {"swad(tilted)"}


def test_a_new_method_passes_the_contract_and_needs_no_golden_curve(plugin):
    files = ["tests/contract/test_methods.py", "tests/golden/test_curves.py", "tests/contract/test_settings.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(plugin), str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "-k", "tilted", "-m", "not slow", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) == 6  # two of the contract, four of its settings
