"""The benchmark of kernels: every network takes steps, and a module that is left out is not used."""

from contextlib import ExitStack

import pytest
import torch

from holdfast.accel import registry as core
from lab.benchmarks import kernels


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MiniLM with a memory", "word LSTM with a bank", "GIN"])
def test_networks_take_steps(name):
    with ExitStack() as stack:
        kernels.steps(kernels.NETWORKS[name], torch.device("cpu"), stack)()


def test_a_module_that_is_left_out_is_not_used(monkeypatch):
    monkeypatch.setattr(core, "_supported", lambda name, device, dtype: name)
    usable = [core.usable(name, torch.device("cpu"), torch.float32) for name in ("norm", "memory")]
    with core.without_kernels("norm"):
        left = [core.usable(name, torch.device("cpu"), torch.float32) for name in ("norm", "memory")]
    assert (usable, left) == (["norm", "memory"], [None, "memory"])
