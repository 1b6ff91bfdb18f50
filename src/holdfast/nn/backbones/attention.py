"""A decoder's look at the states of an encoder, and what it makes of them for the next word.

b batch, t steps of the decoder, s states of the encoder, h hidden units, j width of the mixture
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.core.errors import unknown
from holdfast.nn.widening import spread

KINDS = ("dot", "general")


class Attention(nn.Module):
    """tanh(W [h; sum_s a_s e_s]), a the softmax over s of <h, e_s>, if general of <W' h, e_s> (Luong et al., 2015)."""

    def __init__(self, hidden: int, joint: int, *, kind: str = "dot") -> None:
        super().__init__()
        if kind not in KINDS:
            raise unknown("attention", kind, KINDS)
        self.by_state = nn.Linear(hidden, hidden, bias=False) if kind == "general" else None
        self.joint = nn.Linear(2 * hidden, joint)

    def look(self, states: Tensor, encoded: Tensor, lengths: Tensor) -> Tensor:
        """(b, t, 2h) states (b, t, h) beside what they find among encoded (b, s, h), of which rows have `lengths`."""
        asking = states if self.by_state is None else self.by_state(states)
        gone = torch.arange(encoded.shape[1], device=lengths.device) >= lengths[:, None]  # (b, s)
        share = (asking @ encoded.mT).float().masked_fill(gone[:, None], -torch.inf).softmax(-1)
        return torch.cat([states, share.to(encoded.dtype) @ encoded], -1)

    def mix(self, looked: Tensor) -> Tensor:
        """(.., j) for the next word."""
        return self.joint(looked).tanh()

    def widen(self, units: int) -> None:
        """For states of so many units more, which come after the old ones."""
        hidden = self.joint.in_features // 2
        old = torch.arange(hidden)
        self.joint = spread(self.joint, torch.cat([old, old + hidden + units]), 2 * (hidden + units))
        if self.by_state is not None:
            made = nn.Linear(hidden + units, hidden + units, bias=False).to(self.by_state.weight)
            with torch.no_grad():
                made.weight[:hidden, :hidden] = self.by_state.weight
            self.by_state = made.train(self.training).requires_grad_(self.by_state.weight.requires_grad)

    def cost(self, units: int) -> int:
        """How many parameters `widen` would add."""
        hidden = self.joint.in_features // 2
        squares = 0 if self.by_state is None else (hidden + units) ** 2 - hidden**2
        return 2 * units * self.joint.out_features + squares
