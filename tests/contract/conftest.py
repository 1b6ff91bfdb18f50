"""Fixtures of the contract tests: one small data set per kind of example, with a backbone for it."""

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples, prepare
from holdfast.data.dataset import Dataset
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.methods.base import Method
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.trees import Trees
from holdfast.tasks.classify import Classify
from tests.contract.sizes import LIGHT, small
from tests.tables import table_world
from tests.tiny import tiny_bert, tiny_vit

BODIES = {"mlp": "vector", "tabular": "table", "cnn": "image", "tiny-bert": "text", "tiny-vit-experts": "image",
          "gin-virtual": "graph", "gin-subgraph": "graph"}  # fmt: skip
EXPERTS = {"count": 3, "at": [0, 2], "inner": 8}
GRAPHS = {"layers": 2, "hidden": 8, "dropout": 0.1}
OPTIONS = {
    "cnn": {"size": 8}, "tiny-bert": {"length": 12}, "tiny-vit-experts": {"experts": EXPERTS},
    "gin-virtual": GRAPHS, "gin-subgraph": GRAPHS,
}  # fmt: skip
MARKS = {"gin-virtual": pytest.mark.graph, "gin-subgraph": pytest.mark.graph}

SAMPLED = (  # tests of many combinations: every third one is run, the others are slow tests
    "test_head_trains_predicts_and_resumes",
    "test_trains_predicts_per_example_and_resumes_from_its_state",
    "test_every_method_trains_predicts_and_resumes",
    "test_read_is_pure",
    "test_reads_are_independent_of_the_batch",
    "test_gradient_reaches_every_parameter",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but every third combination of the sampled tests as slow."""
    for item in items:
        call = getattr(item, "callspec", None)
        if getattr(item, "originalname", "") in SAMPLED and call and sum(call.indices.values()) % 3:
            item.add_marker(pytest.mark.slow)


@dataclass
class Bench:
    """A prepared data set, and functions that build models and methods for it."""

    dataset: Dataset
    examples: Examples
    encoder: str
    options: dict

    def model(self, neck: str = "none", *, head: Any = Linear, **options) -> Model:
        with seeded(0, "init"):
            backbone = self.backbone()
            count = len(self.dataset.classes)
            part = catalog.build_neck(neck, backbone.width, count, options={**small(neck), **options})
            return Model(backbone, part, head(part.width, len(self.dataset.classes)))

    def backbone(self):
        rows = np.arange(len(self.dataset))
        return catalog.build("encoders", self.encoder, partial(self.dataset.raw.take, rows), options=self.options)

    def method(self, name: str, **settings) -> Method:
        make = partial(Optimizer, OptimizerSettings(lr=3e-3, **settings))
        entry = catalog.unwrap("methods", name)[-1][1]
        needed, head = entry.necks, Trees if entry.head else Linear
        with seeded(0, "init", "method"):
            model = self.model(needed[0] if needed else "none", head=head)
            return catalog.build("methods", name, model, options=LIGHT.get(name, {}), task=Classify(), optimizer=make)

    def batches(self, size: int = 4) -> Batches:
        domains = [Part(d, self.dataset.rows_of(d)) for d in self.dataset.domains[:3]]
        return Batches(self.examples, domains, size, generator=generator(0, "batches"))

    def batch(self, size: int = 4) -> DomainBatch:
        return next(self.batches(size))


@pytest.fixture(scope="session")
def benches(tmp_path_factory):
    named = {
        "tiny-bert": f"hf:{tiny_bert(tmp_path_factory.mktemp('bert'))}",
        "tiny-vit-experts": f"vit:{tiny_vit(tmp_path_factory.mktemp('vit'))}",
    }
    benches = {}
    for body, kind in BODIES.items():
        if kind == "graph" and find_spec("torch_geometric") is None:
            continue  # its tests are skipped
        make_world = table_world if kind == "table" else partial(world, kind, "none")
        dataset = make_world(domains=4, size=60, classes=3, seed=0)
        bench = Bench(dataset, None, named.get(body, body), OPTIONS.get(body, {}))
        backbone = bench.backbone()
        store = prepare(dataset.raw, backbone.prepare, size=backbone.size)
        bench.examples = Examples(store, torch.from_numpy(dataset.y), dataset.domains)
        benches[body] = bench
    return benches


@pytest.fixture(params=[pytest.param(body, marks=MARKS.get(body, ())) for body in BODIES])
def bench(request, benches) -> Bench:
    return benches[request.param]
