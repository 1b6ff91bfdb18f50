"""Example networks to graft: a text and an image transformer and two custom networks, with inputs."""

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
    """Blocks that return a tuple, with unusual module names."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one, self.two, self.head = Block(width), Block(width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x)[0])[0])


def make(kind: str, folder) -> nn.Module:
    """Build a network, always with the same weights."""
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
    """Return outputs for four inputs."""
    rng = torch.Generator().manual_seed(1)
    if kind == "bert":
        return net(IDS, attention_mask=MASK).last_hidden_state
    if kind == "vit":
        return net(torch.rand(4, 3, 16, 16, generator=rng)).last_hidden_state
    if kind == "own":
        return net(torch.rand(4, 8, generator=rng))
    return net(torch.rand(4, 6, generator=rng))
