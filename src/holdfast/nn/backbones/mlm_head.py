"""Masked-LM heads of checkpoints: located by their structure and checked against the checkpoint's outputs.

Shapes: b batch, d width, e width of word vectors, w words.
"""

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM
from transformers.activations import ACT2FN

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.pretrained import Stamp, load_config, load_weights, loading, locate

WHAT = "masked-LM head"
FIX = "use a checkpoint that has one, or --set head.tied=true to use its word vectors only"


class Transform(nn.Module):
    """norm(act(W z + b)), the part of a masked-LM head before the word scores; (b, d) to (b, e)."""

    def __init__(self, width: int, inner: int, *, activation: str, eps: float) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(width, inner), nn.LayerNorm(inner, eps=eps)
        self.activation = ACT2FN[activation]

    def forward(self, z: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(z)))


@dataclass(frozen=True, slots=True)
class MaskedLMHead:
    """A copy of a masked-LM head with the output rows of chosen words."""

    transform: Transform
    weight: Tensor  # (w, e)
    bias: Tensor  # (w,)
    activation: str


def load_mlm_head(checkpoint: str, rows: tuple[int, ...] | None, *, name: str) -> MaskedLMHead:
    """Load the head of a folder or hub name with the rows of these words, or of all; raise if it has none."""
    return copy.deepcopy(_load(*locate(checkpoint), name, rows))


@lru_cache(maxsize=2)
def _load(place: str, stamp: Stamp, name: str, rows: tuple[int, ...] | None) -> MaskedLMHead:
    config = load_config(place, what=WHAT)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise BadInput(f"'{name}' has no masked-LM head: {FIX}")
    with loading(WHAT, name):
        model, missing = load_weights(AutoModelForMaskedLM, place, config)
        if missing:
            raise BadInput(f"'{name}' has no masked-LM head (no '{missing[0]}'): {FIX}")
        return _extract(model.eval(), name, rows)


@torch.no_grad()
def _extract(model: Any, name: str, rows: tuple[int, ...] | None) -> MaskedLMHead:
    modules = head_modules(model)
    if modules is not None:
        dense, norm, decoder = modules
        states, logits = _trial(model)
        for activation in _activations(model.config):
            transform = _copied(dense, norm, activation)
            if torch.allclose(decoder(transform(states)), logits, rtol=1e-4, atol=1e-5):
                bias = torch.zeros(decoder.out_features) if decoder.bias is None else decoder.bias
                chosen = slice(None) if rows is None else list(rows)
                return MaskedLMHead(transform, decoder.weight[chosen].clone(), bias[chosen].clone(), activation)
    raise BadInput(f"the masked-LM head of '{name}' ({type(model).__name__}) has an unsupported structure: {FIX}")


def head_modules(model: Any) -> tuple[nn.Linear, nn.LayerNorm, nn.Linear] | None:
    """Return dense layer, norm and decoder of a masked-LM head; None for another structure."""
    inside = set(model.base_model.modules())
    decoder = model.get_output_embeddings()
    outside = [part for part in model.modules() if part not in inside and part is not decoder]
    dense = [part for part in outside if isinstance(part, nn.Linear)]
    norms = [part for part in outside if isinstance(part, nn.LayerNorm)]
    if isinstance(decoder, nn.Linear) and len(dense) == len(norms) == 1:
        return dense[0], norms[0], decoder
    return None


def _trial(model: Any) -> tuple[Tensor, Tensor]:
    """Return the states of a few tokens and the checkpoint's logits for them."""
    states: list[Tensor] = []
    ids = torch.arange(2, 6)[None]
    hook = model.base_model.register_forward_hook(lambda _, __, out: states.append(out[0]))
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    hook.remove()
    return states[0], logits


def _activations(config: Any) -> list[str]:
    """Candidate activations: those in the configuration, then gelu."""
    fields = config.to_dict().items()
    named = [value for key, value in fields if key.endswith(("act", "activation")) and value in ACT2FN]
    return list(dict.fromkeys([*named, "gelu"]))


def _copied(dense: nn.Linear, norm: nn.LayerNorm, activation: str) -> Transform:
    transform = Transform(dense.in_features, dense.out_features, activation=activation, eps=norm.eps)
    for target, source in ((transform.dense, dense), (transform.norm, norm)):
        target.weight.copy_(source.weight)
        nn.init.zeros_(target.bias) if source.bias is None else target.bias.copy_(source.bias)
    return transform
