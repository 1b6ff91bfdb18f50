"""Checks that every method passes, whatever its task, head or memory: used by the tests of several contracts."""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from holdfast import catalog
from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples
from holdfast.data.dataset import Dataset
from holdfast.data.splits import Part
from holdfast.methods.base import Method, StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.model import Model
from holdfast.tasks.classify import Classify
from tests.contract.sizes import LIGHT

DOMAINS = ("d0", "d1", "d2")


def build_method(name: str, model: Callable[[], Model], *, task: Any = None, options=None, **settings: Any) -> Method:
    """Return a method before its first stage; `settings` are those of its optimizer."""
    optimizer = partial(Optimizer, OptimizerSettings(**{"lr": 3e-3, **settings}))
    options = {**LIGHT.get(name, {}), **(options or {})}
    with seeded(0, "init", "method"):
        task = task or Classify()
        return catalog.build("methods", name, model(), options=options, task=task, optimizer=optimizer)


def batches_of(examples: Examples, dataset: Dataset, size: int, domains: Iterable[str] = (), **options) -> Batches:
    """Return batches of some or all domains, with `size` examples per domain."""
    parts = [Part(name, dataset.rows_of(name)) for name in domains or dataset.domains]
    return Batches(examples, parts, size, generator=generator(0, "batches"), **options)


def started(method: Method, domains: tuple[str, ...] = DOMAINS, per_step: int = 0) -> Method:
    """Return the method at the start of its first phase."""
    with seeded(0, "stage"):
        method.begin_stage(StageInfo(0, domains, domains_per_step=per_step))
        method.begin_phase(method.phases[0])
    return method.train()


def full_batch(name: str) -> bool:
    """Whether a method of the catalog takes a single step on all examples."""
    return catalog.unwrap("methods", name)[-1][1].load().full_batch


def tensors(method: Method) -> dict[str, torch.Tensor]:
    return {name: value for name, value in method.state_dict().items() if isinstance(value, torch.Tensor)}


def assert_equal_states(first: Method, second: Method) -> None:
    for (name, a), b in zip(tensors(first).items(), tensors(second).values(), strict=True):
        assert torch.equal(a, b), name


def take_steps(method: Method, batches: Iterator[DomainBatch], count: int) -> list[float]:
    """Take steps in every phase; check the metrics and return the risks."""
    risks = []
    for phase in method.phases:
        method.begin_phase(phase)
        for _ in range(count):
            metrics = method.take_step(next(batches))
            assert metrics
            for value in metrics.values():
                assert value.ndim == 0
                assert not value.requires_grad
                assert torch.isfinite(value)
            risks.append(float(metrics["risk"]))
    return risks


def check_method(
    make: Callable[[], Method], batches: Iterator[DomainBatch], *, steps: int, falls: float = 0.0,
    rows: Iterable[int] | None = None, atol: float = 1e-5,
) -> tuple[Method, torch.Tensor]:  # fmt: skip
    """Check that a method learns, resumes from its state and predicts purely; return it with its predictions.

    The mean risk must fall by more than `falls` from the first steps to the last.
    """
    method = make()
    before = copy.deepcopy(tensors(method))
    torch.manual_seed(0)
    risks = take_steps(method, batches, steps)
    window = max(5, steps // 5)
    assert sum(risks[-window:]) < sum(risks[:window]) - window * falls
    assert any(not torch.equal(before[name], value) for name, value in tensors(method).items())

    other, batch = make(), next(batches)
    for phase in other.phases:
        other.begin_phase(phase)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    for each in (method, other):
        torch.manual_seed(1)
        each.train().take_step(batch)
    assert_equal_states(method, other)

    method.end_stage([batch])
    return method, assert_pure_predictions(method, batch.x, rows, atol=atol)


def assert_pure_predictions(
    method: Method, x: inputs.Inputs, rows: Iterable[int] | None = None, *, atol: float = 1e-5
) -> torch.Tensor:
    """Check that predictions do not depend on the batch, and change neither state nor random numbers; return them."""
    method.eval()
    before, rng = copy.deepcopy(tensors(method)), torch.get_rng_state()
    with torch.no_grad():
        together = method.predict(x)
        assert torch.isfinite(together).all()
        assert torch.equal(together, method.predict(x))
        for row in range(inputs.size(x)) if rows is None else rows:
            alone = method.predict(inputs.take(x, [row]))
            torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=atol)
    assert torch.equal(rng, torch.get_rng_state())
    for name, value in tensors(method).items():
        assert torch.equal(value, before[name]), name
    return together
