"""Request bodies that are valid, nearly valid or hostile, per kind of examples, and small models that take them."""

import base64
import io
import json

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from holdfast import DomainClassifier
from holdfast.data.synthetic import world
from holdfast.train.training_data import training_data
from tests.annotated import write_names
from tests.generators.strategies import JSON, TEXT
from tests.graphs import rings_and_stars, write_zip
from tests.tiny import tiny_bert

NUMBER = st.one_of(
    st.integers(-3, 3), st.floats(-3, 3), st.sampled_from([1e39, 3e38, -1e308, 10**400, True, None, "1", 2**63, -0.0])
)
LISTS = st.lists(st.one_of(st.lists(NUMBER, max_size=3), NUMBER, TEXT, st.lists(TEXT, max_size=3)), max_size=4)
NAMED = st.dictionaries(
    st.one_of(st.sampled_from(["text", "id", "tokens", "words", "x1", "x2", "label", "image", "nodes", "edges"]), TEXT),
    st.one_of(TEXT, NUMBER, LISTS, JSON),
    max_size=4,
)


def _image(form, cut, position, byte, column):
    """Return an image file in base64, truncated or with changed bytes."""
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, form)
    content = file.getvalue()
    at = position % len(content)
    content = content[:at] if cut else content[:at] + byte + content[at + len(byte) :]
    text = base64.b64encode(content).decode()
    return {"image": text} if column else text


IMAGE = st.builds(
    _image,
    st.sampled_from(["png", "jpeg", "bmp", "gif"]),
    st.booleans(),
    st.integers(0, 5000),
    st.one_of(st.just(b""), st.binary(max_size=3)),
    st.booleans(),
)
ROWS = st.lists(st.lists(st.integers(-2, 9), min_size=1, max_size=1), max_size=4)  # one category per node
ENDS = st.lists(st.lists(st.integers(-1, 3), min_size=2, max_size=2), max_size=3)
GRAPH = st.one_of(
    st.fixed_dictionaries({"nodes": ROWS, "edges": st.one_of(st.just([]), st.just([[0, 0]]), ENDS)}),
    st.fixed_dictionaries({"nodes": st.one_of(LISTS, ROWS, NUMBER)}, optional={"edges": ENDS, "weights": LISTS}),
)
PAIR = st.lists(NUMBER, min_size=2, max_size=2)
NEARLY_VALID = {"text": TEXT, "vector": PAIR, "image": IMAGE, "words": st.lists(TEXT, max_size=4), "graph": GRAPH}

VALID = {
    "text": "a good thing",
    "vector": [0.5, -1.0],
    "image": _image("png", False, 0, b"", True),
    "words": ["a", "good", "phone"],
    "graph": {"nodes": [[0], [1]], "edges": [[0, 1], [1, 0]]},
}


def _documents(kind):
    """Draw JSON documents with valid, nearly valid and other examples."""
    example = st.one_of(st.just(VALID[kind]), NEARLY_VALID[kind], *NEARLY_VALID.values(), LISTS, NAMED, JSON)
    return st.one_of(
        st.fixed_dictionaries({"example": example}),
        st.fixed_dictionaries({"examples": st.lists(example, max_size=6)}),
        st.builds(lambda repeated, n: {"examples": [repeated] * n}, example, st.integers(0, 5)),
        st.fixed_dictionaries({"example": example, "examples": JSON}),
        JSON,
    )


RAW_BODIES = (  # bodies that JSON libraries do not write
    b"", b"null", b"{", b'{"example": NaN}', b'{"example": [Infinity, -Infinity]}', b'{"example": 1e999}', b"\xff\xfe",
    b'{"example": "a", "example": "b"}', b'{"example": [1, 2], "example": {"text": "a"}}', b'{"example": "\\ud83d"}',
    b'{"example": "' + b"a" * 400 + b'"}', b'{"example": "' + b"a" * 30_000 + b'"}', b"[" * 9000, b'{"a":' * 3000,
    b'{"example": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"example": ' + b"9" * 6000 + b"}", b'{"examples": [[], []]}',
    b'{"examples": {"0": "a"}}', b'{"example": "\x00"}', b"example=a+b", b'\xef\xbb\xbf{"example": "a"}',
)  # fmt: skip


def _encode(document, code, escaped):
    return json.dumps(document, ensure_ascii=escaped).encode(code, errors="surrogatepass")


def bodies(kind):
    codes = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "utf-32"])
    encoded = st.builds(_encode, _documents(kind), codes, st.booleans())
    return st.one_of(encoded, encoded, st.sampled_from(RAW_BODIES), st.binary(max_size=60))


def small_model(kind, folder):
    """Return the folder of a small model for this kind of examples."""
    options = {"steps": 2, "batch": 4, "device": "cpu"}
    out = folder / kind
    if out.exists():
        return out
    if kind == "text":
        texts, small = ["good thing", "bad thing"] * 8, {"encoder.hidden": 4, "encoder.embedding": 4}
        classifier = DomainClassifier(encoder="bilstm", settings=small, **options)
        return classifier.fit(texts, ["pos", "neg"] * 8, domains=["a", "a", "b", "b"] * 4).save_pretrained(out)
    if kind == "vector":
        classifier = DomainClassifier(encoder="mlp", settings={"encoder.hidden": [4]}, **options)
        x = np.random.default_rng(0).normal(size=(16, 2))
        return classifier.fit(x, ["pos", "neg"] * 8, domains=["a", "a", "b", "b"] * 4).save_pretrained(out)
    if kind == "image":
        classifier = DomainClassifier(encoder="cnn", **options)
        return classifier.fit_dataset(world("image", "rotation", domains=2, size=8, classes=2, seed=0)).save_pretrained(
            out
        )
    if kind == "words":
        bert = f"hf:{tiny_bert(folder / 'bert')}"
        classifier = DomainClassifier(encoder=bert, settings={"task": "tag", "encoder.length": 24}, **options)
        classifier.fit_dataset(training_data(str(write_names(folder / "names", 6)), task="tag"), folder=out)
        return out
    (folder / "shapes").mkdir()
    for name in ("near", "far"):
        write_zip(folder / "shapes" / f"{name}.zip", rings_and_stars(12), tags=lambda g, node: node % 3)
    classifier = DomainClassifier(encoder="gin", settings={"encoder.hidden": 4, "encoder.layers": 2}, **options)
    classifier.fit_dataset(training_data(str(folder / "shapes")), folder=out)
    return out
