"""Vocabulary head for masked words: scores of all words, tied to the encoder's word embeddings.

Shapes: b batch, k positions, d width, e width of word vectors, v words.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM

from holdfast.core.errors import BadInput
from holdfast.core.files import write_folder
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.mlm_head import Transform, head_modules, load_mlm_head
from holdfast.nn.backbones.pretrained import quiet
from holdfast.nn.backbones.text import TextEncoder


class Vocabulary(nn.Module):
    """E norm(act(W z + b)) + c, where E are the word embeddings of the encoder, shared with it."""

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
        """Load the head of the checkpoint; without a compatible one, initialise a head as in BERT."""
        if not isinstance(encoder, TextEncoder):
            raise BadInput("head=vocabulary needs a text encoder: use one such as hf:roberta-base")
        table = _embeddings(encoder)
        if width != (expected := int(encoder.module.config.hidden_size)):
            raise BadInput(f"head=vocabulary needs {expected} features, but the neck returns {width}: use neck=none")
        try:
            name, checkpoint = encoder.settings["name"], encoder.checkpoint
            source = load_mlm_head(checkpoint, None, name=name) if checkpoint else None
        except BadInput:
            source = None
        shape = {"width": width, "inner": table.shape[1], "words": len(table)}
        if source is None or source.weight.shape != table.shape:
            head = cls(**shape, activation="gelu", eps=1e-12)
            nn.init.normal_(head.transform.dense.weight, std=0.02)
            nn.init.zeros_(head.transform.dense.bias)
            return head
        head = cls(**shape, activation=source.activation, eps=source.transform.norm.eps)
        head.transform.load_state_dict(source.transform.state_dict())
        with torch.no_grad():
            head.bias.copy_(source.bias)
        return head

    def tie(self, backbone: Backbone) -> None:
        """Share the word embeddings of the encoder."""
        assert isinstance(backbone, TextEncoder)
        self.weight = _embeddings(backbone)

    def last_layer(self) -> nn.Linear:
        raise BadInput("the last layer of head=vocabulary has the complete vocabulary: too large for this method")

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(self.transform(z), self.weight, self.bias)  # (b, k, v)


def _embeddings(encoder: TextEncoder) -> Tensor:
    return encoder.module.get_input_embeddings().weight


def write_checkpoint(encoder: TextEncoder, head: Vocabulary, folder: Path) -> bool:
    """Write the encoder and, if its architecture allows, the masked-word head; return whether the head is included."""
    model = _masked_language_model(encoder, head)

    def write(draft: Path) -> None:
        with quiet():
            (encoder.module if model is None else model).save_pretrained(draft)
            encoder.tokenizer.save_pretrained(draft)

    write_folder(folder, write, names=("config.json",))
    return model is not None


@torch.no_grad()
def _masked_language_model(encoder: TextEncoder, head: Vocabulary) -> Any | None:
    """Return the architecture's masked language model with these weights; None if its head has another form.

    Also None with a companion network: the head was trained on states that depend on it.
    """
    config = encoder.module.config
    if encoder.companion is not None or type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        return None
    with quiet(), torch.random.fork_rng(devices=[]):
        model = AutoModelForMaskedLM.from_config(config, trust_remote_code=False).float().eval()
    _load_base(model.base_model, encoder.module.state_dict())
    modules = head_modules(model)
    if modules is None:
        return None
    dense, norm, decoder = modules
    if (dense.in_features, dense.out_features) != (head.settings["width"], head.settings["inner"]):
        return None
    dense.load_state_dict(head.transform.dense.state_dict())
    norm.load_state_dict(head.transform.norm.state_dict())
    decoder.weight.copy_(head.weight)
    if decoder.bias is not None:
        decoder.bias.copy_(head.bias)
    return model if _same_outputs(model, encoder, head) else None


def _load_base(base: Any, weights: dict[str, Tensor]) -> None:
    missing, unexpected = base.load_state_dict(weights, strict=False)
    if unexpected or any("pooler" not in name for name in missing):
        name = [*unexpected, *missing][0]
        raise BadInput(
            f"the encoder has inserted parts ({name}) that its checkpoint format does not support: remove them"
        )


def _same_outputs(model: Any, encoder: TextEncoder, head: Vocabulary) -> bool:
    """Return whether both predict the same for a few tokens: an architecture's head may do more than its layers."""
    ids = torch.arange(2, 6, device=head.bias.device)[None]
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    module, model = encoder.module, model.to(head.bias.device)
    training = module.training
    outputs = head(module.eval()(**arguments).last_hidden_state)  # the head has no dropout
    module.train(training)
    return torch.allclose(model(**arguments).logits, outputs, rtol=1e-3, atol=1e-4)
