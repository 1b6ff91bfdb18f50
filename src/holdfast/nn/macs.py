"""How many multiplications with an addition one prediction takes: products of matrices, convolutions, attention.

s rows, e experts, i inputs, o outputs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from holdfast.core import inputs
from holdfast.core.inputs import Inputs

Shape = Sequence[int]


def macs(model: nn.Module, x: Inputs) -> int:
    """Of one example, as the mean over `x`; experts count as they are chosen. The model is left as it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_more()) as counter:
            model(x)
    finally:
        model.train(training)
    return round(counter.get_total_flops() / 2 / max(1, inputs.size(x)))


def _more() -> dict[Any, Callable[..., int]]:
    """What torch's own counter does not know."""
    known = {"_grouped_mm": _grouped, "_scaled_dot_product_flash_attention_for_cpu": _attention}
    found = {getattr(torch.ops.aten, name, None): count for name, count in known.items()}
    return {operation: count for operation, count in found.items() if operation is not None}


def _grouped(a: Shape, b: Shape, *args: Any, out_shape: Shape | None = None, **named: Any) -> int:
    """(s, i) with (e, i, o): each row meets the matrix of its expert alone."""
    return 2 * a[0] * a[1] * b[-1]


def _attention(query: Shape, key: Shape, value: Shape, *args: Any, out_shape: Shape | None = None, **named: Any) -> int:
    """Scores of all pairs, then the weighted sum."""
    batch, heads, rows, width = query
    return 2 * batch * heads * rows * key[2] * (width + value[3])
