"""Fused forward and backward pass of an expert layer with a cosine router and GELU: Triton kernels, one autograd node.

On a GPU the layer finishes sooner than Python builds and walks a dozen nodes.
t tokens, k chosen, s = t k pairs of a token and an expert, e experts, d width, h hidden width, q inner width of the
cosine
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.accel.registry import kernels, module
from holdfast.ops.balance import Config
from holdfast.ops.expert_dispatch import expert_one_hot, grouped_mm, sort_pairs, sum_pairs, supports_grouped_mm
from holdfast.ops.routing import MAX_ARGMAX, MAX_SCALE

MAX_EXPERTS = 32  # product tiles of the kernels hold all experts


class Weights(NamedTuple):
    """Parameters of the experts, then of the cosine router."""

    up: Tensor  # (e, h, d)
    up_bias: Tensor | None  # (e, h)
    down: Tensor  # (e, d, h)
    down_bias: Tensor | None  # (e, d)
    project: Tensor  # (q, d)
    project_bias: Tensor  # (q,)
    directions: Tensor  # (e, q)
    log_scale: Tensor  # ()


class Stats(NamedTuple):
    """Statistics of a forward pass, without gradient; the balance losses only with a weight."""

    scores: Tensor  # (t, e)
    chosen: Tensor  # (t, k)
    load: Tensor  # (e,) share of the pairs
    losses: tuple[Tensor, Tensor, Tensor] | None = None  # importance loss, load loss, shares of importance (e,)


class Saved(NamedTuple):
    """Tensors of the forward pass that the backward pass needs."""

    scores: Tensor
    chosen: Tensor
    both: Tensor
    query: Tensor
    notes: Tensor
    gates: Tensor
    order: Tensor
    position: Tensor
    token: Tensor
    expert: Tensor
    ends: Tensor
    x: Tensor  # (s, d) sorted rows
    before: Tensor  # (s, h) before bias and GELU
    y: Tensor  # (s, d)
    noisy: Tensor  # the same tensor as `scores` without noise


Result = tuple[Tensor, Tensor | None, Stats]  # states (t, d), weighted balance loss, statistics


def fused_experts(
    u: Tensor, dtype: torch.dtype, config: Config, weights: Weights, mask: Tensor | None
) -> Result | None:
    """Return states (t, d), the weighted balance loss and statistics for tokens u (t, d); None if not supported.

    Products are in `dtype`; the mask (t,) selects the tokens that count in losses.
    """
    if not supported(u, dtype, config, weights):
        return None
    if torch.is_grad_enabled():
        # an autograd function returns tensors only, so the statistics leave it in a list
        collected: list[Stats] = []
        out, loss = FusedExperts.apply(u, dtype, config, mask, collected, *weights)  # pyright: ignore[reportGeneralTypeIssues]
        return out, loss, collected[0]
    rows, narrow = cast(u, dtype, weights)
    out, loss, stats, _ = forward(u, config, mask, draw_noise(u, config, weights), rows, narrow)
    return out, loss, stats


def supported(u: Tensor, dtype: torch.dtype, config: Config, weights: Weights) -> bool:
    """Whether the kernels apply to tokens (t, d) with products in `dtype`; they do not have every setting."""
    if torch.compiler.is_compiling() or config.gate == "renormalised" or config.form != "logit":
        return False
    if config.top > MAX_ARGMAX or weights.up.shape[0] > MAX_EXPERTS:
        return False
    if weights.up_bias is None or weights.down_bias is None or kernels("experts", u) is None:
        return False
    return supports_grouped_mm(u, weights.up, dtype) and not weights.down.data_ptr() % 16


def draw_noise(u: Tensor, config: Config, weights: Weights) -> Tensor | None:
    """Return standard normal noise for the scores (t, e), None without noise."""
    return torch.randn(u.shape[0], weights.directions.shape[0], device=u.device) if config.noise else None


def cast(u: Tensor, dtype: torch.dtype, weights: Weights) -> tuple[Tensor, Weights]:
    """Cast the tokens and the weights of the experts to the dtype of their products."""
    return u.to(dtype), weights._replace(up=weights.up.to(dtype), down=weights.down.to(dtype))


def modules() -> tuple[Any, Any]:
    """Return the kernel modules, which import Triton."""
    return module("experts"), module("routing")


class FusedExperts(torch.autograd.Function):
    """The fused layer."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dtype: torch.dtype, config: Config, mask: Any, collected: list[Stats], *weights: Any
    ) -> tuple[Tensor, Tensor | None]:
        rows, narrow = cast(u, dtype, Weights(*weights))
        out, loss, stats, saved = forward(u, config, mask, draw_noise(u, config, narrow), rows, narrow)
        collected.append(stats)
        # the narrow copies are saved too, so that the backward pass does not cast again
        ctx.save_for_backward(u, mask, *weights, rows, narrow.up, narrow.down, *saved)
        ctx.config = config
        ctx.set_materialize_grads(False)
        return out, loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        config, (u, mask, *rest) = ctx.config, ctx.saved_tensors
        weights, (rows, up, down), saved = Weights(*rest[:8]), rest[8:11], Saved(*rest[11:])
        needs = ctx.needs_input_grad
        if all(grad is None for grad in grads):
            return (None,) * len(needs)
        narrow = weights._replace(up=up, down=down)
        gradients = backward(config, mask, rows, narrow, saved, *grads, needs_u=needs[0])
        pairs = zip(gradients, (u, *weights), strict=True)
        by_u, *by_weights = (
            None if grad is None or tensor is None else grad.to(tensor.dtype) for grad, tensor in pairs
        )
        return by_u, None, None, None, None, *by_weights


