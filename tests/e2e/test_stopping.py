"""Killed, interrupted or out of disk space: nothing is lost, and the same command resumes to the same numbers."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from tests.e2e.conftest import write_reviews
from tests.processes import start, wait_for

SMALL = ["--encoder=bilstm", "--set=encoder.hidden=8", "--set=encoder.embedding=8", "--batch=8"]


def comparing(folder: Path, *, steps: int) -> list[str]:
    """Four runs of one method, without a model."""
    data = str(write_reviews(folder / "r.csv"))
    return ["compare", "--no-baselines", data, "--seeds=1", f"--steps={steps}", "--methods=erm", "--no-model", *SMALL]


def test_sigint_stops_cleanly_and_the_command_resumes(holdfast, tmp_path):
    words = comparing(tmp_path, steps=40)
    uninterrupted = holdfast(*words, "--out=uninterrupted")
    assert uninterrupted.code == 0, uninterrupted.err
    process = start(tmp_path, *words, "--out=pieces")
    wait_for(lambda: any((tmp_path / "pieces" / "records").glob("*.json")), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "same command" in err
    assert "Traceback" not in out + err
    done = {p: json.loads(p.read_text())["cost"] for p in (tmp_path / "pieces" / "records").glob("*.json")}
    assert 1 <= len(done) < 4
    rest = holdfast(*words, "--out=pieces")
    assert rest.code == 0, rest.err
    assert {p: json.loads(p.read_text())["cost"] for p in done} == done  # times of the first command
    for path in (tmp_path / "uninterrupted" / "records").glob("*.json"):
        other = json.loads((tmp_path / "pieces" / "records" / path.name).read_text())
        assert other["stages"] == json.loads(path.read_text())["stages"]


def test_folder_in_use_stops_fit_before_the_data_is_read(holdfast, tmp_path):
    (tmp_path / "model").mkdir()
    with FileLock(tmp_path / "model" / ".lock"):
        ran = holdfast("fit", "missing.csv", "--out=model")
    assert ran.code == 2
    assert "model is in use by " in ran.err
    assert "missing.csv" not in ran.err
    alone = holdfast("fit", "missing.csv", "--out=other")
    assert "missing.csv" in alone.err
    assert not (tmp_path / "other").exists()


def test_sigterm_saves_and_a_running_folder_is_locked(holdfast, tmp_path):
    words = ["fit", write_reviews(tmp_path / "r.csv"), "--steps=100000", "--no-search-rate", *SMALL, "--out=model"]
    process = start(tmp_path, *words, HOLDFAST_SAVE_SECONDS="0")
    checkpoints = tmp_path / "model" / "checkpoints"
    wait_for(lambda: any(checkpoints.glob("*.safetensors")), process)
    other = holdfast(*words)
    assert other.code == 2
    assert f"model is in use by process {process.pid} on " in other.err
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "same command" in err
    assert "Traceback" not in out + err
    assert len(list(checkpoints.glob("*.safetensors"))) == 1
    assert not (tmp_path / "model" / ".lock").exists()


@pytest.fixture
def full(tmp_path):
    """A folder on an almost full file system."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    (folder / "ballast").write_bytes(b"x" * 56 * 1024)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a model that was read may still be mapped


def make_room(folder):
    (folder / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)


def test_full_disk_for_checkpoints_and_predictions(holdfast, monkeypatch, tmp_path, full):
    data = write_reviews(tmp_path / "r.csv", size=200)
    fit = ["fit", data, "--steps=6", *SMALL, f"--out={full / 'model'}"]
    monkeypatch.setenv("HOLDFAST_SAVE_SECONDS", "0")
    ran = holdfast(*fit)
    assert ran.code == 2, ran.err
    assert "no space left" in ran.err
    assert "Traceback" not in ran.err
    assert not list(full.rglob("*.draft"))
    assert holdfast(*fit[:-1], "--out=model").code == 0
    for name in ("p.csv", "p.jsonl", "p.parquet"):
        ran = holdfast("predict", "model", data, f"--out={full / name}")
        assert ran.code == 2, ran.err
        assert "no space left" in ran.err
        assert not (full / name).exists()
    assert [path.name for path in full.iterdir() if path.name != "model"] == ["ballast"]
    make_room(full)
    assert holdfast(*fit).code == 0
    assert holdfast("predict", full / "model", data, f"--out={full / 'p.csv'}").code == 0
