"""Several texts per row of a transformer's input, so that short texts are not padded to the longest of their batch.

A mask confines attention to the tokens of one text, and every text has its own positions, so that the states of all
tokens equal those of a padded batch up to rounding. Shapes: b texts, t tokens of the longest, r rows of l tokens, d
width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from holdfast.core.inputs import Tokens

FROM_ZERO = ("bert", "electra")  # model types by the position of the first token
AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")  # one more than the id of padding
ROW_TEXTS = 3  # texts of the largest length per row: longer rows waste less, but cost more attention
MIN_WASTE = 0.1  # share of padding, and number of its tokens, from which packing is worth its own time
MIN_PADDING = 100


class Packed(NamedTuple):
    """Inputs (r, l) of packed texts, mask (r, 1, l, l), and the place (n,) of every real token in the flat rows."""

    ids: Tensor
    positions: Tensor
    types: Tensor | None
    mask: Tensor
    places: Tensor


def packable(module: Any) -> bool:
    """Whether a transformer accepts packed texts."""
    types = (*FROM_ZERO, *AFTER_PADDING)
    return module.config.model_type in types and getattr(module.config, "_attn_implementation", None) == "sdpa"


def is_unchanged(module: nn.Module) -> bool:
    """Whether a transformer has only modules of its library: memories and adapters may need one text per row."""
    return all(
        type(each).__module__.startswith(("torch.", "transformers."))
        and not each._forward_hooks
        and not each._forward_pre_hooks
        for each in module.modules()
    )


def worth_packing(x: Tokens) -> bool:
    """Whether a batch of the CPU contains enough padding."""
    if x.ids.device.type != "cpu":
        return False
    padding = x.mask.numel() - int(x.mask.sum())
    return padding >= max(MIN_PADDING, MIN_WASTE * x.mask.numel())


def pack(x: Tokens, module: Any) -> Packed:
    """Pack texts for a transformer, longest first, each into the first row with room for it."""
    pad = module.config.pad_token_id or 0
    first = pad + 1 if module.config.model_type in AFTER_PADDING else 0
    lengths = x.mask.sum(1).tolist()
    width = ROW_TEXTS * x.ids.shape[1]
    used: list[int] = []  # tokens per row
    starts = [(0, 0)] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((row for row, count in enumerate(used) if count + lengths[i] <= width), len(used))
        if row == len(used):
            used.append(0)
        starts[i] = (row, used[row])
        used[row] += lengths[i]
    rows, width = len(used), max(used)
    flat = torch.tensor([row * width + start for row, start in starts])  # (b,)
    offsets = torch.arange(x.ids.shape[1])
    places = (flat[:, None] + offsets)[x.mask]  # (n,)

    def spread(values: Tensor, fill: int) -> Tensor:
        out = torch.full((rows * width,), fill, dtype=torch.long)
        return out.index_copy_(0, places, values.expand_as(x.ids)[x.mask].long()).view(rows, width)

    owner = spread(torch.arange(1, len(lengths) + 1)[:, None], 0)  # 0 for padding, which sees only padding
    return Packed(
        ids=spread(x.ids, pad),
        positions=spread(first + offsets, first),
        types=None if x.types is None else spread(x.types, 0),
        mask=owner[:, None, :, None] == owner[:, None, None, :],
        places=places,
    )


def unpack(states: Tensor, packed: Packed, mask: Tensor) -> Tensor:
    """(b, t, d) states of the texts from those (r, l, d) of the rows; those of padding are 0."""
    out = states.new_zeros(*mask.shape, states.shape[-1])
    out[mask] = states.flatten(0, 1).index_select(0, packed.places)
    return out
