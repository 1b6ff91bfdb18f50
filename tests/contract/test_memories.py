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
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.memory.neck import MemoryBlend
from holdfast.tasks.classify import Classify
from tests.contract.sizes import small

MADE = {name: catalog.build_neck(name, 8, 3, options=small(name)) for name in catalog.NECKS}
KEY_VALUE = [name for name, neck in MADE.items() if any(isinstance(part, MemoryBlend) for part in neck.modules())]
HETEROGENEOUS = [name for name, neck in MADE.items() if isinstance(neck, HeterogeneousMemory)]


def test_memories_have_share_and_frozen():
    assert {"memory", "memory-4.8m"} <= set(KEY_VALUE)
    assert set(HETEROGENEOUS) == {"heterogeneous", "rma", "abd", "abd-rma", "abd-syn"}
    assert not {"none", "projection", "ffn", "layer"} & {*KEY_VALUE, *HETEROGENEOUS}
    for name in KEY_VALUE:
        assert {"share", "frozen"} <= set(catalog.lookup("necks", name).setting_names()), name


def states(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(model, before):
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def parts(model):
    return [part for part in model.modules() if isinstance(part, MemoryBlend | HeterogeneousMemory)]


def opened(model):
    """Return the model with an open gate."""
    with torch.no_grad():
        for part in parts(model):
            part.gate.fill_(0.5)
    return model


def filled(bench, neck):
    """Return a model whose memory has an open gate, or a filled queue and support set."""
    model, batch = bench.model(neck), bench.batch()
    if neck in KEY_VALUE:
        return opened(model)
    with torch.no_grad():
        z = model.encode(batch.x)
        model.neck.write(z, batch.y)
        model.neck.set_support(model.neck.read_queue(z))
    return model


@pytest.fixture(params=KEY_VALUE)
def neck(request):
    return request.param


@pytest.mark.parametrize("name", [*KEY_VALUE, *HETEROGENEOUS])
def test_read_is_pure(bench, name):
    """No state, attribute or record changes, in training, in evaluation, with a tape or in a copy."""
    model, x = filled(bench, name), bench.batch().x
    for training in (True, False):
        model.eval()
        model.neck.train(training)
        before, known = states(model), {part: set(vars(module)) for part, module in model.named_modules()}
        torch.manual_seed(0)
        first = model(x)
        torch.manual_seed(0)
        with tape() as outer, tape() as side:
            assert torch.equal(first, model(x))
        assert not outer
        assert_same(model, before)
        if not training:
            rng = torch.get_rng_state()
            assert torch.equal(model(x), first)
            assert torch.equal(rng, torch.get_rng_state())
        assert {part: set(vars(module)) for part, module in model.named_modules()} == known
    recorded = [key for key in ("memory/weights", "heterogeneous/real", "heterogeneous/across") if side[key]]
    assert recorded
    for key in recorded:
        for each in (side[key][0], *side[f"{key}/mass"]):
            torch.testing.assert_close(each.sum(-1), torch.ones(each.shape[:-1]))
            assert float(each.min()) >= 0
    other = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    assert torch.equal(model(x), first)


@pytest.mark.parametrize("name", [*KEY_VALUE, *HETEROGENEOUS])
def test_reads_are_independent_of_the_batch(bench, name):
    """Unless a heterogeneous memory attends to the batch."""
    model, x = filled(bench, name).eval(), bench.batch().x
    for context in ("support", "self") if name in HETEROGENEOUS else ("",):
        model.neck.context = context
        with torch.no_grad():
            together = model(x)
            alone = torch.cat([model(inputs.take(x, [i])) for i in range(inputs.size(x))])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    if name in HETEROGENEOUS:
        model.neck.context = "batch"
        assert torch.allclose(model(x), together, atol=1e-4) == (not model.neck.across)


@pytest.mark.parametrize("name", [*KEY_VALUE, *HETEROGENEOUS])
def test_gradient_reaches_every_parameter(bench, name):
    model, batch = filled(bench, name), bench.batch()
    torch.nn.functional.cross_entropy(model(batch.x), batch.y).backward()
    learned = [named for part in parts(model) for named in part.named_parameters()]
    assert len(learned) >= 3
    for key, parameter in learned:
        assert parameter.grad is not None, key
        assert bool(parameter.grad.any()), key


def test_zero_share_and_zero_gate_equal_the_plain_backbone(bench, neck):
    null, plain, x = bench.model(neck, share=0.0).eval(), bench.model("none").eval(), bench.batch().x
    assert torch.equal(null.features(x), plain.features(x))
    model = bench.model(neck).eval()
    assert torch.equal(model.features(x), plain.features(x))  # the gate starts at zero
    assert not torch.equal(opened(model).features(x), plain.features(x))
    assert not torch.equal(bench.model(neck, fusion="interpolate").eval().features(x), plain.features(x))


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


def test_saved_and_loaded_memory_is_equal(neck, tmp_path):
    data = world("vector", "none", domains=2, size=12, classes=2, seed=0)
    x = data.raw.take(np.arange(len(data))).numpy()
    given = {"neck": neck, "encoder.hidden": [8], **{f"neck.{key}": value for key, value in small(neck).items()}}
    module = DomainClassifier(steps=4, batch=4, settings=given).fit(x, data.y, domains=data.domain)
    again = DomainClassifier.from_pretrained(module.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(x), module.predict_proba(x))
    assert len(np.unique(module.predict_proba(x)[:, 0])) > 2
