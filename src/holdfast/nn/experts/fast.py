"""Optimised path of the expert layer behind `fast_forward`: fused kernels and CUDA graphs.

- The fused kernels (`experts/fused.py`) run where `supported`.
- A layer that processes the same number of tokens again and again is captured as CUDA graphs and replayed. The fused
  layer is still two dozen kernels, which a host takes longer to launch than a GPU to run. The graphs and the tensors
  between forward and backward pass live as long as the layer's weights.

Every private torch API of the expert layer is used here or in `nn/cuda_graphs.py` and `core/kernels.py`. Where
one is missing nothing is captured; with ENABLED = False, under torch.compile and where `fast_forward` returns None,
the layer takes its reference path.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakIdKeyDictionary

from holdfast.core.kernels import usable
from holdfast.nn.cuda_graphs import (
    GRAPH_LOCK,
    WARMUP_PREDICTIONS,
    CapturedPasses,
    RepeatedPass,
    can_capture,
    capture_key,
    copy_out,
)
from holdfast.nn.experts.dispatch import grouped_mm_is_asynchronous, supports_grouped_mm
from holdfast.nn.experts.fused import (
    Config,
    Drops,
    Result,
    Stats,
    Weights,
    backward,
    cast,
    forward,
    fused_forward,
)
from holdfast.nn.experts.router import MAX_ARGMAX

ENABLED = True  # False forces the reference path
MAX_EXPERTS = 32  # product tiles of the kernels hold all experts
# pairs of a token and an expert; with more of them the GPU is the bottleneck, and graphs would hold much memory
MAX_CAPTURED_PAIRS = 65_536


def fast_forward(
    u: Tensor, dtype: torch.dtype, config: Config, weights: Weights, mask: Tensor | None, *, training: bool,
    drops: Drops | None = None,
) -> Result | None:  # fmt: skip
    """Return states (t, d), the weighted balance loss and statistics for tokens u (t, d); None if not supported.

    The layer has a cosine router and exact GELU. Products are in `dtype`; the mask (t,) selects the tokens that count
    in losses. With `drops`, a capacity or dropout, the kernels run without graphs of their own.
    """
    if not supported(u, dtype, config, weights):
        return None
    if drops is not None:
        return fused_forward(u, dtype, config, weights, mask, drops)
    repeats = mask is None and training == torch.is_grad_enabled()
    result = replay_forward(u, dtype, config, weights) if repeats else None
    return fused_forward(u, dtype, config, weights, mask) if result is None else result


def supported(u: Tensor, dtype: torch.dtype, config: Config, weights: Weights) -> bool:
    """Whether the kernels apply to tokens (t, d) with products in `dtype`; they take both biases or none."""
    if not ENABLED or torch.compiler.is_compiling() or (weights.up_bias is None) != (weights.down_bias is None):
        return False
    if config.top > MAX_ARGMAX or weights.up.shape[0] > MAX_EXPERTS or not _has_kernels(u.device, u.dtype):
        return False
    return supports_grouped_mm(u, weights.up, dtype) and not weights.down.data_ptr() % 16


def _has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and usable("experts", device, dtype) is not None


class LayerGraphs:
    """Captured passes of one layer, in training and in prediction."""

    def __init__(self) -> None:
        self.training, self.prediction = RepeatedPass(), RepeatedPass(WARMUP_PREDICTIONS)


_layers = WeakIdKeyDictionary()  # LayerGraphs by the layer's up projection; a copied layer starts without graphs


def graphs_of(up: Tensor) -> LayerGraphs:
    """Return the graphs of the layer with this up projection."""
    if up not in _layers:
        _layers[up] = LayerGraphs()
    return _layers[up]


def release_graphs(up: Tensor) -> None:
    """Free the graphs of the layer with this up projection, and the GPU memory they hold."""
    with GRAPH_LOCK:
        _layers.pop(up, None)


def replay_forward(u: Tensor, dtype: torch.dtype, config: Config, weights: Weights) -> Result | None:
    """Return the result of `fused_forward` without a mask by a replay; None if this pass is not captured."""
    save = torch.is_grad_enabled()
    with GRAPH_LOCK:
        passes = _find(u, dtype, config, weights, save=save)
        if passes is None:
            return None
        if not save:
            return _replay(passes, u)
        collected: list[Stats] = []
        out, loss = ReplayedExperts.apply(u, passes, config, collected, *weights)  # pyright: ignore[reportGeneralTypeIssues]
        return out, loss, collected[0]


def _find(u: Tensor, dtype: torch.dtype, config: Config, weights: Weights, *, save: bool) -> CapturedPasses | None:
    """Return the passes captured for these tokens; training frees the graphs of predictions to use their memory."""
    if len(u) * config.top > MAX_CAPTURED_PAIRS or not can_capture(u) or not grouped_mm_is_asynchronous(u.device):
        return None
    if _has_saved_tensor_hooks():
        return None
    graphs = graphs_of(weights.up)
    if save and graphs.prediction.passes is not None:
        graphs.prediction = RepeatedPass(WARMUP_PREDICTIONS)
    inference = torch.is_inference_mode_enabled()
    key = save, inference, u.shape, u.dtype, dtype, config, *capture_key(u), *_addresses(weights)
    repeated = graphs.training if save else graphs.prediction
    return repeated.find(key, partial(_capture, u, dtype, config, weights, save=save))


def _has_saved_tensor_hooks() -> bool:
    """Whether hooks replace saved tensors, as checkpointing does: it must take the same path in both passes."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # pyright: ignore[reportAttributeAccessIssue]
    return top is None or top(False) is not None


