"""Killed, interrupted or out of space: nothing is lost, and the same command ends with the same numbers."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.e2e.conftest import write_reviews

COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()"]
SMALL = ["--encoder=bilstm", "--set=encoder.hidden=8", "--set=encoder.embedding=8", "--batch=8"]


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def start(folder: Path, *words, **env) -> subprocess.Popen:
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    )


def finish(folder: Path, *words, **env) -> tuple[int, str, str]:
    process = start(folder, *words, **env)
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


def wait_for(condition, process, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()


def test_sigkill_at_any_moment_then_again_gives_the_same_model_bit_for_bit(tmp_path):
    words = ["fit", write_reviews(tmp_path / "r.csv"), "--steps=400", "--set=every=50", "--set=schedule=cosine", *SMALL]
    code, _, err = finish(tmp_path, *words, "--out=whole", HOLDFAST_SAVE_SECONDS="1000")
    assert code == 0, err
    checkpoints = tmp_path / "pieces" / "checkpoints"
    for _ in range(2):
        process = start(tmp_path, *words, "--out=pieces", HOLDFAST_SAVE_SECONDS="0")
        known = {p: p.stat().st_mtime_ns for p in checkpoints.glob("*.safetensors")}
        wait_for(
            lambda known=known: any(known.get(p) != p.stat().st_mtime_ns for p in checkpoints.glob("*.safetensors")),
            process,
        )
        time.sleep(random.random() * 0.3)
        process.kill()
        process.communicate()
        assert not (tmp_path / "pieces" / "config.json").exists()
    code, _, err = finish(tmp_path, *words, "--out=pieces")
    assert code == 0, err
    whole, pieces = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "pieces"))
    assert list(whole) == list(pieces)
    for name, value in whole.items():
        assert value.equal(pieces[name]), name
    stages = [json.loads((tmp_path / name / "record.json").read_text())["stages"] for name in ("whole", "pieces")]
    assert stages[0] == stages[1]
    assert not list(checkpoints.glob("*.safetensors"))


def test_sigint_stops_cleanly_says_how_to_go_on_and_goes_on(tmp_path):
    words = ["compare", write_reviews(tmp_path / "r.csv"), "--seeds=1", "--steps=300", "--methods=erm", *SMALL]
    code, _, err = finish(tmp_path, *words, "--out=whole")
    assert code == 0, err
    process = start(tmp_path, *words, "--out=pieces")
    wait_for(lambda: any((tmp_path / "pieces" / "records").glob("*.json")), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in err
    assert "Traceback" not in out + err
    done = {p.name for p in (tmp_path / "pieces" / "records").glob("*.json")}
    assert 1 <= len(done) < 4
    code, _, err = finish(tmp_path, *words, "--out=pieces")
    assert code == 0, err
    assert "of 4 runs are done already" in err
    for path in (tmp_path / "whole" / "records").glob("*.json"):
        other = json.loads((tmp_path / "pieces" / "records" / path.name).read_text())
        assert other["stages"] == json.loads(path.read_text())["stages"]


def test_a_full_disk_is_one_sentence_and_no_half_record(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        (full / "ballast").write_bytes(b"x" * 56 * 1024)
        words = ["compare", write_reviews(tmp_path / "r.csv"), "--seeds=1", "--steps=20", "--methods=erm", *SMALL]
        code, _, err = finish(tmp_path, *words, f"--out={full / 'runs'}")
        assert code == 2
        assert "no space left" in err
        assert "Traceback" not in err
        for path in full.rglob("*.json"):
            json.loads(path.read_text())
        assert not list(full.rglob("*.draft"))
        (full / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=64m", str(full)], check=True)
        code, _, err = finish(tmp_path, *words, f"--out={full / 'runs'}")
        assert code == 0, err
        assert len(list((full / "runs" / "records").glob("*.json"))) == 4
    finally:
        subprocess.run(["umount", str(full)], check=True)
