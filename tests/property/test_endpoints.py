"""Whatever is sent to a server, it answers, or refuses in one sentence that tells nothing of its machine."""

import base64
import http.client
import io
import json
from contextlib import closing
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from holdfast import DomainClassifier
from holdfast.data.synthetic import world
from holdfast.run.workspace import training_data
from holdfast.serve.requests import Limits
from holdfast.serve.server import Service, serving
from tests.annotated import write_names
from tests.graphs import rings_and_stars, write_zip
from tests.property.strategies import JSON, TEXT
from tests.tiny import tiny_bert

QUICK, LONG = 40, 400
KINDS = ("text", "vector", "image", "words", pytest.param("graph", marks=pytest.mark.graph))
PATHS = ("/predict", "/health", "/model", "/metrics")
METHODS = ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD")
LIMITS = Limits(examples=4, text=300, body=20_000)
NUMBER = st.one_of(
    st.integers(-3, 3), st.floats(-3, 3), st.sampled_from([1e39, 3e38, -1e308, 10**400, True, None, "1", 2**63, -0.0])
)
LISTS = st.lists(st.one_of(st.lists(NUMBER, max_size=3), NUMBER, TEXT, st.lists(TEXT, max_size=3)), max_size=4)
NAMED = st.dictionaries(
    st.one_of(st.sampled_from(["text", "id", "tokens", "words", "x1", "x2", "label", "image", "nodes", "edges"]), TEXT),
    st.one_of(TEXT, NUMBER, LISTS, JSON),
    max_size=4,
)


def _picture(form, cut, place, byte, column):
    """An image file in base64, whole or not."""
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, form)
    content = file.getvalue()
    at = place % len(content)
    content = content[:at] if cut else content[:at] + byte + content[at + len(byte) :]
    text = base64.b64encode(content).decode()
    return {"image": text} if column else text


PICTURE = st.builds(
    _picture,
    st.sampled_from(["png", "jpeg", "bmp", "gif"]),
    st.booleans(),
    st.integers(0, 5000),
    st.one_of(st.just(b""), st.binary(max_size=3)),
    st.booleans(),
)
ROWS = st.lists(st.lists(st.integers(-2, 9), min_size=1, max_size=1), max_size=4)  # a category for each node
ENDS = st.lists(st.lists(st.integers(-1, 3), min_size=2, max_size=2), max_size=3)
GRAPH = st.one_of(
    st.fixed_dictionaries({"nodes": ROWS, "edges": st.one_of(st.just([]), st.just([[0, 0]]), ENDS)}),
    st.fixed_dictionaries({"nodes": st.one_of(LISTS, ROWS, NUMBER)}, optional={"edges": ENDS, "weights": LISTS}),
)
PAIR = st.lists(NUMBER, min_size=2, max_size=2)
FITTING = {"text": TEXT, "vector": PAIR, "image": PICTURE, "words": st.lists(TEXT, max_size=4), "graph": GRAPH}

SURE = {
    "text": "a good thing",
    "vector": [0.5, -1.0],
    "image": _picture("png", False, 0, b"", True),
    "words": ["a", "good", "phone"],
    "graph": {"nodes": [[0], [1]], "edges": [[0, 1], [1, 0]]},
}


def _forms(kind):
    """Bodies that hold, among others, what a model takes, or nearly."""
    example = st.one_of(st.just(SURE[kind]), FITTING[kind], *FITTING.values(), LISTS, NAMED, JSON)
    return st.one_of(
        st.fixed_dictionaries({"example": example}),
        st.fixed_dictionaries({"examples": st.lists(example, max_size=6)}),
        st.builds(lambda one, n: {"examples": [one] * n}, example, st.integers(0, 5)),
        st.fixed_dictionaries({"example": example, "examples": JSON}),
        JSON,
    )


WRITTEN = (  # what no library writes
    b"", b"null", b"{", b'{"example": NaN}', b'{"example": [Infinity, -Infinity]}', b'{"example": 1e999}', b"\xff\xfe",
    b'{"example": "a", "example": "b"}', b'{"example": [1, 2], "example": {"text": "a"}}', b'{"example": "\\ud83d"}',
    b'{"example": "' + b"a" * 400 + b'"}', b'{"example": "' + b"a" * 30_000 + b'"}', b"[" * 9000, b'{"a":' * 3000,
    b'{"example": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"example": ' + b"9" * 6000 + b"}", b'{"examples": [[], []]}',
    b'{"examples": {"0": "a"}}', b'{"example": "\x00"}', b"example=a+b", b'\xef\xbb\xbf{"example": "a"}',
)  # fmt: skip
TYPES = st.sampled_from(
    [
        "application/json",
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "",
        "x/y;",
    ]
)


