"""What a layer of experts tells whoever listens: its balance, who got how much, and which experts were chosen.

t tokens, k chosen, e experts
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.tape import record
from holdfast.nn.experts.balance import importance


def tell_load(shares: Tensor, chosen: Tensor, real: Tensor | None) -> None:
    """Shares (e,) of all pairs; where some tokens are padding, those of the others are counted anew from (t, k)."""
    if real is not None:
        pairs = chosen[..., None] == torch.arange(len(shares), device=chosen.device)
        shares = (pairs & real[:, None, None]).sum((0, 1)) / (chosen.shape[1] * real.sum())
    record("share/experts/load", shares)


def tell_dropped(share: Tensor) -> None:
    """Of the pairs of a token and an expert, those for which the expert had no room."""
    record("share/experts/dropped", share)


def tell_balance(loss: Tensor, first: Tensor, second: Tensor, shares: Tensor) -> None:
    """The weighted loss, then without a gradient the importance and the load loss and shares (e,) of the importance."""
    record("loss/experts", loss)
    record("experts/importance-loss", first)
    record("experts/load-loss", second)
    record("share/experts/importance", shares)


def tell_importance(scores: Tensor, real: Tensor | None) -> None:
    """Where nothing is balanced; scores are (t, e)."""
    amounts = importance(scores, real)
    record("share/experts/importance", amounts / amounts.sum())


def tell_choices(chosen: Tensor, scores: Tensor, shape: torch.Size, real: Tensor | None) -> None:
    """Of tokens in this shape: the experts (t, k), the best first, and scores without noise (t, e)."""
    record("experts/chosen", chosen.view(*shape, -1))
    record("experts/scores", scores.view(*shape, -1))
    if real is not None:
        record("experts/real", real.view(shape))
