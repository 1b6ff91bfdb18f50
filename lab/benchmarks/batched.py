"""Benchmark `batched`: nine small networks for tables trained as one batched computation, relative to one by one.

A comparison trains three seeds for each of three targets. Their steps have equal shapes, so that stacked weights and
`torch.func.vmap` can take them together.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from holdfast.nn.backbones.small import Dropout
from holdfast.nn.backbones.tabular import ResidualMLP, Tabular
from lab.benchmarks.harness import Result, attempt, one_thread, ratio

NETWORKS, STEPS, ROWS, NUMBERS = 9, 20, 64, 6
TARGET = 1 / 3  # a second training loop is worth its code from here on


class Network(nn.Module):
    """The default network for a table of numbers, with one output."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.body = ResidualMLP(NUMBERS, 0, [], Tabular.Settings(dropout=dropout))
        self.head = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x, x[:, :0], torch.zeros(len(x), 0, dtype=torch.long)))[:, 0]


def run(device: torch.device) -> list[Result]:
    """Measure training steps with and without dropout on one thread of the CPU."""
    with one_thread():
        return [
            attempt(f"batched/one by one, dropout {dropout:g}", lambda dropout=dropout: measure(dropout), bar=TARGET)
            for dropout in (0.2, 0.0)
        ]


def measure(dropout: float) -> float:
    """Return the time of batched steps, divided by that of the same steps one network after another."""
    torch.manual_seed(0)
    x, y = torch.randn(NETWORKS, STEPS, ROWS, NUMBERS), torch.randn(NETWORKS, STEPS, ROWS)

    def one_by_one() -> None:
        for own_x, own_y in zip(x, y, strict=True):
            network = Network(dropout)
            optimizer = torch.optim.AdamW(network.parameters(), 1e-3, fused=True)
            for rows, targets in zip(own_x, own_y, strict=True):
                optimizer.zero_grad()
                F.mse_loss(network(rows), targets).backward()
                optimizer.step()

    def together() -> None:
        networks = [_with_plain_dropout(Network(dropout)) for _ in range(NETWORKS)]
        weights, buffers = stack_module_state(networks)
        skeleton = copy.deepcopy(networks[0]).to("meta")
        optimizer = torch.optim.AdamW(list(weights.values()), 1e-3, fused=True)
        step = vmap(lambda w, b, rows: functional_call(skeleton, (w, b), (rows,)), randomness="different")
        for i in range(STEPS):
            optimizer.zero_grad()
            (step(weights, buffers, x[:, i]) - y[:, i]).square().mean(1).sum().backward()
            optimizer.step()

    return ratio(together, one_by_one, torch.device("cpu"), rounds=7)


def _with_plain_dropout(network: nn.Module) -> nn.Module:
    """Replace the dropout that draws its own bits, which `vmap` cannot batch, by that of torch."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(child.p))
    return network
