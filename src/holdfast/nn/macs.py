"""How many multiplications with an addition one prediction takes: products of matrices, convolutions, attention.

s rows, e experts, i inputs, o outputs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from holdfast.core import inputs
from holdfast.core.inputs import Inputs

Shape = Sequence[int]


def count_macs(model: nn.Module, x: Inputs) -> int:
    """Of one example, as the mean over `x`; experts count as they are chosen. The model is left as it was."""
    modes = {part: part.training for part in model.modules()}  # frozen parts of a network in training are not
    devices = {p.device for p in model.parameters() if p.is_cuda}
    counter = FlopCounterMode(display=False, custom_mapping=_more())
    model.eval()
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), counter:
            model(x)
    finally:
        for part, mode in modes.items():
            part.training = mode
    return round(counter.get_total_flops() / 2 / max(1, inputs.size(x)))


def try_count_macs(model: nn.Module, x: Inputs) -> int | None:
    """The same, or None where nothing was counted: a run that is done is not lost for a number about it."""
    try:
        return count_macs(model, x) or None
    except Exception:
        return None


def _more() -> dict[Any, Callable[..., int]]:
    """What torch's own counter does not know."""
    known = {
        "_grouped_mm": _grouped,
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_cudnn_rnn": _recurrent,
        "mkldnn_rnn_layer": _recurrent_layer,
    }
    found = {getattr(torch.ops.aten, name, None): count for name, count in known.items()}
    return {operation: count for operation, count in found.items() if operation is not None}


def _grouped(a: Shape, b: Shape, *args: Any, out_shape: Shape | None = None, **named: Any) -> int:
    """(s, i) with (e, i, o): each row meets the matrix of its expert alone."""
    return 2 * a[0] * a[1] * b[-1]


def _attention(query: Shape, key: Shape, value: Shape, *args: Any, out_shape: Shape | None = None, **named: Any) -> int:
    """Scores of all pairs, then the weighted sum."""
    batch, heads, rows, width = query
    return 2 * batch * heads * rows * key[2] * (width + value[3])


def _recurrent(x: Shape, weights: Sequence[Shape], *args: Any, out_shape: Any = None, **named: Any) -> int:
    """Every step of (..., i) meets all matrices of all layers; biases have one dimension."""
    return 2 * math.prod(x[:-1]) * sum(math.prod(each) for each in weights if len(each) == 2)


def _recurrent_layer(
    x: Shape, by_input: Shape, by_state: Shape, *args: Any, out_shape: Any = None, **named: Any
) -> int:
    return _recurrent(x, [by_input, by_state])