def forward(
    u: Tensor, config: Config, mask: Tensor | None, noise: Tensor | None, rows: Tensor, weights: Weights
) -> tuple[Any, ...]:
    """Return states (t, d), the weighted loss, statistics and saved tensors, for rows and weights after `cast`."""
    experts, routing = modules()
    up, up_bias, down, down_bias, weight, bias, directions, log_scale = _contiguous(weights)
    rows, (t, _), e, q = rows.contiguous(), u.shape, up.shape[0], weight.shape[0]
    # scores: dots (E W) u + E b in fp32, because rounding changes choices; the norm of the query may be narrow
    folded, folded_bias, both = _fold(weight, bias, directions, rows.dtype)
    query = F.linear(rows, both[:q], bias.to(rows.dtype))  # (t, q)
    dots = torch.empty(t, e, device=u.device)
    torch.addmm(folded_bias, u.float(), folded.T, out=dots)  # autocast does not apply to products with `out`
    scores, noisy, chosen, gates, notes = routing.route(
        dots, query, directions, log_scale, noise, mask, max_log_scale=math.log(MAX_SCALE), sigma=config.noise,
        top=config.top, shared=config.gate == "preserving", inverse_sigma=1 / config.sigma, balanced=config.weight > 0,
    )  # fmt: skip
    # pairs sorted by expert, so that each grouped product reads the rows of one expert after another
    pairs = sort_pairs(chosen, e)
    order, position, token, expert, ends = pairs.order, pairs.position, pairs.token, pairs.expert, pairs.ends
    x = rows.index_select(0, token)
    # (s, d) -> (s, h) -> (s, d); the result of GELU is not saved: the backward pass computes it again
    before = grouped_mm(x, up.transpose(-2, -1), ends)
    hidden = experts.gelu(before, up_bias, expert)
    y = grouped_mm(hidden, down.transpose(-2, -1), ends)
    out = experts.combine(y, down_bias, gates, expert, position)
    saved = Saved(scores, chosen, both, query, notes, gates, order, position, token, expert, ends, x, before, y, noisy)
    losses = _balance_losses(notes[t + e :], e) if config.weight else None
    loss = None if losses is None else config.weight * (losses[0] + losses[1])
    return out, loss, Stats(scores, chosen, pairs.load(), losses), saved


