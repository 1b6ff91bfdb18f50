"""Message passing layers and poolings equal those of torch-geometric in parameters, values and gradients."""

import pytest
import torch
from torch import nn

from holdfast.nn.backbones.graph import perceptron
from holdfast.nn.backbones.graph_layers import POOLS, GcnLayer, GinLayer, LocalExtremum, node_sums
from tests.graphs import geometric

WIDTH = 6
EDGES = torch.tensor([[0, 1, 2, 2, 4, 4, 3, 1], [1, 0, 1, 2, 0, 4, 2, 1]])  # with edges from nodes to themselves


def features() -> torch.Tensor:
    return torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()


def seeded(build) -> nn.Module:
    torch.manual_seed(3)
    return build()


@pytest.mark.graph
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_layers_equal_torch_geometric(kind, weighted):
    pyg = geometric().nn
    weights = None
    if kind == "gcn":
        own, other = seeded(lambda: GcnLayer(WIDTH)), seeded(lambda: pyg.GCNConv(WIDTH, WIDTH))
        weights = torch.rand(EDGES.shape[1]) if weighted else None
    else:
        edges = 3 if weighted else 0
        own = seeded(lambda: GinLayer(perceptron(WIDTH), WIDTH, edges=edges))
        layer = (lambda: pyg.GINEConv(perceptron(WIDTH), train_eps=True, edge_dim=3)) if weighted else (
            lambda: pyg.GINConv(perceptron(WIDTH), train_eps=True)
        )  # fmt: skip
        other = seeded(layer)
        weights = torch.rand(EDGES.shape[1], 3) if weighted else None
    _assert_same(own, other, (EDGES,) if weights is None else (EDGES, weights))


@pytest.mark.graph
def test_fitness_equals_torch_geometric():
    other = seeded(lambda: geometric().nn.LEConv(WIDTH, 1))
    _assert_same(seeded(lambda: LocalExtremum(WIDTH, 1)), other, (EDGES,))


def _assert_same(own: nn.Module, other: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
    """Assert that parameters, outputs and gradients are equal."""
    assert own.state_dict().keys() == other.state_dict().keys()
    for name, value in own.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], msg=name)
    h = features()
    a, b = own(h, *arguments), other(h, *arguments)
    torch.testing.assert_close(a, b)
    first = torch.autograd.grad(a.sin().sum(), [h, *own.parameters()])
    second = torch.autograd.grad(b.sin().sum(), [h, *other.parameters()])
    for x, y in zip(first, second, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.graph
@pytest.mark.parametrize("name", list(POOLS))
def test_poolings_equal_torch_geometric(name):
    pyg, h, owner = geometric().nn, features(), torch.tensor([0, 0, 2, 2, 2])  # the second graph has no node
    other = {"mean": pyg.global_mean_pool, "sum": pyg.global_add_pool, "max": pyg.global_max_pool}[name]
    torch.testing.assert_close(POOLS[name](h, owner, 3), other(h, owner, 3))


def test_a_gate_multiplies_messages():
    layer, h = seeded(lambda: GinLayer(nn.Identity(), WIDTH)), features()
    gate = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])
    torch.testing.assert_close(layer(h, EDGES, None, gate), h + node_sums(h[:1], torch.tensor([1]), 5))
