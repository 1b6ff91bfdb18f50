"""A head for masked words: a score for every word, compared with the encoder's own word vectors.

b batch, k places, d width, e width of word vectors, v words
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.mlm_head import Transform, head_modules, load_mlm_head
from holdfast.nn.backbones.pretrained import quiet
from holdfast.nn.backbones.text import TextEncoder


class Vocabulary(nn.Module):
    """E norm(act(W z + b)) + c, with E the word vectors of the encoder below, one tensor for both."""

    weight: Tensor  # (v, e)

    def __init__(self, *, width: int, inner: int, words: int, activation: str, eps: float) -> None:
        super().__init__()
        self.outputs = words
        self.settings = {"width": width, "inner": inner, "words": words, "activation": activation, "eps": eps}
        self.transform = Transform(width, inner, activation=activation, eps=eps)
        self.bias = nn.Parameter(torch.zeros(words))
        self.register_parameter("weight", None)

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone) -> Self:
        """As the checkpoint has it; fresh, in the form that BERT has, where it has none or one of another make."""
        if not isinstance(encoder, TextEncoder):
            raise BadInput("head 'vocabulary' needs the words of a text encoder: use one such as hf:roberta-base")
        table = _table(encoder)
        if width != int(encoder.module.config.hidden_size):
            raise BadInput(f"head 'vocabulary' reads the states of the encoder, but the neck makes {width} of them")
        try:
            found = (
                load_mlm_head(encoder.checkpoint, None, name=encoder.settings["name"]) if encoder.checkpoint else None
            )
        except BadInput:
            found = None
        if found is None or found.weight.shape != table.shape:
            made = cls(width=width, inner=table.shape[1], words=len(table), activation="gelu", eps=1e-12)
            nn.init.normal_(made.transform.dense.weight, std=0.02)
            nn.init.zeros_(made.transform.dense.bias)
            return made
        eps = found.transform.norm.eps
        made = cls(width=width, inner=table.shape[1], words=len(table), activation=found.activation, eps=eps)
        made.transform.load_state_dict(found.transform.state_dict())
        with torch.no_grad():
            made.bias.copy_(found.bias)
        return made

    def tie(self, backbone: Backbone) -> None:
        """Take the word vectors of the encoder below for the last layer."""
        assert isinstance(backbone, TextEncoder)
        self.weight = _table(backbone)

    def last_layer(self) -> nn.Linear:
        raise BadInput("the last layer of head 'vocabulary' is the whole vocabulary, too large for this method")

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(self.transform(z), self.weight, self.bias)  # (b, k, v)


def _table(encoder: TextEncoder) -> Tensor:
    return encoder.module.get_input_embeddings().weight


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
    parts = head_modules(model)
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
