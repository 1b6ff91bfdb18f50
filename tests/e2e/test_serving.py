"""The verbs around a finished model: serve until a signal, export, and logs of a training."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.e2e.conftest import write_reviews


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from holdfast import DomainClassifier
    from holdfast.run.workspace import training_data

    folder = tmp_path_factory.mktemp("served")
    small = {"encoder.hidden": 4, "encoder.embedding": 4}
    made = DomainClassifier(encoder="bilstm", steps=5, batch=4, device="cpu", settings=small)
    made.fit_dataset(training_data(write_reviews(folder / "reviews.csv", size=8)), folder=folder / "model")
    return folder / "model"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_it_serves_until_a_signal_and_ends_well(model, number):
    code = "from holdfast.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(model), "--port", "0", "--json", "--device", "cpu"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as server:
        address = json.loads(server.stdout.readline())["address"]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}/predict", data=b'{"example": "a lovely thing"}', timeout=20) as answer:
            assert json.load(answer)["predictions"][0]["label"] in ("neg", "pos")
        server.send_signal(number)
        said, errors = server.communicate(timeout=30)
    assert (server.returncode, said, errors) == (0, "", "")


def test_what_cannot_be_served_or_exported_is_one_sentence(holdfast, model, tmp_path):
    for words, said in (
        (("serve", tmp_path / "none"), "no model folder"),
        (("serve", model, "--max-batch", 0), "limit on batch"),
        (("serve", model, "--host", "999.1.1.1"), "cannot listen on"),
        (("serve", model, "--port", 99999), "no port 99999"),
        (("export", model, "model.onnx"), "cannot be exported: its encoder bilstm"),
        (("export", model, "model.txt"), "ends in .onnx"),
        (("fit", "none.csv", "--log", "paper"), "not a file"),
    ):
        ran = holdfast(*words)
        assert ran.code == 2, words
        assert said in ran.err
        assert ran.err.count("\n") == 1


def test_a_comparison_writes_a_log(holdfast, reviews, quick, tmp_path):
    pytest.importorskip("tensorboard")
    options = ("--methods", "erm", "--seeds", 1, "--steps", 4, "--out", "runs")
    ran = holdfast("compare", reviews, *options, "--log", "tensorboard", *quick)
    assert ran.code == 0, ran.err
    assert len(list((tmp_path / "runs" / "logs").glob("*/events.*"))) == 5  # four runs and the model
    assert "--log takes" in holdfast("compare", reviews, *options, "--log", "paper", *quick).err
