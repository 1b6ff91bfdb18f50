"""Low-rank adapters: they alone are trained, start as the plain network, and are merged into saved models."""

import importlib.util
import sys

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.estimator import DomainClassifier
from holdfast.nn.tuning import adapter_rank, merge_adapters
from holdfast.train.assemble import assemble
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.tiny import tiny_bert

TEXTS = world("text", "none", domains=3, size=24, classes=2, seed=0)
SMALL = {"encoder.length": 12, "steps": 4, "every": 2, "batch": 4}
needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs the package peft")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return f"hf:{tiny_bert(tmp_path_factory.mktemp('bert'))}"


def test_modes():
    assert [adapter_rank(mode) for mode in ("lora:8", "lora:0", "lora:x", "full", "last:2")] == [8, 0, 0, 0, 0]
    with pytest.raises(BadInput, match=r"unknown tuning 'lora:0'.*lora:R"):
        make_spec(TEXTS, encoder="bilstm", tune="lora:0")


def test_a_missing_package_is_named(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    spec, workspace = make_spec(TEXTS, encoder=bert, tune="lora:2", settings=SMALL), Workspace(TEXTS, cache=None)
    with pytest.raises(BadInput, match=r"--tune lora:2 needs the package peft: run .pip install 'holdfast.lora.'"):
        assemble(spec, workspace.episodes(spec)[0], workspace)


@needs_peft
def test_only_adapters_are_trained_and_merging_keeps_the_function(bert):
    workspace = Workspace(TEXTS, cache=None)
    spec = make_spec(TEXTS, encoder=bert, tune="lora:2", settings=SMALL)
    assert (spec.lr, spec.lr_args) == (1e-3, {"head": 1.0})
    episode = workspace.episodes(spec)[0]
    assembly, plain = assemble(spec, episode, workspace), make_spec(TEXTS, encoder=bert, tune="full", settings=SMALL)
    model = assembly.make().model.eval()
    full = assemble(plain, episode, workspace).make().model.eval()
    trained = [name for name, p in model.backbone.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    x = assembly.examples.inputs(torch.arange(6))
    with torch.no_grad():
        torch.testing.assert_close(model.backbone(x), full.backbone(x))  # B starts at zero
        for name, p in model.backbone.named_parameters():
            if "lora_B" in name:
                p.add_(0.1)
        before = model(x)
        assert not torch.allclose(model.backbone(x), full.backbone(x))
        merge_adapters(model)
        torch.testing.assert_close(model(x), before)
    assert model.state_dict().keys() == full.state_dict().keys()


@needs_peft
def test_a_model_folder_is_that_of_a_plain_network(bert, tmp_path, monkeypatch):
    classifier = DomainClassifier("erm", encoder=bert, tune="lora:2", settings=SMALL, device="cpu", cache=False)
    classifier.fit_dataset(TEXTS, folder=tmp_path / "model")
    texts = TEXTS.raw.take(range(5))
    expected = classifier.predict_proba(texts)
    monkeypatch.setitem(sys.modules, "peft", None)  # predicting needs no package
    loaded = DomainClassifier.from_pretrained(tmp_path / "model", device="cpu")
    torch.testing.assert_close(torch.from_numpy(loaded.predict_proba(texts)), torch.from_numpy(expected))
    cost = classifier.record_.cost
    assert 0 < cost["learning_parameters"] < cost["parameters"] / 2


@needs_peft
def test_parts_inside_the_layers_are_refused(bert):
    settings, workspace = {**SMALL, "neck": "experts"}, Workspace(TEXTS)
    spec = make_spec(TEXTS, encoder=bert, tune="lora:2", settings=settings)
    with pytest.raises(BadInput, match="both change the layers"):
        assemble(spec, workspace.episodes(spec)[0], workspace).make()


@needs_peft
def test_an_encoder_without_transformer_layers_is_refused():
    spec, workspace = make_spec(TEXTS, encoder="bilstm", tune="lora:2", settings={"batch": 4}), Workspace(TEXTS)
    with pytest.raises(BadInput, match="no stack of layers"):
        assemble(spec, workspace.episodes(spec)[0], workspace)
