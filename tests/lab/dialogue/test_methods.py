"""Contract of methods that support dialogue, and errors of the others."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator
from holdfast.data.batches import Batches, Examples, prepare
from holdfast.data.splits import Part
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.train.evaluate import outputs, score
from holdfast.train.settings import make_spec
from lab.dialogue.head import NoHead
from lab.dialogue.respond import Respond
from tests.contract.scenario import build_method, check_method, started
from tests.talks import talks

SMALL = {"embedding": 8, "hidden": 12, "slots": 4, "longest": 6}


def serve(name: str) -> bool:
    return not any(layer.unsupported("respond") for _, layer in catalog.unwrap("methods", name))


NAMES = [name for name in catalog.buildable_names("methods") if serve(name)]
OTHERS = [name for name in catalog.buildable_names("methods") if not serve(name)]


@pytest.fixture(scope="module")
def dataset():
    return talks(12)


def encoder(dataset, name: str = "dialogue-gru"):
    return catalog.build("encoders", name, partial(dataset.raw.take, np.arange(len(dataset))), options=SMALL)


@pytest.fixture(scope="module")
def examples(dataset):
    store = prepare(dataset.raw, encoder(dataset).prepare)
    return Examples(store, torch.from_numpy(dataset.y), dataset.domains)


def make(dataset, name):
    return started(
        build_method(name, lambda: Model(encoder(dataset), NoNeck(2), NoHead(2)), task=Respond()), dataset.domains
    )


def test_supported_methods():
    assert {"erm", "vrex", "ewc", "online-ewc", "si", "replay", "agem", "swad(erm)", "progressive(erm)"} <= set(NAMES)
    assert {"irm", "coral", "cdann", "mixup", "fishr", "lwf", "mil", "pda", "m-scl"} <= set(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_unsupported_methods_raise(name, dataset):
    with pytest.raises(BadInput, match=r"respond.* erm"):
        make_spec(dataset, method=name, settings={"task": "respond"})


@pytest.mark.parametrize("name", NAMES)
def test_trains_predicts_per_example_and_resumes_from_its_state(name, dataset, examples):
    parts = [Part(domain, dataset.rows_of(domain)) for domain in dataset.domains]
    batches = Batches(examples, parts, 4, generator=generator(0, "batches"))
    _, predicted = check_method(partial(make, dataset, name), batches, steps=25, falls=0.1, atol=1e-4)
    assert predicted.shape == (12, 2)


def test_scores_are_complete_and_pure(dataset, examples):
    method = make(dataset, "erm")
    before, rng = copy.deepcopy(method.model.state_dict()), torch.get_rng_state()
    rows = np.arange(len(dataset))
    result = score(method, examples, [Part("all", rows)], Respond(), Respond.metrics)["all"]
    plain = Respond().scores(outputs(method, examples, rows), torch.from_numpy(dataset.y), ["nll"])
    assert result["nll"] == pytest.approx(plain["nll"], rel=1e-5)
    assert set(result) == set(Respond.metrics)
    assert method.training
    assert torch.equal(rng, torch.get_rng_state())
    for key, value in method.model.state_dict().items():
        assert torch.equal(value, before[key]), key
