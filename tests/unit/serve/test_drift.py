"""A server that watches its predictions: gauges per window, state in /health, and a log without inputs."""

import json
import re
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.raw import Vectors
from holdfast.estimator import DomainClassifier, DomainRegressor
from holdfast.folders.format import load_model
from holdfast.monitor.log import ABOUT, NEWER, OLDER, ServedLog
from holdfast.monitor.observe import observe
from holdfast.monitor.watch import watch
from holdfast.serve import drift
from holdfast.serve.drift import DriftMonitor
from holdfast.serve.server import serving
from holdfast.serve.service import Service

DOCS = Path(__file__).resolve().parents[3] / "docs" / "monitoring"


def draw(n: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 3))
    x[:, 0] += 2.5 * y - 1.25
    x[:, 1] += shift
    return x, y


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    x, y = draw(400, 0)
    estimator = DomainClassifier("logistic", encoder="features", cache=False)
    estimator.fit(x, np.asarray(["no", 'y"s'])[y], domains=["a", "b"] * 200)
    return estimator.save_pretrained(tmp_path_factory.mktemp("watched") / "model")


def send(address: str, x: np.ndarray) -> None:
    for start in range(0, len(x), 100):
        body = json.dumps({"examples": x[start : start + 100].tolist()}).encode()
        request = urllib.request.Request(f"{address}/predict", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert len(json.loads(answer.read())["predictions"]) == 100


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(address + path, timeout=20) as answer:
        return answer.read().decode()


def after_windows(address: str, count: int) -> dict:
    for _ in range(200):
        state = json.loads(get(address, "/health"))["watch"]
        if state["windows"] >= count:
            return state
        time.sleep(0.05)
    raise AssertionError(state)


def samples(text: str) -> dict[tuple[str, str], float]:
    """Parse the metrics with the parser of Prometheus's client library."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    return {(s.name, s.labels.get("label", "")): s.value for family in families for s in family.samples}


def test_gauges_state_and_log_of_a_server(model, tmp_path):
    log = tmp_path / "log"
    with serving(Service(model, log=log, window=200)) as address:
        before = samples(get(address, "/metrics"))
        assert before["holdfast_watch_windows_total", ""] == 0
        assert ("holdfast_watch_drift", "") not in before
        same, moved = draw(200, 1)[0], draw(200, 2, shift=2.0)[0]
        send(address, same)
        state = after_windows(address, 1)
        assert state["drift"] is False
        values = samples(get(address, "/metrics"))
        assert values["holdfast_watch_drift", ""] == 0
        assert values["holdfast_watch_p_value", ""] > 0.005
        assert 0.7 < values["holdfast_watch_accuracy", ""] <= 1
        shares = [values["holdfast_watch_predicted_share", label] for label in ("no", 'y"s')]
        assert sum(shares) == pytest.approx(1)
        send(address, moved)
        state = after_windows(address, 2)
        assert state["drift"] is True
        assert "features" in state["drifted"]
        assert samples(get(address, "/metrics"))["holdfast_watch_drift", ""] == 1
    rows = [json.loads(line) for line in (log / NEWER).read_text().splitlines()]
    assert len(rows) == 400
    assert set(rows[0]) == {"outputs", "foreign", "coordinates"}  # vectors are inputs and not logged
    first, second = watch(model, log, rows=200, keep=False).checks
    assert not first.drifted
    assert "features" in {finding.name for finding in second.drifted}
    (offline,) = watch(model, write(tmp_path / "moved.npz", moved), keep=False).checks
    assert second.discrepancy == pytest.approx(offline.discrepancy, rel=0.02)


def write(path: Path, x: np.ndarray) -> Path:
    np.savez(path, x=x)
    return path


def test_the_log_is_bounded_and_continued(model, tmp_path):
    saved = load_model(model)
    observed = observe(saved, Vectors(draw(30, 3)[0]), saved.reference)
    for _ in range(2):  # a restarted server continues the log
        log = ServedLog(tmp_path / "log", model="m", rows=100)
        for _ in range(3):
            log.add(observed)
        log.close()
    counts = [len((tmp_path / "log" / name).read_text().splitlines()) for name in (OLDER, NEWER)]
    assert counts == [60, 0]
    with (tmp_path / "log" / NEWER).open("a") as file:
        file.write('{"outputs": [0.')  # a line that the server is writing
    (check,) = watch(model, tmp_path / "log", keep=False).checks
    assert check.rows == 60


def test_bad_logs_are_one_sentence(model, tmp_path):
    saved = load_model(model)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.txt").write_text("x")
    with pytest.raises(BadInput, match=r"contains other files \(x.txt\): choose a new folder with --log"):
        DriftMonitor(saved, model, log=tmp_path / "full")
    with pytest.raises(BadInput, match="`window` must be at least 20"):
        DriftMonitor(saved, model, window=5)
    log = tmp_path / "log"
    ServedLog(log, model="m").close()
    for text, message in (
        ("", "is empty: send requests"),
        ("[1]\n[2]\n", "not written by this model"),
        ('{"outputs": [1, 0, 0], "coordinates": [1]}\n' * 2, "not written by this model"),
        ("{\n{}\n", "line 1 is not JSON"),
    ):
        (log / NEWER).write_text(text)
        with pytest.raises(BadInput, match=message):
            watch(model, log, keep=False)
    with pytest.raises(BadInput, match="is the log of a server, which has no ids"):
        watch(model, log, by="week", keep=False)
    (log / ABOUT).write_text("{}")
    with pytest.raises(BadInput, match="is not that of a log of this version"):
        watch(model, log, keep=False)


def test_regressions_are_watched(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    estimator = DomainRegressor("ridge", encoder="features", cache=False)
    folder = estimator.fit(x, 10 + 2 * x[:, 0], domains=["a", "b"] * 200).save_pretrained(tmp_path / "numbers")
    log = tmp_path / "log"
    with serving(Service(folder, log=log, window=200)) as address:
        send(address, rng.normal(size=(200, 3)))
        state = after_windows(address, 1)
        assert state["drift"] is False
        assert state["accuracy"] is None
        values = samples(get(address, "/metrics"))
        assert values["holdfast_watch_prediction_mean", ""] == pytest.approx(10, abs=0.5)
        assert not [name for name, _ in values if name.startswith("holdfast_watch_accuracy")]
        assert not [name for name, _ in values if name == "holdfast_watch_predicted_share"]
    (check,) = watch(folder, log, keep=False).checks
    assert not check.drifted


def watch_all(monitor: DriftMonitor, x: np.ndarray, size: int) -> None:
    for start in range(0, len(x), size):
        rows = Vectors(x[start : start + size])
        monitor.observe(rows, monitor.saved.predict(rows))
    for _ in range(200):
        if monitor.examples == len(x):
            return
        time.sleep(0.01)
    raise AssertionError(monitor.examples)


def test_checks_of_a_busy_server_take_a_bounded_share_of_its_time(model, monkeypatch):
    monkeypatch.setattr(drift, "SHARE", 1e-4)  # the second check has to wait for minutes
    monitor = DriftMonitor(load_model(model), model, window=100)
    watch_all(monitor, draw(1000, 4)[0], 50)
    assert monitor.windows == 1
    assert monitor._full  # the next window grows instead
    monitor._next = 0.0
    last = Vectors(draw(1, 5)[0])
    monitor.observe(last, monitor.saved.predict(last))
    monitor.close()
    assert monitor.windows == 2
    assert monitor.latest.rows == 901


def test_a_large_window_keeps_evenly_spaced_examples(model, monkeypatch):
    monkeypatch.setattr(drift, "MAX_WINDOW", 300)
    monitor = DriftMonitor(load_model(model), model, window=100)
    monitor._next = time.monotonic() + 1e5
    watch_all(monitor, draw(1500, 4)[0], 7)
    kept = sum(map(len, monitor._pending))
    assert monitor._stride == 8
    assert abs(kept - 1500 / 8) < 10
    monitor.close()


def test_other_tasks_are_not_watched(model):
    saved = load_model(model)
    tagged = replace(saved, record=replace(saved.record, spec={**saved.record.spec, "task": "tag"}))
    with pytest.raises(BadInput, match="of the task tag is not watched: remove --watch and --log"):
        DriftMonitor(tagged, model)


def test_dashboard_and_compose_file_use_existing_metrics(model):
    saved = load_model(model)
    monitor = DriftMonitor(saved, model, window=20)
    monitor.observe(Vectors(draw(40, 1)[0]), saved.predict(Vectors(draw(40, 1)[0])))
    monitor.close()
    known = {*monitor.gauges(), "holdfast_examples_total", "holdfast_errors_total", "holdfast_watch_accuracy_low"}
    known |= {"holdfast_watch_accuracy_high"}
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in re.findall(r"holdfast_\w+", query)}
    assert used
    assert used <= known
    for file in ("docker-compose.yml", "prometheus.yml"):
        text = (DOCS / file).read_text()
        assert "\t" not in text
    assert "prometheus.yml" in (DOCS / "docker-compose.yml").read_text()
