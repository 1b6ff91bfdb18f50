"""Model folders whose settings ask for too much memory or time, or have values of the wrong type."""

import json
import shutil

import pytest
from transformers import LlamaConfig, LlamaModel

from holdfast import DomainClassifier
from holdfast.core.errors import BadInput
from holdfast.folders.format import load_model
from holdfast.nn.backbones.pretrained import quiet
from tests.tiny import VOCABULARY, tiny_tokenizer

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Return the folder of a model with a small decoder, whose configuration transformers reads."""
    source = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(vocab_size=len(VOCABULARY), intermediate_size=8, max_position_embeddings=66, **SIZES)
    with quiet():
        LlamaModel(config).save_pretrained(source)
    classifier = DomainClassifier(encoder=f"hf:{tiny_tokenizer(source)}", steps=1, batch=4, device="cpu")
    classifier.fit(["good film", "bad food"] * 8, ["pos", "neg"] * 8, domains=["a", "a", "b", "b"] * 4)
    return classifier.save_pretrained(tmp_path_factory.mktemp("hostile") / "model")


def changed(folder, copy, name, change):
    shutil.copytree(folder, copy)
    config = json.loads((copy / name).read_text())
    change(config)
    (copy / name).write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ({"num_hidden_layers": 0, "head_dim": 8_000_000_000}, "head_dim=8,000,000,000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1,000,000,000"),
        ({"num_hidden_layers": 0, "hidden_size": 2, "head_dim": 16_000_000, "vocab_size": 10_000_000}, "values"),
        ({"model_type": "qwen2", "num_hidden_layers": 10**9}, "num_hidden_layers=1,000,000,000"),
    ],
)
def test_sizes_of_a_network_are_bounded(fitted, tmp_path, sizes, fault):
    copy = changed(fitted, tmp_path / "model", "preparation/config.json", lambda config: config.update(sizes))
    with pytest.raises(BadInput, match=fault):
        load_model(copy)


def test_layers_of_a_network_are_counted(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.core.limits.MODULES", 500)
    monkeypatch.setattr("holdfast.core.limits.VALUES_PER_MODULE", 1 << 24)
    assert load_model(fitted).classes == ("neg", "pos")
    copy = changed(
        fitted, tmp_path / "model", "preparation/config.json", lambda config: config.update(num_hidden_layers=10**6)
    )
    with pytest.raises(BadInput, match="more than 500 modules"):
        load_model(copy)


@pytest.mark.parametrize("length", [-1, 0, "128", True, 2.5, 67, 10**30])
def test_wrong_lengths_are_refused(fitted, tmp_path, length):
    copy = changed(
        fitted, tmp_path / "model", "config.json", lambda config: config["encoder"]["settings"].update(length=length)
    )
    with pytest.raises(BadInput, match="length"):
        load_model(copy)
