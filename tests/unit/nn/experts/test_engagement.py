"""Experts with default settings learn a world of cases, depend on their routing, and beat the null control."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.tape import auxiliary_loss, tape
from holdfast.nn.experts.layer import ExpertSettings, SparseMoE, shuffled_routing

WIDTH, CASES, CLASSES = 16, 4, 4


def cases() -> list[tuple[Tensor, Tensor]]:
    """Return training and validation examples: every case has a centre and its own map from offsets to classes."""
    rng = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(CASES, WIDTH, generator=rng) / WIDTH**0.5
    maps = torch.randn(CASES, CLASSES, WIDTH, generator=rng)
    parts = []
    for size in (2000, 1000):
        case, offset = torch.randint(CASES, (size,), generator=rng), torch.randn(size, WIDTH, generator=rng)
        parts.append((centres[case] + offset, torch.einsum("nij,nj->ni", maps[case], offset).argmax(-1)))
    return parts


def trained(**settings) -> dict[str, float]:
    """Train copies of a network; return accuracy, share of predictions that depend on routing, and statistics."""
    (x, y), (a, b) = cases()
    torch.manual_seed(0)
    up, down, head = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), nn.Linear(WIDTH, CLASSES)
    layer = SparseMoE.from_feed_forward(up, down, nn.GELU(), ExpertSettings(count=CASES, **settings))
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(100):
        rows = torch.randint(len(x), (128,))
        with tape() as side:
            loss = F.cross_entropy(head(x[rows] + layer(x[rows])), y[rows])
        optimizer.zero_grad()
        (loss + auxiliary_loss(side)).backward()
        optimizer.step()
    layer.eval()
    with torch.no_grad(), tape() as side:
        predicted = head(a + layer(a)).argmax(-1)
    with torch.no_grad(), shuffled_routing(0):
        changed = predicted != head(a + layer(a)).argmax(-1)
    stats = {name: float(side[f"stat/experts/{name}"][0]) for name in ("difference", "effective", "spread")}
    return {"accuracy": float((predicted == b).float().mean()), "changed": float(changed.float().mean()), **stats}


@pytest.fixture(scope="module")
def with_experts() -> dict[str, float]:
    return trained()


def test_predictions_depend_on_the_routing(with_experts):
    assert with_experts["changed"] > 0.2
    assert with_experts["difference"] > 0.1
    assert with_experts["effective"] > 0.7 * CASES
    assert with_experts["spread"] > 2 * ExpertSettings().noise / CASES


@pytest.mark.parametrize("control", [{"router": "random-matched"}, {"router": "hash", "noise": 0.0, "balance": 0.0}])
def test_a_learned_router_beats_the_controls(with_experts, control):
    assert with_experts["accuracy"] > trained(**control)["accuracy"] + 0.05
