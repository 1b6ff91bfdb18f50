"""Serve until a signal, export errors, and logs of a training."""

import json
import signal
import urllib.request

import pytest

from tests.e2e.conftest import write_reviews
from tests.processes import start


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from holdfast import DomainClassifier
    from holdfast.train.training_data import training_data

    folder = tmp_path_factory.mktemp("served")
    small = {"encoder.hidden": 4, "encoder.embedding": 4}
    classifier = DomainClassifier(encoder="bilstm", steps=5, batch=4, device="cpu", settings=small)
    classifier.fit_dataset(training_data(write_reviews(folder / "reviews.csv", size=8)), folder=folder / "model")
    return folder / "model"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_server_stops_cleanly_after_a_signal(model, number):
    with start(model.parent, "serve", model, "--port", 0, "--json", "--device", "cpu") as server:
        address = json.loads(server.stdout.readline())["address"]
        assert address.startswith("http://127.0.0.1:")
        body, headers = b'{"example": "a lovely thing"}', {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/predict", body, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert json.load(answer)["predictions"][0]["label"] in ("neg", "pos")
        server.send_signal(number)
        out, errors = server.communicate(timeout=30)
    assert (server.returncode, out, errors) == (0, "", "")
