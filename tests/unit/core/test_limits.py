import collections
import threading

import pytest
import torch
from torch import nn

from holdfast.core import limits
from holdfast.core.errors import BadInput
from holdfast.core.limits import ConstructionLimit, check_sizes


def test_tensors_over_the_limit_raise_before_they_are_allocated():
    with ConstructionLimit(1000, where="model"):
        assert nn.Linear(30, 30).weight.shape == (30, 30)
        with pytest.raises(BadInput, match="1,000,000,000,000"):
            nn.Linear(10**6, 10**6)
    with ConstructionLimit(1000, where="model"), pytest.raises(BadInput, match="model"):
        nn.Sequential(*(nn.Linear(20, 20) for _ in range(1000)))


@pytest.mark.parametrize(
    "operation",
    [
        lambda row: torch.arange(0, 8_000_000_000, 2),
        lambda row: torch.linspace(0, 1, 10**11),
        lambda row: torch.eye(10**6),
        lambda row: row.repeat(10**9),
        lambda row: row.expand(10**9, 4).clone(),
        lambda row: row.expand(10**9, 4) + 1,
        lambda row: row.new_zeros(10**11),
        lambda row: torch.tril(row.expand(10**11, 4)),
        lambda row: torch.zeros(0).resize_(10**11),
        lambda row: torch.outer(row.repeat(100), row.repeat(100)),
        lambda row: torch.cat([row] * 300),
    ],
)
def test_every_operation_that_allocates_is_bounded(operation):
    with ConstructionLimit(1000, where="model"), pytest.raises(BadInput, match="model ask for a tensor"):
        operation(torch.ones(4))


def test_views_and_updates_are_not_counted():
    with ConstructionLimit(10, where="model"):
        row = torch.ones(4)
        for _ in range(1000):
            row.mul_(1.0)
            row.expand(10**9, 4)
        assert row.sum() == 4


def test_modules_are_counted_in_the_thread_that_builds(monkeypatch):
    monkeypatch.setattr(limits, "MODULES", 20)
    with ConstructionLimit(1000, where="model"):
        nn.Sequential(*(nn.Identity() for _ in range(20)))
        with pytest.raises(BadInput, match="more than 20 modules"):
            nn.Sequential(nn.Identity())
        other = threading.Thread(target=lambda: built.append(nn.Sequential(nn.Identity())))
        built = []
        other.start()
        other.join()
        assert len(built) == 1
    nn.Sequential(*(nn.Identity() for _ in range(30)))


@pytest.mark.parametrize("step", [lambda: nn.Sequential(nn.Identity()), lambda: torch.zeros(1)])
def test_a_construction_has_a_time_limit(monkeypatch, step):
    monkeypatch.setattr(limits, "SECONDS", 0.02)
    with ConstructionLimit(1000, where="model"), pytest.raises(BadInput, match="seconds to build"):
        collections.deque(iter(step, None), maxlen=0)  # without an end


def test_integers_above_the_limit_are_refused():
    check_sizes({"layers": [{"width": 1000}], "rope_theta": 10**9, "name": "x", "rate": 1e9}, 1000, where="config.json")
    for settings in ({"layers": 1001}, {"a": {"b": [3, -2000]}}, [{"count": 10**30}]):
        with pytest.raises(BadInput, match=r"config\.json has"):
            check_sizes(settings, 1000, where="config.json")
