"""Networks of a user: one of transformers for texts, one for images, two of their own; with inputs for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoModel

from holdfast.nn.backbones.pretrained import quiet
from tests import tiny

IDS = torch.tensor([[0, 5, 7, 2], [0, 6, 2, 1], [0, 9, 8, 2], [0, 11, 2, 1]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]])
LABELS = torch.tensor([0, 1, 0, 1])


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.PReLU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x + self.down(self.act(self.up(x))), "beside"


class Own(nn.Module):
    """Blocks that give a tuple, by names that nobody else has."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one, self.two, self.head = Block(width), Block(width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x)[0])[0])


def make(kind: str, folder) -> nn.Module:
    """A fresh one, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "own":
            return Own().eval()
        if kind == "plain":
            return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    place = folder / kind
    if not place.exists():
        getattr(tiny, f"tiny_{kind}")(place)
    with quiet():
        return AutoModel.from_pretrained(place).eval()


def run(kind: str, net: nn.Module) -> Tensor:
    """Outputs for four inputs."""
    chance = torch.Generator().manual_seed(1)
    if kind == "bert":
        return net(IDS, attention_mask=MASK).last_hidden_state
    if kind == "vit":
        return net(torch.rand(4, 3, 16, 16, generator=chance)).last_hidden_state
    if kind == "own":
        return net(torch.rand(4, 8, generator=chance))
    return net(torch.rand(4, 6, generator=chance))
