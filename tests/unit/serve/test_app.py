"""A server on a free port, queried over HTTP."""

import html
import json
import re
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from holdfast import DomainClassifier
from holdfast.serve.requests import Limits
from holdfast.serve.server import serving
from holdfast.serve.service import Service

TEXTS = [f"{word} thing {i % 3}" for word in ("good", "bad") for i in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    classifier = DomainClassifier(
        encoder="bilstm", steps=20, batch=4, lr=0.02, settings={"encoder.hidden": 8, "encoder.embedding": 8}
    ).fit(TEXTS, ["pos"] * 12 + ["neg"] * 12, domains=["a", "b"] * 12)
    return classifier.save_pretrained(tmp_path_factory.mktemp("serve") / "reviews")


@pytest.fixture(scope="module")
def service(folder):
    return Service(folder, limits=Limits(examples=4, text=50, body=2000, batch=16))


@pytest.fixture(scope="module")
def address(service):
    with serving(service) as url:
        yield url


def request(address, path, body=None, raw=None, **headers):
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, data, sent), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def predictions(address, body):
    status, answer = request(address, "/predict", body)
    assert status == 200, answer
    return json.loads(answer)["predictions"]


def test_served_predictions_equal_offline_predictions(address, folder):
    answers = predictions(address, {"examples": TEXTS[:4]})
    offline = DomainClassifier.from_pretrained(folder)
    p = np.array([[answer["probabilities"][name] for name in offline.classes_] for answer in answers])
    np.testing.assert_allclose(p, offline.predict_proba(TEXTS[:4]), atol=1e-6)
    assert [answer["label"] for answer in answers] == offline.predict(TEXTS[:4]).tolist()
    np.testing.assert_allclose([answer["foreign"] for answer in answers], offline.foreignness(TEXTS[:4]), atol=1e-6)


def test_one_example_columns_and_ids(address):
    (plain,) = predictions(address, {"example": "good thing"})
    (row,) = predictions(address, {"example": {"id": "x7", "review": "good thing", "label": "neg"}})
    assert row.pop("id") == "x7"
    assert row["label"] == plain["label"] == "pos"
    assert row["probabilities"] == pytest.approx(plain["probabilities"])


WRONG = [
    ({"example": ""}, "blank text"),
    ({"example": 3}, "not a text"),
    ({"examples": ["a", ["b", "c"]]}, "example 2 is not a text"),
    ({"examples": [{"text": "a"}, "b"]}, "example 2 is not an object"),
    ({"example": {"text": 3.5, "x": 1}, "more": 1}, "structure"),
    ({"example": {"text": [1]}}, "text"),
    ({"example": {"width": 3}}, "vectors"),
    ({"example": {"a": "b"}}, "text column"),
    ({"example": "\ud800"}, "surrogate"),
    ({"examples": []}, "empty"),
    ([1], "wrong structure"),
]


NOT_JSON = [(raw, "not JSON") for raw in (b"{", b"\xff", b"[" * 1500, b'{"example": NaN}')]
LARGE = [
    ({"examples": ["a"] * 5}, "5 examples"),
    *(({"example": "a" * n}, text) for n, text in ((51, "51 characters"), (3000, "bytes"))),
]


@pytest.mark.parametrize(
    ("status", "body", "fragment"), [*((422, *case) for case in (*WRONG, *NOT_JSON)), *((413, *case) for case in LARGE)]
)
def test_bad_input_is_one_sentence(address, folder, status, body, fragment):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    code, answer = request(address, "/predict", raw=raw)
    assert (code, list(json.loads(answer))) == (status, ["error"])
    assert fragment in answer
    assert not [text for text in ("Traceback", str(folder.parent), "\\n") if text in answer]


def test_other_paths(address, folder):
    assert request(address, "/health") == (200, '{"status":"ok"}')
    assert request(address, "/nowhere")[0] == 404
    assert request(address, "/predict")[0] == 405
    status, answer = request(address, "/model")
    assert status == 200
    model = json.loads(answer)
    assert model["labels"] == ["neg", "pos"]
    assert model["versions"]["torch"]
    assert (model["neck"], model["experts"]) == ("none", None)
    assert "\n# reviews" in model["card"]
    assert str(folder.parent) not in answer
    paths = json.loads(request(address, "/openapi.json")[1])["paths"]
    assert {"/predict", "/health", "/model", "/metrics"} <= set(paths)
    assert "examples" in json.dumps(paths["/predict"]["post"]["requestBody"])


