"""Optimised path of the expert layer behind `fast_forward`: fused kernels, CUDA graphs, an operator for torch.compile.

- The fused kernels (`experts/fused.py`) run where `supported`.
- A layer that processes the same number of tokens again and again is captured as CUDA graphs and replayed. The fused
  layer is still two dozen kernels, which a host takes longer to launch than a GPU to run. The graphs and the tensors
  between forward and backward pass live as long as the layer's weights.
- A compiled network calls the layer as one custom operator and fuses what surrounds it. Without the operator the graph
  would break at every expert layer. Shapes are inferred by the same Python code on fake tensors, without a launch.

Every private torch API of the expert layer is used here or in `nn/cuda_graphs.py` and `core/kernels.py`. Where
one is missing nothing is captured; with ENABLED = False, and where `fast_forward` returns None, the layer takes its
reference path.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from holdfast.core.kernels import constant, differentiable_gradients, usable
from holdfast.nn.cuda_graphs import (
    GRAPH_LOCK,
    WARMUP_PREDICTIONS,
    CapturedPasses,
    RepeatedPass,
    can_capture,
    capture_key,
    copy_out,
    no_token,
)
from holdfast.nn.experts.dispatch import grouped_mm_is_asynchronous, supports_grouped_mm
from holdfast.nn.experts.fused import (
    Config,
    Drops,
    Result,
    Saved,
    Stats,
    Weights,
    backward,
    cast,
    cast_back,
    draw_noise,
    forward,
    fused_forward,
    reference_forward,
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
    in losses. With `drops`, a capacity or dropout, the kernels run without graphs of their own, and never compiled.
    """
    if not supported(u, dtype, config, weights):
        return None
    if drops is not None:
        return None if torch.compiler.is_compiling() else fused_forward(u, dtype, config, weights, mask, drops)
    repeats = mask is None and training == torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        return compiled_forward(u, dtype, config, weights, mask, replay=repeats)
    result = replay_forward(u, dtype, config, weights) if repeats else None
    return fused_forward(u, dtype, config, weights, mask) if result is None else result


def supported(u: Tensor, dtype: torch.dtype, config: Config, weights: Weights) -> bool:
    """Whether the kernels apply to tokens (t, d) with products in `dtype`; they take both biases or none."""
    if not ENABLED or (weights.up_bias is None) != (weights.down_bias is None):
        return False
    if config.top > MAX_ARGMAX or weights.up.shape[0] > MAX_EXPERTS or not _has_kernels(u.device, u.dtype):
        return False
    if not supports_grouped_mm(u, weights.up, dtype):
        return False
    if torch.compiler.is_compiling():  # the addresses of weights that need no cast are not known yet
        return dtype not in (weights.up.dtype, weights.down.dtype)
    return not weights.down.data_ptr() % 16


@constant
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
        passes = _find((u,), dtype, config, weights, save=save)
        if passes is None:
            return None
        if not save:
            return _replay(passes, (u,))
        collected: list[Stats] = []
        out, loss = ReplayedExperts.apply(u, passes, config, collected, *weights)  # pyright: ignore[reportGeneralTypeIssues]
        return out, loss, collected[0]


def _find(
    inputs: tuple[Tensor, ...], dtype: torch.dtype, config: Config, weights: Weights, *, save: bool
) -> CapturedPasses | None:
    """Return the passes captured for these inputs: tokens, and optionally the same tokens in `dtype`.

    Training frees the graphs of predictions, whose memory it may need.
    """
    u = inputs[0]
    if len(u) * config.top > MAX_CAPTURED_PAIRS or not can_capture(u) or not grouped_mm_is_asynchronous(u.device):
        return None
    if _has_saved_tensor_hooks():
        return None
    graphs = graphs_of(weights.up)
    if save and graphs.prediction.passes is not None:
        graphs.prediction = RepeatedPass(WARMUP_PREDICTIONS)
    inference = torch.is_inference_mode_enabled()
    key = save, inference, len(inputs), u.shape, u.dtype, dtype, config, *capture_key(u), *_addresses(weights)
    repeated = graphs.training if save else graphs.prediction
    return repeated.find(key, partial(_capture, inputs, dtype, config, weights, save=save))


