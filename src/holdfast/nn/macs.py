"""Count multiply-accumulate operations (MACs) per prediction: matrix products, convolutions, attention.

Shapes: s rows, e experts, i inputs, o outputs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from holdfast.core import inputs
from holdfast.core.dynamo import skip_dynamo
from holdfast.core.inputs import Inputs

Shape = Sequence[int]


def count_macs(model: nn.Module, x: Inputs) -> int:
    """Return the mean MACs per example of `x`; only chosen experts count. The model is not changed."""
    modes = {module: module.training for module in model.modules()}  # frozen modules stay in evaluation mode
    devices = {p.device for p in model.parameters() if p.is_cuda}
    counter = FlopCounterMode(display=False, custom_mapping=_custom_counts())
    model.eval()
    mode = getattr(flop_counter, "_FlopCounterMode", FlopCounterMode)  # the mode inside the counter
    skip_dynamo([getattr(mode, "__torch_dispatch__", mode)])
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), counter:
            model(x)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return round(counter.get_total_flops() / 2 / max(1, inputs.size(x)))


def try_count_macs(model: nn.Module, x: Inputs) -> int | None:
    """Return the MACs per example, or None if counting fails: a finished run must not be lost for a statistic."""
    try:
        return count_macs(model, x) or None
    except Exception:
        return None


def _custom_counts() -> dict[Any, Callable[..., int]]:
    """Return the operations that torch's counter does not know."""
    counts = {"_grouped_mm": _grouped, "_cudnn_rnn": _recurrent, "mkldnn_rnn_layer": _recurrent_layer}
    counts["_scaled_dot_product_flash_attention_for_cpu"] = _attention
    known = {name: getattr(torch.ops.aten, name, None) for name in counts}
    return {operation: counts[name] for name, operation in known.items() if operation is not None}


def _grouped(a: Shape, b: Shape, *args: Any, out_shape: Shape | None = None, **kwargs: Any) -> int:
    """(s, i) with (e, i, o): each row is multiplied with the matrix of its expert."""
    return 2 * a[0] * a[1] * b[-1]


def _attention(query: Shape, key: Shape, value: Shape, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Scores of all pairs, then the weighted sum."""
    batch, heads, rows, width = query
    return 2 * batch * heads * rows * key[2] * (width + value[3])


def _recurrent(x: Shape, weights: Sequence[Shape], *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Every step (..., i) is multiplied with all matrices of all layers; biases have one dimension."""
    return 2 * math.prod(x[:-1]) * sum(math.prod(shape) for shape in weights if len(shape) == 2)


def _recurrent_layer(x: Shape, by_input: Shape, by_state: Shape, *args: Any, **kwargs: Any) -> int:
    return _recurrent(x, [by_input, by_state])
