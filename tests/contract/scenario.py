"""Checks that every method passes, whatever its task, head or memory: used by the scenarios of several contracts."""

import copy
from collections.abc import Iterable

import torch

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.methods.base import Method


def tensors(method: Method) -> dict[str, torch.Tensor]:
    return {name: value for name, value in method.state_dict().items() if isinstance(value, torch.Tensor)}


def assert_equal_states(first: Method, second: Method) -> None:
    for (name, a), b in zip(tensors(first).items(), tensors(second).values(), strict=True):
        assert torch.equal(a, b), name


def assert_resumes(method: Method, other: Method, batch: DomainBatch) -> None:
    """Check that another method with the same state takes the same step."""
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    for each in (method, other):
        torch.manual_seed(1)
        each.train().step(batch)
    assert_equal_states(method, other)


def assert_pure_predictions(
    method: Method, x: inputs.Inputs, rows: Iterable[int] | None = None, *, atol: float = 1e-5
) -> torch.Tensor:
    """Check that predictions do not depend on the batch, and change neither state nor random numbers; return them."""
    method.eval()
    before, rng = copy.deepcopy(tensors(method)), torch.get_rng_state()
    with torch.no_grad():
        together = method.predict(x)
        assert torch.equal(together, method.predict(x))
        for row in range(inputs.size(x)) if rows is None else rows:
            alone = method.predict(inputs.take(x, [row]))
            torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=atol)
    assert torch.equal(rng, torch.get_rng_state())
    for name, value in tensors(method).items():
        assert torch.equal(value, before[name]), name
    return together