@pytest.mark.slow
def test_model_description_lists_experts(tmp_path):
    settings = {"encoder.size": 32, "encoder.patch": 16, "neck.count": 3, "neck.top": 1, "neck.at": [0, 4, 8]}
    model = DomainClassifier("experts+erm", encoder="vit-tiny", tune="full", steps=1, batch=2, settings=settings)
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)
    model.fit(images, ["p", "n"] * 4, domains=["a", "a", "b", "b"] * 2).save_pretrained(tmp_path / "images")
    description = Service(tmp_path / "images").model()
    assert (description["neck"], description["experts"]) == ("experts", {"count": 3, "top": 1, "layers": 3})


def test_documentation_lists_every_path_and_loads_nothing_external(address):
    status, page = request(address, "/docs")
    assert status == 200
    assert not re.findall(r"(?:src|href|action|url)\s*[=(]\s*[\"']?(?:https?:)?//", page)
    assert "://" not in page
    paths = json.loads(request(address, "/openapi.json")[1])["paths"]
    listed = set(re.findall(r"<h3>([A-Z]+) (/\w+)</h3>", page))
    assert listed == {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert listed == {("POST", "/predict"), ("GET", "/health"), ("GET", "/model"), ("GET", "/metrics")}
    assert "connect-src 'self'" in page
    assert "prefers-color-scheme: dark" in page
    offered = html.unescape(re.search(r"<textarea[^>]*>(.*)</textarea>", page)[1])
    assert raw_predictions(address, offered)[0]["label"] in ("neg", "pos")


def raw_predictions(address, text):
    status, answer = request(address, "/predict", raw=text.encode())
    assert status == 200, answer
    return json.loads(answer)["predictions"]


def test_extreme_numbers_are_rejected_without_affecting_others(tmp_path):
    x = np.random.default_rng(0).normal(size=(24, 2))
    classifier = DomainClassifier(encoder="mlp", steps=3, batch=4, settings={"encoder.hidden": [4]})
    classifier.fit(x, (x[:, 0] > 0).astype(int), domains=["a", "b"] * 12).save_pretrained(tmp_path / "m")
    with serving(Service(tmp_path / "m", limits=Limits(wait=0.2))) as address, ThreadPoolExecutor(4) as pool:
        good = {"example": [0.5, 1.0]}
        bad = {"examples": [[0.0, 0.0], [3e38, -3e38]]}
        answers = list(pool.map(lambda body: request(address, "/predict", body), [good, bad, good, bad]))
    assert [status for status, _ in answers] == [200, 422, 200, 422]
    assert "example 2 of 2" in answers[1][1]


def test_concurrent_requests_are_batched_and_answered_individually(service):
    alone = {text: service.saved.probabilities(_texts([text]))[0] for text in TEXTS[:6]}
    with serving(service) as address, ThreadPoolExecutor(16) as pool:
        texts = [TEXTS[i % 6] for i in range(96)]
        answers = list(pool.map(lambda text: predictions(address, {"example": text})[0], texts))
        for text, answer in zip(texts, answers, strict=True):
            np.testing.assert_allclose(list(answer["probabilities"].values()), alone[text], atol=1e-5)
        counted = dict(
            line.rsplit(" ", 1) for line in request(address, "/metrics")[1].splitlines() if not line.startswith("#")
        )
    assert counted["holdfast_examples_total"] == "96.0"
    assert float(counted["holdfast_batch_examples_count"]) < 96
    assert counted['holdfast_requests_total{path="/predict",status="200"}'] == "96.0"
    assert counted['holdfast_predict_seconds_bucket{le="+Inf"}'] == counted["holdfast_predict_seconds_count"] == "96.0"


def test_pending_requests_are_answered_at_shutdown(folder):
    service, started = Service(folder, limits=Limits()), threading.Event()
    answer = service.answer

    def slowly(batch):
        started.set()
        time.sleep(0.3)
        return answer(batch)

    service.answer = slowly
    with ThreadPoolExecutor(1) as pool:
        with serving(service) as address:
            waiting = pool.submit(predictions, address, {"example": "good thing"})
            assert started.wait(10)
        assert waiting.result(10)[0]["label"] == "pos"


def test_timeouts_and_failures_do_not_disclose_internals(folder):
    service = Service(folder, limits=Limits(seconds=0.1))
    service.answer = lambda batch: time.sleep(0.3) or []
    with serving(service) as address:
        status, answer = request(address, "/predict", {"example": "good"})
        assert (status, "within 0.1 seconds" in answer) == (503, True)
    service = Service(folder)
    service.answer = lambda batch: 1 / 0
    with serving(service) as address:
        status, answer = request(address, "/predict", {"example": "good"})
    assert status == 500
    assert "division" not in answer


def _texts(texts):
    from holdfast.data.raw import Texts

    return Texts.of(texts)
