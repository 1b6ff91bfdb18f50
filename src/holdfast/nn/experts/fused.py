"""Fused forward and backward pass of an expert layer with a cosine router and GELU: Triton kernels, one autograd node.

On a GPU the layer finishes sooner than Python builds and walks a dozen nodes.
t tokens, k chosen, s = t k pairs of a token and an expert, e experts, d width, h hidden width, q inner width of the
cosine
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.nn.experts.balance import Config
from holdfast.nn.experts.dispatch import by_confidence, grouped_mm, sort_pairs
from holdfast.nn.experts.router import MAX_SCALE


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


@dataclass
class Drops:
    """Capacity and dropout of a layer: pairs beyond the one and hidden units by the other add nothing.

    A forward pass fills in the masks, which its backward pass needs.
    """

    capacity: int | None = None
    dropout: float = 0.0
    within: Tensor | None = None  # (t, k) 1 for pairs within the capacity, in the dtype of the gates
    survivors: Tensor | None = None  # (s, h) hidden units that dropout keeps

    def limit(self, gates: Tensor, chosen: Tensor, noisy: Tensor, mask: Tensor | None) -> Tensor:
        """Return the gates (t, k), 0 for pairs beyond the capacity: those of the least confident tokens."""
        if self.capacity is None:
            return gates
        first = by_confidence(noisy, mask)
        pairs = sort_pairs(chosen, noisy.shape[1], first=first, capacity=self.capacity)
        assert pairs.within is not None
        self.within = pairs.within[pairs.position].view(gates.shape[1], -1).T.to(gates.dtype)
        return gates * self.within

    def drop(self, hidden: Tensor) -> Tensor:
        """Set random hidden units (s, h) to 0 and scale the others."""
        if not self.dropout:
            return hidden
        hidden, self.survivors = torch.native_dropout(hidden, self.dropout, True)
        return hidden

    def drop_same(self, hidden: Tensor) -> Tensor:
        """Apply the dropout of the forward pass; it is also the map of its gradient."""
        if self.survivors is None:
            return hidden
        return hidden * (self.survivors * (1 / (1 - self.dropout))).to(hidden.dtype)


Result = tuple[Tensor, Tensor | None, Stats]  # states (t, d), weighted balance loss, statistics


def fused_forward(
    u: Tensor, dtype: torch.dtype, config: Config, weights: Weights, mask: Tensor | None, drops: Drops | None = None
) -> Result:
    """Apply the layer to tokens (t, d) with products in `dtype`; all pairs are computed, without `drops` all count."""
    if torch.is_grad_enabled():
        # an autograd function returns tensors only, so the statistics leave it in a list
        collected: list[Stats] = []
        out, loss = FusedExperts.apply(u, dtype, config, mask, collected, drops, *weights)  # pyright: ignore[reportGeneralTypeIssues]
        return out, loss, collected[0]
    rows, narrow = cast(u, dtype, weights)
    out, loss, stats, _ = forward(u, config, mask, draw_noise(u, config, weights), rows, narrow, drops)
    return out, loss, stats


def draw_noise(u: Tensor, config: Config, weights: Weights) -> Tensor | None:
    """Return standard normal noise for the scores (t, e), None without noise."""
    return torch.randn(u.shape[0], weights.directions.shape[0], device=u.device) if config.noise else None


def cast(u: Tensor, dtype: torch.dtype, weights: Weights) -> tuple[Tensor, Weights]:
    """Cast the tokens and the weights of the experts to the dtype of their products."""
    return u.to(dtype), weights._replace(up=weights.up.to(dtype), down=weights.down.to(dtype))


def cast_back(u: Tensor, weights: Weights, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients of `backward` in the dtypes before `cast`."""
    dtypes = {0: u.dtype, 1: weights.up.dtype, 3: weights.down.dtype}
    return [grad if grad is None or i not in dtypes else grad.to(dtypes[i]) for i, grad in enumerate(grads)]


@functools.cache
def _kernels() -> tuple[Any, Any]:
    from holdfast.nn.kernels import experts, routing  # they import Triton

    return experts, routing


