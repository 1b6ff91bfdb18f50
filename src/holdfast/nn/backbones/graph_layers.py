"""Message passing layers and poolings of graph encoders, with the parameters of their equivalents in torch-geometric.

Parameters are drawn twice, at construction and by `_reset`, as torch-geometric does: a seed gives the same network.

Shapes: b graphs, v nodes of all graphs, e edges, d width.
"""

import torch
from torch import Tensor, nn


def node_sums(messages: Tensor, index: Tensor, count: int) -> Tensor:
    """(count, d) sums of the rows of messages (e, d) with the same index (e,): of an edge's end, or a node's graph."""
    return messages.new_zeros(count, *messages.shape[1:]).index_add(0, index, messages)


def mean_pool(h: Tensor, owner: Tensor, count: int) -> Tensor:
    """(v, d) to (b, d) the mean of the nodes of each graph."""
    sizes = node_sums(h.new_ones(len(h)), owner, count).clamp(min=1)
    return node_sums(h, owner, count) / sizes[:, None]


def max_pool(h: Tensor, owner: Tensor, count: int) -> Tensor:
    """(v, d) to (b, d) the largest value per column of the nodes of each graph."""
    index = owner[:, None].expand_as(h)
    return h.new_zeros(count, h.shape[1]).scatter_reduce(0, index, h, "amax", include_self=False)


POOLS = {"mean": mean_pool, "sum": node_sums, "max": max_pool}


class GinLayer(nn.Module):
    """nn((1 + eps) h_v + sum_u m_uv) with m_uv = h_u, or relu(h_u + lin e_uv) if edges have features.

    Xu et al. (2019), with edge features as in Hu et al. (2020). `network` maps (v, d) to (v, d).
    """

    def __init__(self, network: nn.Module, width: int, *, edges: int = 0) -> None:
        super().__init__()
        self.nn = network
        self.eps = nn.Parameter(torch.zeros(1))
        self.lin = nn.Linear(edges, width) if edges else None
        _reset(self.nn)
        if self.lin is not None:
            self.lin.reset_parameters()

    def forward(self, h: Tensor, edges: Tensor, weights: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
        """(v, d) to (v, d); a gate (e,) multiplies each message."""
        start, end = edges
        messages = h[start]
        if self.lin is not None:
            messages = (messages + self.lin(weights)).relu()
        messages = messages if gate is None else gate[:, None] * messages
        return self.nn(node_sums(messages, end, len(h)) + (1 + self.eps) * h)


class GcnLayer(nn.Module):
    """sum_u w_uv W h_u / sqrt(d_u d_v) + bias over the neighbours and the node itself (Kipf & Welling, 2017).

    d is the sum of the weights, with weight 1 for the node itself unless it has an edge to itself.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, h: Tensor, edges: Tensor, weights: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
        """(v, d) to (v, d); weights (e,) are 0 or more, and 1 if there are none; a gate (e,) multiplies them."""
        (start, end), v = edges, len(h)
        weights = h.new_ones(len(start)) if weights is None else weights
        weights = weights if gate is None else gate * weights
        looped = start == end
        # the weight of an edge from a node to itself replaces that of the node; other edges write to an extra entry
        own = weights.new_ones(v + 1).scatter(0, torch.where(looped, start, v), weights)[:v]
        weights = torch.where(looped, 0.0, weights)
        scale = (node_sums(weights, end, v) + own).pow(-0.5)  # (v,)
        scale = scale.masked_fill(scale == torch.inf, 0.0)
        h = self.lin(h)
        messages = (scale[start] * weights * scale[end])[:, None] * h[start]
        return node_sums(messages, end, v) + (scale * own * scale)[:, None] * h + self.bias


class LocalExtremum(nn.Module):
    """sum_u (A h_u - B h_v) + C h_v: how much a node differs from its neighbours (Ranjan et al., 2020)."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(width, out), nn.Linear(width, out, bias=False)
        self.lin3 = nn.Linear(width, out)
        for layer in (self.lin1, self.lin2, self.lin3):
            layer.reset_parameters()

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        """(v, d) to (v, out)."""
        start, end = edges
        differences = self.lin1(h)[start] - self.lin2(h)[end]
        return node_sums(differences, end, len(h)) + self.lin3(h)


def _reset(network: nn.Module) -> None:
    """Draw the parameters of all linear layers again."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
