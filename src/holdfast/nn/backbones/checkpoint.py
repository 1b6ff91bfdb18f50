"""A trained text encoder as a folder that transformers loads: configuration, weights, tokenizer.

t tokens, d width
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.masked_words import parts_of
from holdfast.nn.backbones.pretrained import quiet
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.vocabulary import Vocabulary


def write_checkpoint(encoder: TextEncoder, head: Vocabulary, folder: Path) -> bool:
    """Write the encoder; whether its masked-word head could go with it, in the form that its family has."""
    whole = _whole(encoder, head)
    with quiet():
        (encoder.module if whole is None else whole).save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)
    return whole is not None


@torch.no_grad()
def _whole(encoder: TextEncoder, head: Vocabulary) -> Any | None:
    """The family's own masked language model with these weights; None where its head is made otherwise.

    A head that learned on states which read a second network would say something else without it.
    """
    config = encoder.module.config
    if encoder.companion is not None or type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        return None
    with quiet(), torch.random.fork_rng(devices=[]):
        model = AutoModelForMaskedLM.from_config(config, trust_remote_code=False).float().eval()
    _fill(model.base_model, encoder.module.state_dict())
    parts = parts_of(model)
    if parts is None:
        return None
    dense, norm, decoder = parts
    if (dense.in_features, dense.out_features) != (head.settings["width"], head.settings["inner"]):
        return None
    for theirs, mine in ((dense, head.transform.dense), (norm, head.transform.norm)):
        theirs.load_state_dict(mine.state_dict())
    decoder.weight.copy_(head.weight)
    if decoder.bias is not None:
        decoder.bias.copy_(head.bias)
    return model if _agree(model, encoder, head) else None


def _fill(base: Any, weights: dict[str, torch.Tensor]) -> None:
    lacking, left = base.load_state_dict(weights, strict=False)
    if left or any("pooler" not in name for name in lacking):
        other = [*left, *lacking][0]
        raise BadInput(f"the encoder holds parts that its family does not have ({other}): leave them out")


def _agree(model: Any, encoder: TextEncoder, head: Vocabulary) -> bool:
    """Whether both say the same of a few tokens: a family may do more in its head than its layers tell."""
    ids = torch.arange(2, 6, device=head.bias.device)[None]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    module, model = encoder.module, model.to(head.bias.device)
    training = module.training
    mine = head(module.eval()(**given).last_hidden_state)  # the head has no dropout
    module.train(training)
    return torch.allclose(model(**given).logits, mine, rtol=1e-3, atol=1e-4)