class FusedExperts(torch.autograd.Function):
    """The fused layer."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dtype: torch.dtype, config: Config, mask: Any, collected: list[Stats],
        drops: Drops | None, *weights: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        rows, narrow = cast(u, dtype, Weights(*weights))
        out, loss, stats, saved = forward(u, config, mask, draw_noise(u, config, narrow), rows, narrow, drops)
        collected.append(stats)
        masks = (None, None) if drops is None else (drops.within, drops.survivors)
        # the narrow copies are saved too, so that the backward pass does not cast again
        ctx.save_for_backward(u, mask, *masks, *weights, rows, narrow.up, narrow.down, *saved)
        ctx.config, ctx.dropout = config, None if drops is None else drops.dropout
        ctx.set_materialize_grads(False)
        return out, loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        config, (u, mask, within, survivors, *rest) = ctx.config, ctx.saved_tensors
        # no capacity here: the mask `within` of the forward pass stands for it
        drops = None if ctx.dropout is None else Drops(None, ctx.dropout, within, survivors)
        weights, (rows, up, down), saved = Weights(*rest[:8]), rest[8:11], Saved(*rest[11:])
        needs = ctx.needs_input_grad
        if all(grad is None for grad in grads):
            return (None,) * len(needs)
        # of the tokens and the weights; the five arguments between them are no tensors that learn
        needs_grad = needs[0], *needs[6:]
        narrow = weights._replace(up=up, down=down)
        gradients = backward(config, mask, rows, narrow, saved, needs_grad, *grads, drops=drops)
        by_u, *by_weights = cast_back(u, weights, gradients)
        return by_u, None, None, None, None, None, *by_weights


def forward(
    u: Tensor, config: Config, mask: Tensor | None, noise: Tensor | None, rows: Tensor, weights: Weights,
    drops: Drops | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return states (t, d), the weighted loss, statistics and saved tensors, for rows and weights after `cast`."""
    experts, routing = _kernels()
    up, up_bias, down, down_bias, weight, bias, directions, log_scale = _contiguous(weights)
    rows, (t, _), e, q, tutel = rows.contiguous(), u.shape, up.shape[0], weight.shape[0], config.form == "tutel"
    # scores: dots (E W) u + E b in fp32, because rounding changes choices; the norm of the query may be narrow
    folded, folded_bias, both, narrow_bias = routing.fold(weight, bias, directions, rows.dtype)
    query = F.linear(rows, both[:q], narrow_bias)  # (t, q)
    dots = torch.empty(t, e, device=u.device)
    torch.addmm(folded_bias, u.float(), folded.T, out=dots)  # autocast does not apply to products with `out`
    scores, noisy, chosen, gates, notes, counts = routing.route(
        dots, query, directions, log_scale, noise, mask, max_log_scale=math.log(MAX_SCALE), sigma=config.noise,
        top=config.top, renormalise=config.gate != "raw", inverse_sigma=1 / config.sigma, tutel=tutel,
        balanced=config.weight > 0,
    )  # fmt: skip
    # pairs sorted by expert, so that each grouped product reads the rows of one expert after another
    pairs, (loss, first, second, importance, load) = routing.sort_pairs(
        chosen, counts, notes, e, weight=config.weight, tutel=tutel
    )
    order, position, token, expert, ends = pairs
    if drops is not None:
        gates = drops.limit(gates, chosen, noisy, mask)
    x = rows.index_select(0, token)
    # (s, d) -> (s, h) -> (s, d); the result of GELU is not saved: the backward pass computes it again
    before = grouped_mm(x, up.transpose(-2, -1), ends)
    hidden = experts.gelu(before, up_bias, expert)
    hidden = hidden if drops is None else drops.drop(hidden)
    y = grouped_mm(hidden, down.transpose(-2, -1), ends)
    out = experts.combine(y, down_bias, gates, expert, position, t)
    saved = Saved(scores, chosen, both, query, notes, gates, order, position, token, expert, ends, x, before, y, noisy)
    loss, losses = (loss, (first, second, importance)) if config.weight else (None, None)
    return out, loss, Stats(scores, chosen, load, losses), saved


def backward(
    config: Config, mask: Tensor | None, rows: Tensor, weights: Weights, saved: Saved, needs_grad: Sequence[bool],
    by_out: Tensor | None, by_loss: Tensor | None, *, drops: Drops | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of rows and weights in their dtypes, None where not needed or zero."""
    experts, routing = _kernels()
    up, up_bias, down, down_bias, *router = _contiguous(weights)
    u_needs, needs = needs_grad[0], Weights(*needs_grad[1:])  # pyright: ignore[reportArgumentType]
    ends, max_log_scale, t = saved.ends, math.log(MAX_SCALE), rows.shape[0]
    by_up = by_up_bias = by_down = by_down_bias = by_u = None
    if by_out is None:
        # only the balance loss has a gradient: it passes through the router alone
        by_gates = torch.zeros_like(saved.gates)
    else:
        by_y, sums_down, by_gates = experts.combine_backward(
            saved.y, down_bias, saved.gates, saved.expert, saved.order, by_out.contiguous()
        )
        # the forward pass in reverse: combine, down, GELU, up; the gradient of GELU overwrites `by_hidden`
        by_hidden = grouped_mm(by_y, down, ends)
        if drops is not None:
            by_hidden = drops.drop_same(by_hidden)
            by_gates = by_gates if drops.within is None else by_gates * drops.within
        by_before, sums_up, hidden = experts.gelu_backward(
            saved.before, up_bias, saved.expert, by_hidden, recompute=needs.down
        )
        if needs.up_bias or needs.down_bias:
            by_up_bias, by_down_bias = experts.bias_gradients(sums_up, up_bias, sums_down, down_bias, ends)
        if hidden is not None:
            by_down = grouped_mm(by_y.T, hidden if drops is None else drops.drop_same(hidden), ends)
        if needs.up:
            by_up = grouped_mm(by_before.T, saved.x, ends)
        if u_needs:
            by_x = grouped_mm(by_before, up, ends)
            # one pair per token: a selection of rows in place of a sum
            if config.top == 1:
                by_u = by_x.index_select(0, saved.position)
            else:
                by_u = experts.combine(by_x, None, None, saved.token, saved.position, t)
    if not u_needs and not any(needs[4:]):
        return None, by_up, by_up_bias, by_down, by_down_bias, None, None, None, None
    joined, sums = routing.route_backward(
        saved.scores, saved.noisy, saved.chosen, mask, saved.notes, saved.query, weights.log_scale, by_gates, by_loss,
        max_log_scale=max_log_scale, gate=config.gate, inverse_sigma=1 / config.sigma,
        tutel=config.form == "tutel", weight=config.weight,
    )  # fmt: skip
    # `joined` (t, w) has the gradients of query and dots: two products give those of W, E W and the tokens
    by_router = routing.unfold(*router, saved.notes[t:], sums, joined.T @ rows, max_log_scale)
    if u_needs:
        by_u = joined @ saved.both if by_u is None else by_u.addmm_(joined, saved.both)
    return by_u, by_up, by_up_bias, by_down, by_down_bias, *by_router


def _contiguous(weights: Weights) -> Any:
    return [None if weight is None else weight.contiguous() for weight in weights]
