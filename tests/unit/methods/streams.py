"""A small stream for the tests of continual learning methods."""

from functools import cache, partial

import numpy as np
import torch
from torch import nn

from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import seeded
from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples
from holdfast.data.splits import rows_by_domain
from holdfast.data.synthetic import world
from holdfast.methods.base import Method, StageInfo
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.small import MLP, Features
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.spec import Spec
from holdfast.tasks.classify import Classify
from holdfast.train.fit import last
from holdfast.train.plans import Stream
from holdfast.train.stages import train_stages

DATA = world("vector", "rotation", domains=4, size=200, classes=2, seed=0)
X = DATA.raw.take(np.arange(len(DATA)))
EXAMPLES = Examples(TensorStore(X), torch.from_numpy(DATA.y), DATA.domains)


def linear(inputs=8, classes=2):
    """Return a logistic regression."""
    torch.manual_seed(0)
    return Model(Features(inputs=inputs), NoNeck(inputs), nn.Linear(inputs, classes))


def perceptron(dropout=0.0):
    with seeded(0, "init"):
        body = MLP(inputs=8, hidden=[32], dropout=dropout)
        return Model(body, NoNeck(32), nn.Linear(32, 2))


def make_optimizer(**settings):
    return partial(Optimizer, OptimizerSettings(**{"lr": 1e-2, **settings}))


def build(cls: type[Method], model: Model | None = None, optimizer: dict | None = None, **settings) -> Method:
    return cls(model or perceptron(), task=Classify(), optimizer=make_optimizer(**(optimizer or {})), **settings)


def begin(method: Method, index: int) -> None:
    method.begin_stage(StageInfo(index, (f"domain-{index}",)))


def batch_of(domain: int, rows: slice | list[int] = slice(0, 16)) -> DomainBatch:
    """Return some rows of one domain."""
    at = torch.from_numpy(DATA.rows_of(DATA.domains[domain]))[rows]
    return DomainBatch(EXAMPLES.inputs(at), EXAMPLES.targets(at), (domain,), (len(at),))


def stream(make, examples=EXAMPLES, steps=200, stages=4):
    """Return the method after the stream, and (stage, domain) test accuracies."""
    (episode,) = Stream(order=DATA.domains).episodes(rows_by_domain(DATA), 0)
    episode = type(episode)(episode.name, episode.stages[:stages])
    spec = Spec(data="world", fingerprint="", steps=steps, every=steps, batch=16)
    with seeded(0, "method"):
        method, done = train_stages(episode, make, examples, Classify(), spec, selection=last)
    return method, np.array([[s["test"][d]["accuracy"] for d in DATA.domains] for s in done])


@cache
def fine_tuned() -> np.ndarray:
    """Return the accuracies of fine-tuning, the baseline."""
    return stream(lambda: build(ERM))[1]


def forgotten(accuracies: np.ndarray) -> float:
    """Return the mean loss of accuracy since a domain was learned, over all domains except the last."""
    return float(np.mean(np.diag(accuracies)[:-1] - accuracies[-1, :-1]))


def tensors(method: Method) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in method.state_dict().items() if isinstance(v, torch.Tensor)}


def assert_first_stage_is_erm(cls: type[Method], **settings) -> None:
    """Null control: in the first stage the method is equal to ERM."""
    mine, _ = stream(lambda: build(cls, perceptron(0.3), **settings), steps=10, stages=1)
    plain, _ = stream(lambda: build(ERM, perceptron(0.3)), steps=10, stages=1)
    for name, value in tensors(plain).items():
        assert torch.equal(value, tensors(mine)[name]), name


def assert_later_domains_are_not_used(cls: type[Method], **settings) -> None:
    """With corrupted data in later domains, the state after earlier stages is bit-identical."""
    later = torch.from_numpy(DATA.domain > 1)
    x, y = X.clone(), EXAMPLES.y.clone()
    x[later], y[later] = 1e6, 1 - y[later]
    corrupted = Examples(TensorStore(x), y, DATA.domains)
    first, _ = stream(lambda: build(cls, **settings), steps=10, stages=2)
    second, _ = stream(lambda: build(cls, **settings), examples=corrupted, steps=10, stages=2)
    for name, value in tensors(first).items():
        assert torch.equal(value, tensors(second)[name]), name
