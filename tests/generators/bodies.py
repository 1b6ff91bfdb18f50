"""Valid, nearly valid and hostile request bodies per kind of examples, and small models that take them."""

import base64
import io

import numpy as np
from PIL import Image

from holdfast import DomainClassifier
from holdfast.data.synthetic import world
from holdfast.train.training_data import training_data
from tests.annotated import write_names
from tests.graphs import rings_and_stars, write_zip
from tests.tiny import tiny_bert


def image_text(form: str) -> str:
    """Return a small image file in base64."""
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, form)
    return base64.b64encode(file.getvalue()).decode()


VALID = {
    "text": "a good thing",
    "vector": [0.5, -1.0],
    "image": {"image": image_text("png")},
    "words": ["a", "good", "phone"],
    "graph": {"nodes": [[0], [1]], "edges": [[0, 1], [1, 0]]},
}


RAW_BODIES = (  # bodies that JSON libraries do not write
    b"", b"null", b"{", b'{"example": NaN}', b'{"example": [Infinity, -Infinity]}', b'{"example": 1e999}', b"\xff\xfe",
    b'{"example": "a", "example": "b"}', b'{"example": [1, 2], "example": {"text": "a"}}', b'{"example": "\\ud83d"}',
    b'{"example": "' + b"a" * 400 + b'"}', b'{"example": "' + b"a" * 30_000 + b'"}', b"[" * 9000, b'{"a":' * 3000,
    b'{"example": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"example": ' + b"9" * 6000 + b"}", b'{"examples": [[], []]}',
    b'{"examples": {"0": "a"}}', b'{"example": "\x00"}', b"example=a+b", b'\xef\xbb\xbf{"example": "a"}',
)  # fmt: skip


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
