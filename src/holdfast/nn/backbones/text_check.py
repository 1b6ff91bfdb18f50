"""Whether a loaded network is a text encoder: a text goes in, a state per token comes out, and the length fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens


def check_text_encoder(encoder: Any, states: Callable[[Tokens], Tensor], most: int) -> None:
    """A text goes in and features come out; else one sentence that says why not."""
    name, words = encoder.settings["name"], encoder.module.get_input_embeddings().num_embeddings
    if len(encoder.tokenizer) > words:
        counts = f"{len(encoder.tokenizer)} words, but the network only {words}"
        raise BadInput(f"the tokenizer of '{name}' knows {counts}: they do not belong together")
    least = encoder.tokenizer.num_special_tokens_to_add(pair=True) + 2
    trial: Any = f"a {encoder.tokenizer.mask_token or 'b'}"
    if encoder.template is not None:
        least, trial = encoder.template.fixed + encoder.template.texts, ("a", "b")[: encoder.template.texts]
    if not least <= encoder.length <= most:
        raise BadInput(f"length {encoder.length} does not suit '{name}': choose from {least} to {most} tokens")
    try:
        with torch.no_grad():
            found = states(encoder.eval().prepare([trial]).take(torch.tensor([0])))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"'{name}' is not a text encoder: {type(encoder.module).__name__} fails") from error
    if found.dim() != 3 or found.shape[-1] != encoder.width:
        raise BadInput(f"'{name}' is not a text encoder: it gives no state per token")
    encoder.train()


def room_of(module: Any, tokenizer: Any) -> int:
    """The most tokens the network has positions for."""
    most = min(tokenizer.model_max_length, 1 << 20)
    told = getattr(module.config, "max_position_embeddings", None)  # GPT-2's n_positions goes by this name too
    if told is not None and told > 0:  # some say -1 where there is no limit
        most = min(most, int(told))
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            skipped = 0 if part.padding_idx is None else part.padding_idx + 1
            most = min(most, part.num_embeddings - skipped)
    return most
