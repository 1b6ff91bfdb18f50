"""The hybrid encoder concatenates a text encoder and components of TF-IDF, and any method can train it."""

import numpy as np
import pytest
import torch

from holdfast.core import inputs
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import load_model
from holdfast.nn.backbones.hybrid import Hybrid
from holdfast.prediction.export import export_module
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.tiny import tiny_bert

DATA = world("text", "vocabulary", domains=3, size=30, classes=2, seed=0)
TEXTS = DATA.raw.take(np.arange(len(DATA)))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("bert")))


def test_features_are_those_of_both_encoders(bert):
    encoder = Hybrid.build(lambda: TEXTS[:60], base=bert, dimension=8).eval()
    x = encoder.prepare(TEXTS).take(torch.arange(len(TEXTS)))
    features = encoder(x).detach()
    assert features.shape == (90, encoder.text.width + 8)
    torch.testing.assert_close(features[:, -8:], encoder.bag(x.second).detach())
    components = features[:60, -8:].numpy()
    assert components.var(axis=0).mean() == pytest.approx(1, rel=0.05)
    gram = encoder.bag.table.detach().T @ encoder.bag.table.detach()  # orthogonal columns of equal length
    torch.testing.assert_close(gram / gram[0, 0], torch.eye(8), atol=1e-4, rtol=0)
    joined = inputs.cat(inputs.split(x, [40, 50]))
    torch.testing.assert_close(encoder(joined).detach(), features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tune", ["frozen", "full", "last:1"])
def test_any_method_trains_it(bert, tune):
    settings = {"encoder": "hybrid", "encoder.base": bert, "encoder.dimension": 4, "tune": tune, "neck": "projection"}
    workspace = Workspace(DATA)
    spec = make_spec(DATA, method="coral", steps=2, every=1, batch=4, settings=settings)
    record, assembly = train(spec, workspace.episodes(spec)[0], workspace)
    trained = {name for name, p in assembly.method.model.backbone.named_parameters() if p.requires_grad}
    assert any(name.startswith("bag.") for name in trained) == (tune != "frozen")
    assert record.stages[0]["test"]


def test_a_saved_model_is_not_exported(bert, tmp_path):
    options = {"encoder.base": bert, "encoder.dimension": 4}
    model = DomainClassifier("logistic", encoder="hybrid", device="cpu", settings=options)
    model.fit(list(TEXTS), DATA.y, domains=DATA.domain)
    assert model.record_.spec["tune"] == "frozen"
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(BadInput, match="hybrid cannot be exported"):
        export_module(load_model(tmp_path / "model"))
