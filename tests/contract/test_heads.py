"""Contract of every head in the catalog, with methods that use it in different ways."""

from itertools import repeat

import pytest
import torch

from holdfast import catalog
from holdfast.data.batches import Examples, prepare
from holdfast.data.synthetic import world
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from tests.contract.scenario import batches_of, build_method, check_method, started
from tests.tiny import tiny_masked

METHODS = {"erm": {}, "cdann": {"weight": 0.1}, "fishr": {}, "mldg": {}, "mixup": {}, "ewc": {}}
DATA = world("text", "none", domains=3, size=40, classes=3, seed=0)
WORDS = dict(zip(DATA.classes, [["bad", "not"], ["good"], ["film"]], strict=True))
OPTIONS = {"words": {"words": WORDS}, "fusion": {"shared": False}}


def cases():
    """Return every head, every method and a further pair; all pairs run in the nightly tests."""
    for head in (name for name, entry in catalog.HEADS.items() if "classify" in entry.tasks and name != "trees"):
        for name in METHODS:
            quick = name == "erm" or head == "linear" or (name, head) == ("mldg", "fusion")
            yield pytest.param(name, head, id=f"{name}-{head}", marks=() if quick else pytest.mark.slow)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_masked(tmp_path_factory.mktemp("bert")))


@pytest.mark.parametrize(("name", "head"), list(cases()))
def test_head_trains_predicts_and_resumes(name, head, folder):
    options = {"length": 16, "template": "sentiment-0"}
    encoder = f"hf:{folder}"
    if head == "fusion":
        encoder, options = "gmap", {**options, "domain": folder, "strategy": "beside"}

    def model():
        body = catalog.build("encoders", encoder, list, options=options)
        built = catalog.build("heads", head, body.width, DATA.classes, body, options=OPTIONS.get(head, {}))
        return Model(body, NoNeck(body.width), built)

    examples = Examples(prepare(DATA.raw, model().backbone.prepare), torch.from_numpy(DATA.y), DATA.domains)
    batch = next(batches_of(examples, DATA, 6))

    def make():
        return started(build_method(name, model, options=METHODS[name]), DATA.domains)

    check_method(make, repeat(batch), steps=30, falls=0.05)
