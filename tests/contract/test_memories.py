"""Contract of every memory neck in the catalog, on every kind of backbone."""

import copy
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import DomainClassifier, catalog
from holdfast.core import inputs
from holdfast.core.tape import tape
from holdfast.data.synthetic import world
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.memory.neck import MemoryBlend
from holdfast.tasks.classify import Classify
from tests.contract.conftest import small


def memories():
    """Return the necks that contain a memory."""
    module = {name: catalog.build_neck(name, 8, 3, options=small(name)) for name in catalog.NECKS}
    return [name for name, neck in module.items() if any(isinstance(part, MemoryBlend) for part in neck.modules())]


NAMES = memories()


def test_memories_have_share_and_frozen():
    assert {"memory", "memory-4.8m"} <= set(NAMES)
    assert not {"none", "projection", "ffn", "layer"} & set(NAMES)
    for name in NAMES:
        assert {"share", "frozen"} <= set(catalog.lookup("necks", name).setting_names()), name


@pytest.fixture(params=NAMES)
def neck(request):
    return request.param


def states(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(model, before):
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def parts(model):
    return [part for part in model.modules() if isinstance(part, MemoryBlend)]


def opened(model):
    """Return the model with an open gate."""
    with torch.no_grad():
        for part in parts(model):
            part.gate.fill_(0.5)
    return model


@pytest.mark.parametrize("training", [True, False])
def test_read_is_pure(bench, neck, training):
    model = bench.model(neck)
    model.eval()
    model.neck.train(training)
    before, rng = states(model), torch.get_rng_state()
    known = {name: set(vars(part)) for name, part in model.named_modules()}
    first = model(bench.batch().x)
    assert torch.equal(first, model(bench.batch().x))
    assert torch.equal(rng, torch.get_rng_state())
    assert_same(model, before)
    assert {name: set(vars(part)) for name, part in model.named_modules()} == known


def test_reads_are_independent_of_the_batch(bench, neck):
    model, x = bench.model(neck).eval(), bench.batch().x
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(inputs.take(x, [i])) for i in range(inputs.size(x))])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_weights_sum_to_one_and_are_recorded(bench, neck):
    model, x = bench.model(neck).eval(), bench.batch().x
    with tape() as side:
        with_tape = model(x)
    (weights,), (content,) = side["memory/weights"], side["memory/content"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert float(weights.min()) >= 0
    assert content.shape == (12, model.width)
    with tape() as outer, tape():
        model(x)
    assert not outer
    assert torch.equal(with_tape, model(x))


def test_zero_share_and_zero_gate_equal_the_plain_backbone(bench, neck):
    null, plain, x = bench.model(neck, share=0.0).eval(), bench.model().eval(), bench.batch().x
    assert torch.equal(null.features(x), plain.features(x))
    model = bench.model(neck).eval()
    assert torch.equal(model.features(x), plain.features(x))  # the gate starts at zero
    assert not torch.equal(opened(model).features(x), plain.features(x))
    assert not torch.equal(bench.model(neck, fusion="interpolate").eval().features(x), plain.features(x))


def test_gradient_reaches_every_parameter(bench, neck):
    model, batch = opened(bench.model(neck)), bench.batch()
    torch.nn.functional.cross_entropy(model(batch.x), batch.y).backward()
    result = [named for part in parts(model) for named in part.named_parameters()]
    assert len(result) >= 3
    for name, parameter in result:
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


def test_memory_is_trained_unless_frozen(bench, neck):
    for frozen in (False, True):
        model, batch = bench.model(neck, frozen=frozen), bench.batch()
        method = ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(lr=3e-3))).train()
        before = [states(part.memory if frozen else part) for part in parts(model)]  # a frozen memory has a gate
        for _ in range(3):
            method.step(batch)
        for part, then in zip(parts(model), before, strict=True):
            if frozen:
                assert_same(part.memory, then)
            else:
                assert all(not torch.equal(p, then[name]) for name, p in part.named_parameters())


def test_copy_is_independent(bench, neck):
    model, x = bench.model(neck).eval(), bench.batch().x
    before, other = model(x), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(model(x), before)


def test_saved_and_loaded_memory_is_equal(neck, tmp_path):
    data = world("vector", "none", domains=2, size=12, classes=2, seed=0)
    x = data.raw.take(np.arange(len(data))).numpy()
    given = {"neck": neck, "encoder.hidden": [8], **{f"neck.{key}": value for key, value in small(neck).items()}}
    module = DomainClassifier(steps=4, batch=4, settings=given).fit(x, data.y, domains=data.domain)
    again = DomainClassifier.from_pretrained(module.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(x), module.predict_proba(x))
    assert len(np.unique(module.predict_proba(x)[:, 0])) > 2
