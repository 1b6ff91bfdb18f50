"""The masked-word head of a checkpoint: found by what it is made of, and checked against the checkpoint's own answer.

b batch, d width, e width of word vectors, w words
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM
from transformers.activations import ACT2FN

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.pretrained import Stamp, load_config, loading, locate

WHAT = "masked-word head"


class Transform(nn.Module):
    """norm(act(W z + b)): what a masked-word head does before it compares with words."""

    def __init__(self, width: int, inner: int, *, activation: str, eps: float) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(width, inner), nn.LayerNorm(inner, eps=eps)
        self.activation = ACT2FN[activation]

    def forward(self, z: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(z)))  # (b, e)


@dataclass(frozen=True, slots=True)
class MaskedLMHead:
    """A masked-word head with the rows of chosen words, all of its own."""

    transform: Transform
    weight: Tensor  # (w, e)
    bias: Tensor  # (w,)
    activation: str


def load_mlm_head(place: str, rows: tuple[int, ...] | None, *, name: str) -> MaskedLMHead:
    """The head of a folder or a hub name with the rows of these words, or of all; one sentence where it has none."""
    return copy.deepcopy(_read(*locate(place), name, rows))


@lru_cache(maxsize=2)
def _read(place: str, stamp: Stamp, name: str, rows: tuple[int, ...] | None) -> MaskedLMHead:
    config = load_config(place, what=WHAT)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise BadInput(f"'{name}' has no masked-word head: {_mend()}")
    with loading(WHAT, name):
        model, told = AutoModelForMaskedLM.from_pretrained(
            place, config=config, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
        lacking = sorted(map(str, told["missing_keys"]))
        if lacking:
            raise BadInput(f"'{name}' has no masked-word head (no '{lacking[0]}'): {_mend()}")
        return _found(model.float().eval(), name, rows)


def _mend() -> str:
    return "use a checkpoint that has one, or --set head.tied=true to compare with its word vectors alone"


@torch.no_grad()
def _found(model: Any, name: str, rows: tuple[int, ...] | None) -> MaskedLMHead:
    parts = head_modules(model)
    if parts is not None:
        dense, norm, decoder = parts
        states, answer = _trial(model)
        for activation in _activations(model.config):
            transform = _copied(dense, norm, activation)
            if torch.allclose(decoder(transform(states)), answer, rtol=1e-4, atol=1e-5):
                bias = torch.zeros(decoder.out_features) if decoder.bias is None else decoder.bias
                chosen = slice(None) if rows is None else list(rows)
                return MaskedLMHead(transform, decoder.weight[chosen].clone(), bias[chosen].clone(), activation)
    made = type(model).__name__
    raise BadInput(f"the masked-word head of '{name}' ({made}) is of a make that is not known here: {_mend()}")


def head_modules(model: Any) -> tuple[nn.Linear, nn.LayerNorm, nn.Linear] | None:
    """The layer, the norm and the decoder that make a masked-word head; None where it is made otherwise."""
    inside = set(model.base_model.modules())
    decoder = model.get_output_embeddings()
    own = [part for part in model.modules() if part not in inside and part is not decoder]
    dense = [part for part in own if isinstance(part, nn.Linear)]
    norms = [part for part in own if isinstance(part, nn.LayerNorm)]
    if isinstance(decoder, nn.Linear) and len(dense) == len(norms) == 1:
        return dense[0], norms[0], decoder
    return None


def _trial(model: Any) -> tuple[Tensor, Tensor]:
    """States of a few tokens, and what the checkpoint's own head makes of them."""
    seen: list[Tensor] = []
    ids = torch.arange(2, 6)[None]
    hook = model.base_model.register_forward_hook(lambda _, __, out: seen.append(out[0]))
    answer = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    hook.remove()
    return seen[0], answer


def _activations(config: Any) -> list[str]:
    """The names that can be meant: those in the configuration, and the usual one."""
    told = config.to_dict()
    named = [value for key, value in told.items() if key.endswith(("act", "activation")) and value in ACT2FN]
    return list(dict.fromkeys([*named, "gelu"]))


def _copied(dense: nn.Linear, norm: nn.LayerNorm, activation: str) -> Transform:
    made = Transform(dense.in_features, dense.out_features, activation=activation, eps=norm.eps)
    for mine, theirs in ((made.dense, dense), (made.norm, norm)):
        mine.weight.copy_(theirs.weight)
        nn.init.zeros_(mine.bias) if theirs.bias is None else mine.bias.copy_(theirs.bias)
    return made