def backward(
    config: Config, mask: Tensor | None, rows: Tensor, weights: Weights, saved: Saved,
    by_out: Tensor | None, by_loss: Tensor | None, *, needs_u: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of rows, with `needs_u`, and of all weights in the dtype of the products."""
    experts, routing = modules()
    up, up_bias, down, down_bias, *router = _contiguous(weights)
    ends, max_log_scale, t = saved.ends, math.log(MAX_SCALE), rows.shape[0]
    by_up = by_up_bias = by_down = by_down_bias = by_u = None
    if by_out is None:
        # only the balance loss has a gradient: it passes through the router alone
        by_gates = torch.zeros_like(saved.gates)
    else:
        # the forward pass in reverse: combine, down, GELU, up; the gradient of GELU overwrites that of its result
        by_y, by_gates = experts.combine_backward(
            saved.y, down_bias, saved.gates, saved.expert, saved.order, by_out.contiguous()
        )
        by_before, hidden = experts.gelu_backward(saved.before, up_bias, saved.expert, grouped_mm(by_y, down, ends))
        by_down, by_up = grouped_mm(by_y.T, hidden, ends), grouped_mm(by_before.T, saved.x, ends)
        one_hot = expert_one_hot(saved.expert, len(up), by_y.dtype).T
        by_up_bias, by_down_bias = ((one_hot @ grad)[: len(up)] for grad in (by_before, by_y))
        if needs_u:
            by_u = sum_pairs(grouped_mm(by_before, up, ends), saved.position, t)
    joined, sums = routing.route_backward(
        saved.scores, saved.noisy, saved.chosen, mask, saved.notes, saved.query, weights.log_scale, by_gates, by_loss,
        max_log_scale=max_log_scale, shared=config.gate == "preserving", inverse_sigma=1 / config.sigma,
        weight=config.weight,
    )  # fmt: skip
    # `joined` (t, w) has the gradients of query and dots: two products give those of W, E W and the tokens
    sizes, by_both = saved.notes[t : t + len(up)], (joined.T @ rows).float()
    by_router = _unfold(*router, sizes=sizes, sums=sums.sum(0), by_both=by_both, max_log_scale=max_log_scale)
    if needs_u:
        by_u = joined @ saved.both if by_u is None else by_u.addmm_(joined, saved.both)
    return by_u, by_up, by_up_bias, by_down, by_down_bias, *by_router


def _fold(weight: Tensor, bias: Tensor, directions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return E W (e, d) and E b (e,) in fp32, and in `dtype` the rows of W, E W and padding to a multiple of 8."""
    with torch.autocast(weight.device.type, enabled=False):
        folded, folded_bias = directions.float() @ weight.float(), directions.float() @ bias.float()
    padding = weight.new_zeros(-(len(weight) + len(folded)) % 8, weight.shape[1])
    return folded, folded_bias, torch.cat([weight.to(dtype), folded.to(dtype), padding.to(dtype)])


def _unfold(
    weight: Tensor, bias: Tensor, directions: Tensor, log_scale: Tensor,
    *, sizes: Tensor, sums: Tensor, by_both: Tensor, max_log_scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of weight (q, d), bias (q,), directions E (e, q) and log scale.

    `by_both` (w, d) is the gradient of the rows of W and E W, `sums` (2 e + q) those of `route_backward`, and `sizes`
    (e,) are the norms of the directions.
    """
    (e, q), wide = directions.shape, directions.float()
    along, by_dots, by_query = sums.split([e, e, q])
    by_weight, by_folded, _ = by_both.split([q, e, len(by_both) - q - e])
    # scores are proportional to exp(log_scale), up to its limit, and divided by the norm of a direction
    by_scale = torch.where(log_scale <= max_log_scale, along.sum(), 0.0)
    by_size = torch.where(sizes > 1e-12, along / sizes.square(), 0.0)
    with torch.autocast(weight.device.type, enabled=False):
        by_directions = by_dots[:, None] * bias.float() - by_size[:, None] * wide + by_folded @ weight.float().T
        return by_weight + wide.T @ by_folded, by_query + by_dots @ wide, by_directions, by_scale


def _balance_losses(notes: Tensor, e: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return both balance losses and the shares of importance (e,), and write the slopes of the losses to the notes.

    The notes are the importance and the load of every expert per block of tokens, (blocks, 2, e), then the slopes.
    """
    total = notes[: -2 * e].view(-1, 2, e).sum(0)
    mean = total.mean(1, keepdim=True)
    off, below = total - mean, mean.square() + 1e-10
    variance = off.square().mean(1, keepdim=True)
    notes[-2 * e :] = ((2 * off / e - 2 * variance * mean / (e * below)) / below).flatten()
    first, second = (variance / below).flatten().unbind()
    return first, second, total[0] / total[0].sum()


def _contiguous(weights: Weights) -> Any:
    return [None if weight is None else weight.contiguous() for weight in weights]
