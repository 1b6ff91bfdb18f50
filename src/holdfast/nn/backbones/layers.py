"""A decoder's look at the states of an encoder, and what it makes of them for the next word.

b batch, t steps of the decoder, s states of the encoder, h hidden units, j width of the mixture
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from holdfast.core.errors import BadInput, unknown
from holdfast.nn.backbones.pretrained import module_from_config
from holdfast.nn.growth import expand_inputs

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
        self.joint = expand_inputs(self.joint, torch.cat([old, old + hidden + units]), 2 * (hidden + units))
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


# of hidden states and of attention, as the families of transformers name them; heads and whole layers have others
NAMES = (
    "hidden_dropout_prob", "attention_probs_dropout_prob",  # BERT and its kin
    "dropout", "attention_dropout",  # DistilBERT, XLNet
    "embd_pdrop", "resid_pdrop", "attn_pdrop",  # GPT-2
    "embedding_dropout", "mlp_dropout",  # ModernBERT
    "hidden_dropout", "dropout_rate",  # Funnel, T5
)  # fmt: skip


def with_dropout(module: PreTrainedModel, share: Any) -> PreTrainedModel:
    """The same weights in a network that drops out this share of hidden states and of attention.

    It is made anew, since some families leave a part out where the share is 0. Its configuration says the share too,
    so a folder that keeps it makes the same network again.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise BadInput(f"encoder.dropout, a share inside the network, is at least 0 and below 1, not {share!r}")
    config: Any = module.config
    names = [name for name in NAMES if isinstance(config.to_dict().get(name), int | float)]
    if not names:
        raise BadInput(f"{type(module).__name__} has no dropout that is known here: leave encoder.dropout out")
    for name in names:
        setattr(config, name, float(share))
    with torch.random.fork_rng(devices=[]):  # its first weights are gone at once, and must not move any chance
        made = module_from_config(config)
    made.load_state_dict(module.state_dict())
    return made