def _has_saved_tensor_hooks() -> bool:
    """Whether hooks replace saved tensors, as checkpointing does: it must take the same path in both passes."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # pyright: ignore[reportAttributeAccessIssue]
    return top is None or top(False) is not None


def _addresses(weights: Iterable[Tensor | None]) -> tuple[Any, ...]:
    """Return address and layout of every weight."""
    return tuple(None if w is None else (w.data_ptr(), w.dtype, w.shape, w.stride()) for w in weights)


def _capture(
    inputs: tuple[Tensor, ...], dtype: torch.dtype, config: Config, weights: Weights, *, save: bool
) -> CapturedPasses:
    """Capture a forward pass that reads the weights in place; noise is drawn before every replay."""
    u, addresses = inputs[0], _addresses(weights)
    weights = Weights(*(None if w is None else w.detach() for w in weights))  # pyright: ignore[reportArgumentType]
    noise = torch.zeros(len(u), len(weights.directions), device=u.device) if config.noise else None

    def function(*inputs: Tensor) -> tuple[Any, ...]:
        rows, narrow = cast(inputs[-1], dtype, weights)
        *result, saved = forward(inputs[0], config, None, noise, rows, narrow)
        return (*result, saved, rows, narrow, noise) if save else (*result, noise)

    return CapturedPasses(function, inputs, addresses)


def _replay(passes: CapturedPasses, inputs: tuple[Tensor, ...]) -> Result:
    """Replay a forward pass and copy its result out of the graph's memory."""
    noise = passes.captured.outputs[-1]
    if noise is not None:
        noise.normal_()
    out, loss, stats, *_ = passes.forward(inputs)
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
        out, loss, stats = _replay(passes, (u,))
        collected.append(stats)
        ctx.save_for_backward(passes.token(), u, *weights)
        ctx.passes, ctx.config = passes, config
        ctx.set_materialize_grads(False)
        return out, loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (_, u, *weights), config, needs = ctx.saved_tensors, ctx.config, ctx.needs_input_grad
        needs_grad = needs[0], *needs[4:]
        if all(grad is None for grad in grads) or (grads[0] is None and not needs_grad[0] and not any(needs_grad[5:])):
            return (None,) * len(needs)
        if torch.is_grad_enabled():  # the gradients will be differentiated again, maybe after this node is gone
            saved, rows, *_ = ctx.passes.captured.outputs[3:]
            plain = partial(reference_forward, config, None, rows.dtype, Saved(*copy_out(saved)))
            by_u, *by_weights = differentiable_gradients(plain, (u, *weights), needs_grad, grads)
            return by_u, None, None, None, *by_weights
        with GRAPH_LOCK:
            moved = None if _addresses(weights) == ctx.passes.addresses else Weights(*weights)
            gradients = _replay_backward(ctx.passes, config, needs_grad, grads, moved)
            by_u, *by_weights = copy_out(gradients, like=(u, *weights))
        return by_u, None, None, None, *by_weights


WEIGHTS_SCHEMA = (
    "Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, "
    "Tensor project, Tensor project_bias, Tensor directions, Tensor log_scale"
)
CONFIG_SCHEMA = "int top, str gate, float noise, float weight, float sigma, str form, bool detach"
LOSS = 4  # outputs: states, scores, choices, load; with a weight then the loss and three statistics of the balance


def compiled_forward(
    u: Tensor, dtype: torch.dtype, config: Config, weights: Weights, mask: Tensor | None, *, replay: bool
) -> Result:
    """Return the result of `fused_forward` by the operator; `replay` allows it to use CUDA graphs."""
    replay = replay and _may_replay(u.device)
    out, scores, chosen, load, *rest = torch.ops.holdfast.experts(u, mask, dtype, replay, *weights, *config)
    loss, *losses = rest or (None,)
    return out, loss, Stats(scores, chosen, load, tuple(losses) or None)


@constant
def _may_replay(device: torch.device) -> bool:
    """Whether this GPU replays layers and the compiler captures no CUDA graphs itself, which would cover more."""
    if not grouped_mm_is_asynchronous(device):
        return False
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        compiler = InstructionTranslator.current_tx().output.compiler_fn
    except (ImportError, AttributeError):  # another version of torch
        return False
    if getattr(compiler, "compiler_name", None) == "cudagraphs":
        return False
    options = getattr(compiler, "get_compiler_config", dict)()
    return not (options and options.get("triton.cudagraphs"))


