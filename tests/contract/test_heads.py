"""Contract of every head in the catalog, with methods that use it in different ways."""

from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples, prepare
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.methods.base import StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from tests.contract.scenario import assert_pure_predictions, assert_resumes
from tests.tiny import tiny_masked

RULES = {"erm": {}, "cdann": {"weight": 0.1}, "fishr": {}, "mldg": {}, "mixup": {}, "ewc": {}}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    dataset = world("text", "none", domains=3, size=40, classes=3, seed=0)
    folder = str(tiny_masked(tmp_path_factory.mktemp("bert")))
    given = {"length": 16, "template": "sentiment-0"}

    def encoder(head):
        if head == "fusion":
            return catalog.build("encoders", "gmap", list, options={**given, "domain": folder, "strategy": "beside"})
        return catalog.build("encoders", f"hf:{folder}", list, options=given)

    store = prepare(dataset.raw, encoder("linear").prepare, size=None)
    return dataset, Examples(store, torch.from_numpy(dataset.y), dataset.domains), encoder


def cases():
    """Return every head, every method and a further pair; all pairs run in the nightly tests."""
    for head in (name for name, entry in catalog.HEADS.items() if "classify" in entry.tasks and name != "trees"):
        for rule in RULES:
            quick = rule == "erm" or head == "linear" or (rule, head) == ("mldg", "fusion")
            yield pytest.param((rule, head), id=f"{rule}-{head}", marks=() if quick else pytest.mark.slow)


@pytest.fixture(params=cases())
def make(request, bench):
    (dataset, _, encoder), (rule, name) = bench, request.param
    words = dict(zip(dataset.classes, [["bad", "not"], ["good"], ["film"]], strict=True))
    own = {"words": {"words": words}, "fusion": {"shared": False}}.get(name, {})
    make_head = partial(catalog.build, "heads", name, options=own)

    def module():
        with seeded(0, "init"):
            body = encoder(name)
            model = Model(body, NoNeck(body.width), make_head(body.width, dataset.classes, body))
            optimizer = partial(Optimizer, OptimizerSettings(lr=3e-3))
            method = catalog.build("methods", rule, model, options=RULES[rule], task=Classify(), optimizer=optimizer)
            method.begin_stage(StageInfo(0, dataset.domains))
        return method

    return module


def batches(bench, size):
    dataset, examples, _ = bench
    parts = [Part(d, dataset.rows_of(d)) for d in dataset.domains]
    return Batches(examples, parts, size, generator=generator(0, "batches"))


def test_head_trains_predicts_and_resumes(make, bench):
    batch, method = next(batches(bench, 6)), make()
    torch.manual_seed(0)
    risks = [float(method.train().step(batch)["risk"]) for _ in range(30)]
    assert np.mean(risks[-6:]) < np.mean(risks[:6]) - 0.05
    assert_pure_predictions(method, batch.x)
    assert_resumes(method, make(), batch)
