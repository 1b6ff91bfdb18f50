"""A head for masked words: a score for every word, compared with the encoder's own word vectors.

b batch, k places, d width, e width of word vectors, v words
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.masked_words import Transform, read_masked_words
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
            found = read_masked_words(encoder.place, None, name=encoder.settings["name"]) if encoder.place else None
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

    @classmethod
    def load(cls, settings: dict[str, Any]) -> Self:
        return cls(**settings)

    def tie(self, backbone: Backbone) -> None:
        """Take the word vectors of the encoder below for the last layer."""
        assert isinstance(backbone, TextEncoder)
        self.weight = _table(backbone)

    def last(self) -> nn.Linear:
        raise BadInput("the last layer of head 'vocabulary' is the whole vocabulary, too large for this method")

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(self.transform(z), self.weight, self.bias)  # (b, k, v)


def _table(encoder: TextEncoder) -> Tensor:
    return encoder.module.get_input_embeddings().weight
