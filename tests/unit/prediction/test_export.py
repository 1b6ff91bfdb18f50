"""Exported programs, run by onnxruntime and torch on other batch sizes and lengths than the traced ones."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer

from holdfast import BadInput, DomainClassifier
from holdfast.prediction.export import _save, export
from tests.tiny import tiny_bert

HMA = {"neck.real": 16, "neck.slots": 2, "neck.support": 8}
MEMORY = {"neck.slots": 16}
PRODUCTS = {"neck.slots": 64, "neck.top": 4}
NECKS = {"products": "product-memory", "hma": "heterogeneous", "experts": "experts"}
N = 24


def examples(kind):
    rng = np.random.default_rng(0)
    if kind == "vector":
        return rng.normal(size=(N, 6)).astype(np.float32)
    if kind == "image":
        return rng.integers(0, 256, (N, 3, 32, 32), dtype=np.uint8)
    return [f"{word} film {'was very ' * (i % 4)}" for word in ("good", "bad") for i in range(N // 2)]


MODELS = {
    "vector-memory": ("vector", "memory+erm", {"settings": {"encoder.hidden": [8], **MEMORY}}),
    "vector-defaults": ("vector", "mil", {"settings": {"encoder.hidden": [8]}}),  # default number of slots
    "vector-products": ("vector", "product-memory+erm", {"settings": {"encoder.hidden": [8], **PRODUCTS}}),
    "vector-hma": ("vector", "hma", {"settings": {"encoder.hidden": [8], **HMA}}),
    "text-memory": ("text", "memory+erm", {"settings": MEMORY}),
    "text-hma": ("text", "hma", {"tune": "full", "settings": HMA}),
    "text-experts": ("text", "experts+erm", {"tune": "full"}),
    "image-memory": ("image", "memory+erm", {"encoder": "cnn", "settings": MEMORY}),
}  # fmt: skip
QUICK = [("vector-memory", "torch"), ("vector-defaults", "torch"), ("vector-hma", "onnx"), ("text-memory", "onnx")]
CASES = [
    pytest.param(name, form, marks=() if (name, form) in QUICK else pytest.mark.slow)
    for name in MODELS
    for form in ("onnx", "torch")
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Function that fits a model at its first call."""
    base, models = tmp_path_factory.mktemp("export"), {}
    bert = tiny_bert(base / "bert")

    def make(name):
        if name not in models:
            kind, method, more = MODELS[name]
            more = {"encoder": f"hf:{bert}", **more} if kind == "text" else more
            model = DomainClassifier(method, steps=6, batch=4, lr=0.01, device="cpu", cache=False, **more)
            model.fit(examples(kind), ["neg", "pos"] * (N // 2), domains=["a", "a", "b", "b"] * (N // 4))
            models[name] = model.save_pretrained(base / name), model
        return models[name]

    return make


def program_inputs(about: dict, folder: Path, raw) -> dict[str, np.ndarray]:
    """Prepare inputs from the JSON description only."""
    steps = about["preprocessing"]
    if steps["takes"] != "text":
        (only,) = about["inputs"]
        return {only["name"]: raw.astype(only["type"])}
    tokenizer = Tokenizer.from_file(str(folder / steps["tokenizer"]))
    tokenizer.enable_truncation(steps["length"])
    tokenizer.enable_padding(pad_id=steps["padding"])
    rows = tokenizer.encode_batch(list(raw))
    return {"ids": np.array([row.ids for row in rows]), "mask": np.array([row.attention_mask for row in rows])}


def run(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, inputs)[0])
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    return torch.export.load(path).module()(**tensors).detach().numpy()


@pytest.mark.parametrize(("name", "form"), CASES)
def test_program_and_model_agree(fitted, tmp_path, name, form):
    folder, model = fitted(name)
    done = export(folder, tmp_path / f"m{'.onnx' if form == 'onnx' else '.pt2'}", format=form)
    assert done.difference < 1e-5
    about = json.loads(done.about.read_text())
    assert about["labels"] == ["neg", "pos"]
    assert about["neck"] == NECKS.get(name.split("-")[1], "memory")
    # file names include the format, so that both formats can be in one folder
    assert (about["program"], done.about.name) == (done.program.name, f"{done.program.name}.json")
    assert about["preprocessing"].get("tokenizer") in (None, f"{done.program.name}.tokenizer.json")
    raw = examples(MODELS[name][0])
    for batch in (raw, raw[:1], raw[5:12]):
        outputs = run(done.program, program_inputs(about, tmp_path, batch))
        np.testing.assert_allclose(outputs, model.predict_proba(batch), atol=1e-5)


@pytest.mark.slow
def test_description_lists_experts(fitted, tmp_path):
    about = json.loads(export(fitted("text-experts")[0], tmp_path / "m.pt2", format="torch").about.read_text())
    assert about["experts"] == {"count": 6, "top": 2, "layers": 1}


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_tables_with_texts_are_exported(tmp_path, form):
    rng = np.random.default_rng(0)
    words = [f"patient {'smokes often' if i % 2 else 'never smoked'} on ward {i}" for i in range(N)]
    inputs = pd.DataFrame({"age": rng.normal(60, 9, N), "sex": rng.choice(["f", "m", None], N), "note": words})
    model = DomainClassifier(steps=4, batch=4, device="cpu", cache=False)
    model.fit(inputs, ["ill", "well"] * (N // 2), domains=["a", "a", "b", "b"] * (N // 4))
    folder = model.save_pretrained(tmp_path / "model")
    done = export(folder, tmp_path / f"m{'.onnx' if form == 'onnx' else '.pt2'}", format=form)
    about = json.loads(done.about.read_text())
    steps, vocabulary = (
        about["preprocessing"],
        json.loads((tmp_path / f"{done.program.name}.vocabulary.json").read_text()),
    )
    assert steps["text"]["vocabulary"] == f"{done.program.name}.vocabulary.json"
    assert [each["name"] for each in about["inputs"]] == ["numbers", "codes", "ids", "mask", "types"]
    assert vocabulary["text words"][0] in " ".join(words)
    batch = model._saved.encoder.prepare(model._raw(inputs[:5]).take(np.arange(5))).take(torch.arange(5))
    tokens = {"ids": batch.second.ids, "mask": batch.second.mask.long(), "types": batch.second.types}
    tensors = {"numbers": batch.first.first, "codes": batch.first.second, **tokens}
    outputs = run(done.program, {name: value.numpy() for name, value in tensors.items()})
    np.testing.assert_allclose(outputs, model.predict_proba(inputs[:5]), atol=1e-5)


def test_unsupported_exports_raise(fitted, tmp_path):
    texts, y, d = ["good thing", "bad thing"] * 8, ["p", "n"] * 8, ["a", "a", "b", "b"] * 4
    small = {"encoder.hidden": 4, "encoder.embedding": 4}
    for encoder in ("bilstm", "memory-lstm"):
        model = DomainClassifier(encoder=encoder, steps=2, batch=4, settings=small if encoder == "bilstm" else None)
        folder = model.fit(texts, y, domains=d).save_pretrained(tmp_path / encoder)
        with pytest.raises(BadInput, match=f"cannot be exported.*{encoder}"):
            export(folder, tmp_path / "m.pt2", format="torch")
    folder, _ = fitted("vector-memory")
    with pytest.raises(BadInput, match=r"format.*onx"):
        export(folder, tmp_path / "m.onnx", format="onx")
    with pytest.raises(BadInput, match=r"\.pt2.*m\.onnx"):
        export(folder, tmp_path / "m.onnx", format="torch")
    vector = {"encoder.hidden": [8], **HMA, "neck.context": "batch"}
    model = DomainClassifier("hma", steps=2, batch=4, settings=vector)
    folder = model.fit(examples("vector"), ["n", "p"] * 12, domains=["a", "a", "b", "b"] * 6).save_pretrained(
        tmp_path / "h"
    )
    with pytest.raises(BadInput, match=r"neck.context=support"):
        export(folder, tmp_path / "m.onnx")
    assert not list(tmp_path.glob("m.*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_full_disk_is_an_error_of_the_operating_system():
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),))
    with pytest.raises(OSError, match="No space left"):
        _save(program, Path("/dev/full"))
