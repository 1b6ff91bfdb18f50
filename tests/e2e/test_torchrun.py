"""torchrun: one process writes and prints, all processes stop and fail together."""

import json
import signal
import subprocess
import sys
from functools import partial

import pytest
from safetensors.torch import load_file

from tests import processes
from tests.e2e.conftest import write_reviews
from tests.processes import TORCHRUN, wait_for

SMALL = ["--encoder=bilstm", "--set=encoder.hidden=8", "--set=encoder.embedding=8", "--batch=4", "--device=cpu"]


start, finish = (partial(run, command=TORCHRUN) for run in (processes.start, processes.finish))


@pytest.mark.slow
def test_single_process_commands_raise_once(tmp_path):
    code, out, err = finish(tmp_path, "predict", "model", "new.csv", "--json")
    assert code != 0
    assert "holdfast predict" in json.loads(out)["error"]
    assert "Error in sys.excepthook" not in err


def test_torchrun_excludes_parallel_jobs(holdfast, reviews, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    ran = holdfast("compare", reviews, "--jobs=2")
    assert ran.code == 2
    assert "--engine and --jobs" in ran.err
    monkeypatch.setenv("RANK", "1")
    quiet = holdfast("compare", reviews, "--jobs=2")
    assert (quiet.code, quiet.out, quiet.err) == (2, "", "")


@pytest.mark.slow
def test_processes_stop_resume_and_fail_together(tmp_path):
    words = ["fit", write_reviews(tmp_path / "r.csv"), "--steps=300", "--set=every=50", *SMALL]
    code, out, err = finish(tmp_path, *words, "--out=uninterrupted", "--json")
    assert code == 0, err
    assert json.loads(out)["record"]["spec"]["processes"] == 2  # one JSON document

    process = start(tmp_path, *words, "--out=pieces", HOLDFAST_SAVE_SECONDS="0")
    folder = tmp_path / "pieces" / "checkpoints"
    wait_for(lambda: list(folder.glob("*.safetensors")), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert err.count("stopped; ") == 1
    assert "stopped at once" not in err
    assert list(folder.glob("*.safetensors"))

    alone = [sys.executable, "-m", "holdfast", *map(str, words), "--out=pieces"]
    refused = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 2
    assert "2 processes" in refused.stderr

    code, _, err = finish(tmp_path, *words, "--out=pieces")
    assert code == 0, err
    assert err.count("model: pieces") == 1
    expected, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("uninterrupted", "pieces"))
    assert list(expected) == list(resumed)
    for name, value in expected.items():
        assert value.equal(resumed[name]), name

    code, _, err = finish(tmp_path, *words, "--out=diverged", "--lr=1e30", "--set=optimizer=sgd")
    assert code != 0
    assert err.count("error: ") == 1
    assert "diverged" in err
