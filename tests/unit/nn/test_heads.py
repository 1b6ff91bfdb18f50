"""Heads: outputs, settings, and methods that use the last layer."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from holdfast import catalog
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.seeds import seeded
from holdfast.methods.adversarial import PDA
from holdfast.methods.base import StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.methods.penalties import Fishr
from holdfast.nn.backbones.small import Features
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.fusion import Fusion
from holdfast.nn.heads import Dense
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from tests.tiny import VOCABULARY, tiny_masked

CLASSES = ("no", "yes", "maybe")
WORDS = {"no": ["bad", "not"], "yes": "good", "maybe": "very"}
INFO = StageInfo(0, ("a", "b"))
# without those that a method fits as a whole, which have no layers
CLASSIFIERS = [name for name, entry in catalog.HEADS.items() if "classify" in entry.tasks and name != "trees"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return TextEncoder.build(list, name=str(tiny_masked(tmp_path_factory.mktemp("bert"))), template="sentiment-0")


def make(name, encoder, **given):
    given = {"words": WORDS, **given} if name == "words" else given
    with seeded(0):
        if name == "fusion":  # needs features of two networks
            return Fusion(32, 3, kind="dense", shared=True, add="logits", dropout=0.1)
        return catalog.build("heads", name, 32, CLASSES, encoder, options=given)


def test_no_head_returns_the_features(encoder):
    head, z = make("none", encoder), torch.randn(5, 32)
    assert head(z) is z
    assert (head.outputs, list(head.parameters())) == (32, [])
    assert type(head)(**head.settings).outputs == 32
    with pytest.raises(BadInput, match="head=none"):
        head.last_layer()


def test_dense_by_hand():
    torch.manual_seed(0)
    head = Dense(4, 3, dropout=0.5).eval()
    z = torch.randn(6, 4)
    w, b, v, c = (p.detach().numpy() for p in (head.dense.weight, head.dense.bias, head.out.weight, head.out.bias))
    assert_close(head(z).detach().numpy(), np.tanh(z.numpy() @ w.T + b) @ v.T + c, rtol=1e-5, atol=1e-6)
    assert not torch.equal(head.train()(z), head(z))
    zero = Dense(4, 3, dropout=0.0).train()
    assert torch.equal(zero(z), zero(z))
    with pytest.raises(BadInput, match="dropout"):
        Dense(4, 3, dropout=1.0)


def test_dense_with_more_layers():
    torch.manual_seed(0)
    head, z = Dense(4, 3, dropout=0.0, layers=2), torch.randn(6, 4)
    assert_close(head(z), head.out(head.more[0](head.dense(z).tanh()).tanh()))
    assert Dense(**head.settings).state_dict().keys() == head.state_dict().keys()
    assert Dense(4, 3).state_dict().keys() == {"dense.weight", "dense.bias", "out.weight", "out.bias"}
    assert Dense(width=4, outputs=3, dropout=0.1).settings["layers"] == 1  # settings of older model folders


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in CLASSIFIERS), ("words", {"full": True}), ("words", {"tied": True})]
)
def test_heads_are_rebuilt_from_settings(encoder, name, options):
    head = make(name, encoder, **options).eval()
    again = catalog.lookup("heads", name).load().__self__(**json.loads(json.dumps(head.settings))).eval()
    again.load_state_dict(head.state_dict())
    z = torch.randn(5, 32)
    assert head(z).shape == (5, head.outputs) == (5, 3)
    assert torch.equal(head(z), again(z))
    assert options.get("full") or any(head.last_layer() is part for part in head.modules())


@pytest.mark.parametrize("name", ["dense", "words"])
def test_fishr_uses_gradients_of_the_last_layer(encoder, name):
    torch.manual_seed(0)
    z, y = torch.randn(6, 32), torch.tensor([0, 1, 2, 0, 1, 2])
    head = make(name, encoder, **({"dropout": 0.0} if name == "dense" else {}))
    method = Fishr(
        Model(Features(inputs=32), NoNeck(32), head),
        task=Classify(),
        optimizer=partial(Optimizer, OptimizerSettings(lr=0.01)),
    )
    single = []
    for i in range(6):
        grads = torch.autograd.grad(
            Classify().loss(head(z[i : i + 1]), y[i : i + 1]), list(head.last_layer().parameters())
        )
        single.append(np.concatenate([g.flatten().numpy() for g in grads]))
    expected = np.stack([np.var(single[:3], axis=0), np.var(single[3:], axis=0)])
    result = method.variance(z, DomainBatch(z, y, (0, 1), (3, 3)))
    assert_close(result.detach().numpy(), expected, rtol=1e-4, atol=1e-6)


def test_fishr_rejects_a_complete_vocabulary(encoder):
    model = Model(Features(inputs=32), NoNeck(32), make("words", encoder, full=True))
    method = Fishr(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(lr=0.01)))
    with pytest.raises(BadInput, match=r"head\.full=true"):
        method.begin_stage(INFO)


def test_pda_aligns_words(encoder):
    torch.manual_seed(0)
    z, y = torch.randn(12, 32), torch.tensor([0, 1] * 6)
    batch = DomainBatch(z, y, (0, 1), (6, 6))
    for full in (False, True):
        model = Model(Features(inputs=32), NoNeck(32), make("words", encoder, full=full))
        method = PDA(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(lr=0.01)), words=True)
        method.begin_stage(INFO)
        message = model.head.words(z).exp().detach().double().numpy()
        means = {(d, c): message[6 * d : 6 * d + 6][y[:6].numpy() == c].mean(axis=0) for d in (0, 1) for c in (0, 1)}
        gaps = [(means[b, c] * np.log(means[b, c] / means[1 - b, c])).sum() for b in (0, 1) for c in (0, 1)]
        assert float(method.step(batch)["gap"]) == pytest.approx(np.mean(gaps), rel=1e-4)
        assert message.shape[1] == (len(VOCABULARY) if full else 4)
    plain = Model(Features(inputs=32), NoNeck(32), make("linear", encoder))
    with pytest.raises(BadInput, match="use --set head=words"):
        PDA(plain, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(lr=0.01)), words=True)


def test_linear_with_truncated_normal_initialisation(encoder):
    with seeded(0, "init"):
        module = catalog.build("heads", "linear", 400, [str(i) for i in range(100)], encoder, options={"std": 0.02})
    assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert module.weight.abs().max() < 0.2
    assert not module.bias.any()
    assert module.settings == {"width": 400, "outputs": 100}  # the initialisation is not part of the shape
    with pytest.raises(BadInput, match=r"head.std.*0"):
        catalog.build("heads", "linear", 4, CLASSES, encoder, options={"std": 0})
