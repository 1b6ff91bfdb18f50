"""Programs are run by onnxruntime and by torch, on other numbers and lengths of examples than they were made with."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from holdfast import BadInput, DomainClassifier
from holdfast.models.export import export
from tests.tiny import tiny_bert

HMA = {"neck.real": 16, "neck.slots": 2, "neck.support": 8}
MEMORY = {"neck.slots": 16}
PRODUCTS = {"neck.slots": 64, "neck.top": 4}
NECKS = {"products": "product-memory", "hma": "heterogeneous", "experts": "experts"}
N = 24


def examples(kind):
    chance = np.random.default_rng(0)
    if kind == "vector":
        return chance.normal(size=(N, 6)).astype(np.float32)
    if kind == "image":
        return chance.integers(0, 256, (N, 3, 32, 32), dtype=np.uint8)
    return [f"{word} film {'was very ' * (i % 4)}" for word in ("good", "bad") for i in range(N // 2)]


MODELS = {
    "vector-memory": ("vector", "memory+erm", {"settings": {"encoder.hidden": [8], **MEMORY}}),
    "vector-usual": ("vector", "mil", {"settings": {"encoder.hidden": [8]}}),  # as many slots as it has unless told
    "vector-products": ("vector", "product-memory+erm", {"settings": {"encoder.hidden": [8], **PRODUCTS}}),
    "vector-hma": ("vector", "hma", {"settings": {"encoder.hidden": [8], **HMA}}),
    "text-memory": ("text", "memory+erm", {"settings": MEMORY}),
    "text-hma": ("text", "hma", {"tune": "full", "settings": HMA}),
    "text-experts": ("text", "experts+erm", {"tune": "full"}),
    "image-memory": ("image", "memory+erm", {"encoder": "cnn", "settings": MEMORY}),
}  # fmt: skip
QUICK = [
    ("vector-memory", "torch"),
    ("vector-usual", "torch"),
    ("vector-hma", "onnx"),
    ("text-memory", "onnx"),
    ("image-memory", "torch"),
]
EACH = [
    pytest.param(name, form, marks=() if (name, form) in QUICK else pytest.mark.slow)
    for name in MODELS
    for form in ("onnx", "torch")
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Makes each model once."""
    base, made = tmp_path_factory.mktemp("export"), {}
    bert = tiny_bert(base / "bert")

    def make(name):
        if name not in made:
            kind, method, more = MODELS[name]
            more = {"encoder": f"hf:{bert}", **more} if kind == "text" else more
            model = DomainClassifier(method, steps=6, batch=4, lr=0.01, device="cpu", cache=False, **more)
            model.fit(examples(kind), ["neg", "pos"] * (N // 2), domains=["a", "a", "b", "b"] * (N // 4))
            made[name] = model.save_pretrained(base / name), model
        return made[name]

    return make


def fed(about: dict, folder: Path, raw) -> dict[str, np.ndarray]:
    """Inputs made by what the page of JSON says, and by nothing else."""
    said = about["preprocessing"]
    if said["takes"] != "text":
        (only,) = about["inputs"]
        return {only["name"]: raw.astype(only["type"])}
    tokenizer = Tokenizer.from_file(str(folder / said["tokenizer"]))
    tokenizer.enable_truncation(said["length"])
    tokenizer.enable_padding(pad_id=said["padding"])
    rows = tokenizer.encode_batch(list(raw))
    return {"ids": np.array([row.ids for row in rows]), "mask": np.array([row.attention_mask for row in rows])}


def run(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run(["probabilities"], inputs)[0]
    given = {name: torch.from_numpy(value) for name, value in inputs.items()}
    return torch.export.load(path).module()(**given).detach().numpy()


@pytest.mark.parametrize(("name", "form"), EACH)
def test_a_program_says_what_the_model_says(fitted, tmp_path, name, form):
    folder, model = fitted(name)
    done = export(folder, tmp_path / f"m{'.onnx' if form == 'onnx' else '.pt2'}", format=form)
    assert done.difference < 1e-5
    about = json.loads(done.about.read_text())
    assert about["labels"] == ["neg", "pos"]
    assert about["neck"] == NECKS.get(name.split("-")[1], "memory")
    # a program of the same name in the other format has its own
    assert (about["program"], done.about.name) == (done.program.name, f"{done.program.name}.json")
    assert about["preprocessing"].get("tokenizer") in (None, f"{done.program.name}.tokenizer.json")
    raw = examples(MODELS[name][0])
    for some in (raw, raw[:1], raw[5:12]):
        found = run(done.program, fed(about, tmp_path, some))
        np.testing.assert_allclose(found, model.predict_proba(some), atol=1e-5)


def test_a_page_tells_of_experts(fitted, tmp_path):
    about = json.loads(export(fitted("text-experts")[0], tmp_path / "m.pt2", format="torch").about.read_text())
    assert about["experts"] == {"count": 6, "top": 2, "layers": 1}


def test_the_temperature_is_inside(fitted, tmp_path):
    folder, model = fitted("vector-memory")
    assert model._saved.calibration is not None
    raw = model._saved.probabilities(_vectors(), calibrated=False)
    calm = np.abs(model._saved.probabilities(_vectors()) - raw).max()
    done = export(folder, tmp_path / "m.pt2", format="torch")
    found = run(done.program, {"x": examples("vector")})
    np.testing.assert_allclose(found, model.predict_proba(examples("vector")), atol=1e-5)
    assert model._saved.calibration.temperature == 1.0 or calm > 1e-6


def _vectors():
    from holdfast.data.raw import Vectors

    return Vectors(examples("vector"))


def test_what_cannot_be_exported_says_so(fitted, tmp_path):
    texts, y, d = ["good thing", "bad thing"] * 8, ["p", "n"] * 8, ["a", "a", "b", "b"] * 4
    small = {"encoder.hidden": 4, "encoder.embedding": 4}
    for encoder in ("bilstm", "memory-lstm"):
        model = DomainClassifier(encoder=encoder, steps=2, batch=4, settings=small if encoder == "bilstm" else None)
        folder = model.fit(texts, y, domains=d).save_pretrained(tmp_path / encoder)
        with pytest.raises(BadInput, match=f"cannot be exported: its encoder {encoder}"):
            export(folder, tmp_path / "m.pt2", format="torch")
    folder, _ = fitted("vector-memory")
    with pytest.raises(BadInput, match="unknown format"):
        export(folder, tmp_path / "m.onnx", format="onx")
    with pytest.raises(BadInput, match=r"ends in \.pt2"):
        export(folder, tmp_path / "m.onnx", format="torch")
    vector = {"encoder.hidden": [8], **HMA, "neck.context": "batch"}
    model = DomainClassifier("hma", steps=2, batch=4, settings=vector)
    folder = model.fit(examples("vector"), ["n", "p"] * 12, domains=["a", "a", "b", "b"] * 6).save_pretrained(
        tmp_path / "h"
    )
    with pytest.raises(BadInput, match=r"others of a batch change a prediction"):
        export(folder, tmp_path / "m.onnx")
    assert not list(tmp_path.glob("m.*"))