def _coded(document, code, escaped):
    return json.dumps(document, ensure_ascii=escaped).encode(code, errors="surrogatepass")


def _bodies(kind):
    codes = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "utf-32"])
    made = st.builds(_coded, _forms(kind), codes, st.booleans())
    return st.one_of(made, made, st.sampled_from(WRITTEN), st.binary(max_size=60))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("endpoints")


def _model(kind, place):
    """A small model that takes this kind of example."""
    few = {"steps": 2, "batch": 4, "device": "cpu"}
    out = place / kind
    if out.exists():
        return out
    if kind == "text":
        texts, small = ["good thing", "bad thing"] * 8, {"encoder.hidden": 4, "encoder.embedding": 4}
        made = DomainClassifier(encoder="bilstm", settings=small, **few)
        return made.fit(texts, ["pos", "neg"] * 8, domains=["a", "a", "b", "b"] * 4).save_pretrained(out)
    if kind == "vector":
        made = DomainClassifier(encoder="mlp", settings={"encoder.hidden": [4]}, **few)
        x = np.random.default_rng(0).normal(size=(16, 2))
        return made.fit(x, ["pos", "neg"] * 8, domains=["a", "a", "b", "b"] * 4).save_pretrained(out)
    if kind == "image":
        made = DomainClassifier(encoder="cnn", **few)
        return made.fit_dataset(world("image", "rotation", domains=2, size=8, classes=2, seed=0)).save_pretrained(out)
    if kind == "words":
        bert = f"hf:{tiny_bert(place / 'bert')}"
        made = DomainClassifier(encoder=bert, settings={"task": "tag", "encoder.length": 24}, **few)
        made.fit_dataset(training_data(str(write_names(place / "names", 6)), task="tag"), folder=out)
        return out
    (place / "shapes").mkdir()
    for name in ("near", "far"):
        write_zip(place / "shapes" / f"{name}.zip", rings_and_stars(12), tags=lambda g, node: node % 3)
    made = DomainClassifier(encoder="gin", settings={"encoder.hidden": 4, "encoder.layers": 2}, **few)
    made.fit_dataset(training_data(str(place / "shapes")), folder=out)
    return out


def _said(address, path, method, body, kind):
    with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)) as connection:
        connection.request(method, path, body=body, headers={"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def _no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def _judge(place, path, method, body, status, text):
    told = f"{method} {path} {body[:200]!r} -> {status} {text[:300]}"
    assert status == 200 or 400 <= status < 500, told
    if method == "HEAD":
        return
    for secret in (str(place), "Traceback", "site-packages", "/src/holdfast", 'File "'):
        assert secret not in text, told
    if status != 200:
        document = json.loads(text)
        assert list(document) == ["error"], told
        assert document["error"].strip(), told
        assert len(document["error"].splitlines()) == 1, told
    elif path == "/predict":
        found = json.loads(text, parse_constant=_no_constant)["predictions"]
        assert found, told
        assert all({"label", "tags"} & set(each) for each in found), told
    elif path != "/metrics":
        assert isinstance(json.loads(text), dict), told


def _tried(kind, place, count):
    good = []

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(["/predict"] * 6 + [*PATHS]), st.sampled_from(["POST"] * 12 + [*METHODS]), _bodies(kind), TYPES
    )
    def inner(path, method, body, content):
        status, text = _said(address, path, method, body, content)
        _judge(place, path, method, body, status, text)
        if path == "/predict":
            good.append(status == 200)

    with serving(Service(_model(kind, place), limits=LIMITS, device="cpu")) as address:
        inner()
    return good


@pytest.mark.parametrize("kind", KINDS)
def test_every_body_is_answered_or_refused_in_one_sentence(kind, place):
    assert len(_tried(kind, place, QUICK)) > QUICK // 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_four_hundred_bodies(kind, place):
    good = _tried(kind, place, LONG)
    assert 0 < sum(good) < len(good)  # both happen
