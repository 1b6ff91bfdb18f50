"""Fixtures of the contract tests: one small data set per kind of example, with a backbone for it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import seeded
from holdfast.data.batches import Batches, Examples, prepare
from holdfast.data.dataset import Dataset
from holdfast.data.synthetic import world
from holdfast.methods.base import Method
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.trees import Trees
from tests.contract.scenario import batches_of, build_method, started
from tests.contract.sizes import small
from tests.tables import table_world
from tests.tiny import tiny_bert, tiny_roberta, tiny_vit

GRAPHS = {"layers": 2, "hidden": 8, "dropout": 0.1}
SAMPLED = (  # tests of many combinations: every third one is run, the others are slow tests
    "test_head_trains_predicts_and_resumes",
    "test_trains_predicts_per_example_and_resumes_from_its_state",
    "test_read_is_pure",
    "test_reads_are_independent_of_the_batch",
    "test_gradient_reaches_every_parameter",
)


@dataclass(frozen=True)
class Body:
    """A kind of examples with an encoder, whose options name the models that it needs."""

    kind: str
    encoder: str
    options: dict = field(default_factory=dict)
    neck: str = "none"
    neck_options: dict = field(default_factory=dict)
    domains: int = 4
    per_step: int = 0  # training domains in a batch; 0 for all

    @property
    def marks(self) -> tuple[pytest.MarkDecorator, ...]:
        return (pytest.mark.graph,) if self.kind == "graph" else ()


BODIES = {
    "mlp": Body("vector", "mlp"),
    "tabular": Body("table", "tabular"),
    "cnn": Body("image", "cnn", {"size": 8}),
    "tiny-bert": Body("text", "hf:BERT", {"length": 12}),
    "tiny-vit-experts": Body("image", "vit:VIT", neck="experts", neck_options={"count": 3, "at": [0, 2], "inner": 8}),
    "gin-virtual": Body("graph", "gin-virtual", GRAPHS),
    "gin-subgraph": Body("graph", "gin-subgraph", GRAPHS),
}
MORE_BODIES = {
    "many-domains": Body("vector", "mlp", domains=12, per_step=4),
    "heterogeneous": Body("vector", "mlp", neck="heterogeneous"),
    "gmap": Body("text", "gmap", {"domain": "BERT", "general": "ROBERTA", "length": 12}),
}
MODELS = {"BERT": tiny_bert, "VIT": tiny_vit, "ROBERTA": tiny_roberta}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but every third combination of the sampled tests as slow."""
    for item in items:
        call = getattr(item, "callspec", None)
        if getattr(item, "originalname", "") in SAMPLED and call and sum(call.indices.values()) % 3:
            item.add_marker(pytest.mark.slow)


@dataclass
class Bench:
    """A prepared data set, and functions that build models and methods for it."""

    body: Body
    dataset: Dataset
    examples: Examples = field(init=False)

    def __post_init__(self) -> None:
        backbone = self.backbone()
        store = prepare(self.dataset.raw, backbone.prepare, size=backbone.size)
        self.examples = Examples(store, torch.from_numpy(self.dataset.y), self.dataset.domains)

    @property
    def domains(self) -> tuple[str, ...]:
        """The training domains; a data set of four holds one of them out."""
        return self.dataset.domains[:3] if self.body.domains == 4 else self.dataset.domains

    def model(self, neck: str = "", *, head: Any = Linear, **options) -> Model:
        neck = neck or self.body.neck
        with seeded(0, "init"):
            backbone = self.backbone()
            count = len(self.dataset.classes)
            given = {**small(neck), **(self.body.neck_options if neck == self.body.neck else {}), **options}
            part = catalog.build_neck(neck, backbone.width, count, options=given)
            return Model(backbone, part, head(part.width, count))

    def backbone(self):
        rows = np.arange(len(self.dataset))
        name, options = self.body.encoder, self.body.options
        return catalog.build("encoders", name, partial(self.dataset.raw.take, rows), options=options)

    def method(self, name: str, **settings) -> Method:
        """Return a started method with the neck that it needs; `settings` are those of its optimizer."""
        entry = catalog.unwrap("methods", name)[-1][1]
        model = partial(self.model, (*entry.necks, "")[0], head=Trees if entry.head else Linear)
        return started(build_method(name, model, **settings), self.domains, self.body.per_step)

    def batches(self, size: int = 4) -> Batches:
        return batches_of(self.examples, self.dataset, size, self.domains, domains_per_step=self.body.per_step)

    def batch(self, size: int = 4) -> DomainBatch:
        return next(self.batches(size))


def make_bench(body: Body, *, size: int = 60) -> Bench:
    make_world: Callable[..., Dataset] = table_world if body.kind == "table" else partial(world, body.kind, "none")
    return Bench(body, make_world(domains=body.domains, size=size, classes=3, seed=0))


class Benches(dict[str, Bench]):
    """The benches by the names of their bodies, built when they are first used."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> Bench:
        body = {**BODIES, **MORE_BODIES}[name]
        if body.kind == "graph" and find_spec("torch_geometric") is None:
            pytest.skip("the package torch-geometric is not installed")
        prefix, _, model = body.encoder.partition(":")
        encoder = f"{prefix}:{self.written(model)}" if model else prefix
        options = {key: self.written(value) if isinstance(value, str) else value for key, value in body.options.items()}
        self[name] = make_bench(replace(body, encoder=encoder, options=options))
        return self[name]

    def written(self, model: str) -> str:
        """Return the folder of a tiny transformer."""
        return str(MODELS[model](self.folder / model.lower()))


@pytest.fixture(scope="session")
def benches(tmp_path_factory) -> Benches:
    return Benches(tmp_path_factory.mktemp("models"))


@pytest.fixture(params=[pytest.param(name, marks=body.marks) for name, body in BODIES.items()])
def bench(request, benches) -> Bench:
    return benches[request.param]