class _OperatorNode(torch.autograd.Function):
    """Autograd node of the operator; the compiler fuses the casts of tokens with what precedes and follows."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, mask: Tensor | None, dtype: torch.dtype, replay: bool, *rest: Any
    ) -> tuple[Tensor, ...]:
        weights, ctx.config, ctx.replay, rows = Weights(*rest[:8]), rest[8:], replay, u.to(dtype)
        outputs = torch.ops.holdfast.experts_forward(u, mask, rows, True, replay, *weights, *ctx.config)
        count = LOSS * 2 if Config(*ctx.config).weight else LOSS
        results, saved = outputs[:count], outputs[count:]
        ctx.save_for_backward(u, mask, *weights, rows, *results[1:3], *saved)
        ctx.mark_non_differentiable(*(result for i, result in enumerate(results) if i not in (0, LOSS)))
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        u, mask, *rest = ctx.saved_tensors
        weights, rows, saved = Weights(*rest[:8]), rest[8], rest[9:]
        by_out, by_loss = grads[0], grads[LOSS] if len(grads) > LOSS else None
        needs = ctx.needs_input_grad
        if by_out is None and by_loss is None:
            return (None,) * len(needs)
        arguments = mask, rows, saved, [needs[0], *needs[4:12]], ctx.replay, by_out, by_loss
        gradients = torch.ops.holdfast.experts_backward(*arguments, *weights, *ctx.config)
        by_u, *by_weights = cast_back(u, weights, [grad if grad.numel() else None for grad in gradients])
        return by_u, None, None, None, *by_weights, *(None for _ in ctx.config)


def _experts(u: Tensor, mask: Tensor | None, dtype: torch.dtype, replay: bool, *rest: Any) -> list[Tensor]:
    """Operator `experts`; a compiler sees the two below it, which need no check of requires_grad at run time."""
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in (u, *rest[:8])):
        return list(_OperatorNode.apply(u, mask, dtype, replay, *rest))  # pyright: ignore[reportArgumentType]
    return torch.ops.holdfast.experts_forward(u, mask, u.to(dtype), False, replay, *rest)


def _experts_forward(
    u: Tensor, mask: Tensor | None, rows: Tensor, save: bool, replay: bool, *rest: Any, graphs: bool = True
) -> list[Tensor]:
    """Operator `experts_forward`; without `graphs` it also runs on fake tensors."""
    config, weights = Config(*rest[8:]), Weights(*rest[:8])
    if replay and graphs:
        with GRAPH_LOCK:
            passes = _find((u, rows), rows.dtype, config, weights, save=save)
            if passes is not None:
                result, saved = _replay(passes, (u, rows)), None
                if save:  # saved tensors stay in the graph's memory, which the token protects
                    tensors, _, narrow, _ = passes.captured.outputs[3:]
                    saved = tensors, narrow.up, narrow.down, passes.token()
                return _as_list(config, result, saved)
    _, narrow = cast(rows, rows.dtype, weights)
    *result, tensors = forward(u, config, mask, draw_noise(u, config, weights), rows, narrow)
    token = (no_token(),) if replay else ()
    return _as_list(config, result, (tensors, narrow.up, narrow.down, *token) if save else None)


def _as_list(config: Config, result: Sequence[Any], saved: tuple[Any, ...] | None) -> list[Any]:
    """Return results and saved tensors; outputs of an operator share no memory, so scores appear once."""
    out, loss, stats = result
    outputs = [out, stats.scores, stats.chosen, stats.load]
    if stats.losses is not None:
        outputs += [loss, *stats.losses]
    if saved is None:
        return outputs
    tensors, *rest = saved
    return [*outputs, *(tensors[2:] if config.noise else tensors[2:-1]), *rest]


def _experts_backward(
    mask: Tensor | None, rows: Tensor, saved: Sequence[Tensor], needs_grad: Sequence[bool], replay: bool,
    by_out: Tensor | None, by_loss: Tensor | None, *rest: Any, graphs: bool = True,
) -> list[Tensor]:  # fmt: skip
    """Operator `experts_backward`; None becomes an empty tensor. Without `graphs` it also runs on fake tensors."""
    config, weights = Config(*rest[8:]), Weights(*rest[:8])
    *tensors, up, down = saved[:-1] if replay else saved
    # without noise the noisy scores are the scores, see `_as_list`
    tensors, grads = Saved(*(tensors if config.noise else [*tensors, tensors[0]])), None
    if replay and graphs:
        grads = replay_backward(saved[-1], config, weights, tensors, needs_grad, (by_out, by_loss))
    if grads is None:
        narrow = weights._replace(up=up, down=down)
        grads = backward(config, mask, rows, narrow, tensors, needs_grad, by_out, by_loss)
    return [rows.new_empty(0) if grad is None else grad for grad in grads]


def replay_backward(
    token: Tensor, config: Config, weights: Weights, saved: Saved, needs_grad: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None] | None:  # fmt: skip
    """Replay the backward pass of the token's forward pass; None: compute it from the saved tensors."""
    with GRAPH_LOCK:
        passes, is_last = CapturedPasses.from_token(token)
        if passes is None:
            return None
        if not is_last and saved.x.data_ptr() == passes.captured.outputs[3].x.data_ptr():
            raise RuntimeError("experts: another forward pass has overwritten the saved tensors of this backward pass")
        if not is_last or _addresses(weights) != passes.addresses:  # saved tensors were copied, or weights moved
            return None
        return copy_out(_replay_backward(passes, config, tuple(needs_grad), grads))


_library = torch.library.Library("holdfast", "FRAGMENT")
_library.define(
    f"experts(Tensor u, Tensor? mask, ScalarType dtype, bool replay, {WEIGHTS_SCHEMA}, {CONFIG_SCHEMA}) -> Tensor[]"
)
_library.impl("experts", _experts, "CompositeImplicitAutograd")
# noise is drawn inside, so two calls with equal arguments differ
_library.define(
    "experts_forward(Tensor u, Tensor? mask, Tensor rows, bool save, bool replay, "
    f"{WEIGHTS_SCHEMA}, {CONFIG_SCHEMA}) -> Tensor[]",
    tags=torch.Tag.nondeterministic_seeded,
)
_library.define(
    "experts_backward(Tensor? mask, Tensor rows, Tensor[] saved, bool[] needs_grad, bool replay, Tensor? by_out, "
    f"Tensor? by_loss, {WEIGHTS_SCHEMA}, {CONFIG_SCHEMA}) -> Tensor[]"
)
for _name, _function in (("experts_forward", _experts_forward), ("experts_backward", _experts_backward)):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"holdfast::{_name}", partial(_function, graphs=False), lib=_library)