def _addresses(weights: Iterable[Tensor | None]) -> tuple[Any, ...]:
    """Return address and layout of every weight."""
    return tuple(None if w is None else (w.data_ptr(), w.dtype, w.shape, w.stride()) for w in weights)


def _capture(u: Tensor, dtype: torch.dtype, config: Config, weights: Weights, *, save: bool) -> CapturedPasses:
    """Capture a forward pass that reads the weights in place; noise is drawn before every replay."""
    addresses = _addresses(weights)
    weights = Weights(*(None if w is None else w.detach() for w in weights))  # pyright: ignore[reportArgumentType]
    noise = torch.zeros(len(u), len(weights.directions), device=u.device) if config.noise else None

    def function(u: Tensor) -> tuple[Any, ...]:
        rows, narrow = cast(u, dtype, weights)
        *result, saved = forward(u, config, None, noise, rows, narrow)
        return (*result, saved, rows, narrow, noise) if save else (*result, noise)

    return CapturedPasses(function, (u,), addresses)


def _replay(passes: CapturedPasses, u: Tensor) -> Result:
    """Replay a forward pass and copy its result out of the graph's memory."""
    noise = passes.captured.outputs[-1]
    if noise is not None:
        noise.normal_()
    out, loss, stats, *_ = passes.forward((u,))
    out, loss, scores, chosen, load, *losses = copy_out((out, loss, *stats[:3], *(stats.losses or ())))
    return out, loss, Stats(scores, chosen, load, tuple(losses) or None)


def _replay_backward(
    passes: CapturedPasses, config: Config, needs_grad: tuple[bool, ...], grads: Sequence[Tensor | None],
    moved: Weights | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return gradients, possibly in memory that the next replay overwrites; `moved` are weights at new addresses."""
    saved, rows, narrow, _ = passes.captured.outputs[3:]
    present = tuple(grad is not None for grad in grads)
    if moved is not None:
        narrow = moved._replace(up=narrow.up, down=narrow.down)

    def function(*grads: Tensor) -> tuple[Any, ...]:
        rest = iter(grads)
        all_grads = (next(rest) if has_grad else None for has_grad in present)
        return backward(config, None, rows, narrow, saved, needs_grad, *all_grads)

    inputs = [grad.contiguous() for grad in grads if grad is not None]
    if moved is None and can_capture(rows):
        return passes.backward((needs_grad, present), function, inputs)
    return function(*inputs)


class ReplayedExperts(torch.autograd.Function):
    """A replayed layer; while its backward pass may run, no other pass overwrites the tensors it needs."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, passes: CapturedPasses, config: Config, collected: list[Stats], *weights: Any
    ) -> tuple[Tensor, Tensor | None]:
        out, loss, stats = _replay(passes, u)
        collected.append(stats)
        ctx.save_for_backward(passes.token(), u, *weights)
        ctx.passes, ctx.config = passes, config
        ctx.set_materialize_grads(False)
        return out, loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (_, u, *weights), config, needs = ctx.saved_tensors, ctx.config, ctx.needs_input_grad
        needs_grad = needs[0], *needs[4:]
        if all(grad is None for grad in grads) or (grads[0] is None and not needs_grad[0] and not any(needs_grad[5:])):
            return (None,) * len(needs)
        with GRAPH_LOCK:
            moved = None if _addresses(weights) == ctx.passes.addresses else Weights(*weights)
            gradients = _replay_backward(ctx.passes, config, needs_grad, grads, moved)
            by_u, *by_weights = copy_out(gradients, like=(u, *weights))
        return by_u, None, None, None, *by_weights
