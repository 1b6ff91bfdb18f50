"""Another share of dropout inside a network that transformers has loaded, wherever its family keeps it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.pretrained import bare_module

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
        made = bare_module(config)
    made.load_state_dict(module.state_dict())
    return made
