"""A layer of experts in one piece where kernels do it: the same passes one after the other, one node in the graph.

On a GPU the layer is done sooner than Python has built and walked a dozen nodes.
t tokens, k chosen, s = t k pairs of a token and an expert, e experts, d width, q width in which the cosine is taken
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.nn.experts.balance import balance
from holdfast.nn.experts.choice import FEW, LARGEST, gates_of, narrow_scores
from holdfast.nn.experts.dispatch import Places, fits, grouped, grouped_back, through_experts, weight_back
from holdfast.nn.experts.router import Routing
from holdfast.nn.kernels import through_plain, usable

MOST = 32  # experts that kernels take: products of tiles hold them all


@dataclass(frozen=True, slots=True)
class How:
    """What is not learned: the choice, and the balance losses, whose weight is 0 where nobody asks for them."""

    top: int
    renormalise: bool
    noise: float
    weight: float
    sigma: float
    form: str
    detach: bool


class Parts(NamedTuple):
    """What is learned: the experts, then the router that takes cosines."""

    up: Tensor
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    project: Tensor
    project_bias: Tensor
    directions: Tensor
    log_scale: Tensor


class Told(NamedTuple):
    """What is told of a pass, without a gradient; the balance losses only where they have a weight."""

    scores: Tensor  # (t, e)
    chosen: Tensor  # (t, k)
    load: Tensor  # (e,) share of the pairs
    losses: tuple[Tensor, Tensor, Tensor] | None = None  # both of them, and shares of the importance (e,)


def able(u: Tensor, dtype: torch.dtype, how: How, parts: Parts) -> bool:
    """Whether kernels do this layer for tokens (t, d) with products in `dtype`; they take both biases or none."""
    if (parts.up_bias is None) != (parts.down_bias is None):
        return False
    if how.top > FEW or parts.up.shape[0] > MOST or not _on(u.device, u.dtype) or not fits(u, parts.up, dtype):
        return False
    return torch.compiler.is_compiling() or not parts.down.data_ptr() % 16


@torch.compiler.assume_constant_result
def _on(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and usable("experts", device, dtype) is not None


def in_one_piece(
    u: Tensor, dtype: torch.dtype, how: How, parts: Parts, real: Tensor | None
) -> tuple[Tensor, Tensor | None, Told]:
    """The layer with GELU and all pairs kept: states (t, d), the weighted balance losses, and what is told."""
    if torch.is_grad_enabled():
        said: list[Told] = []
        out, loss = _Whole.apply(u, dtype, how, real, said, *parts)  # pyright: ignore[reportGeneralTypeIssues]
        return out, loss, said[0]
    out, loss, told, _ = _there(u, dtype, how, real, parts)
    return out, loss, told


@functools.cache
def _kernels() -> tuple[Any, ...]:
    from holdfast.nn.kernels import experts, folding, places, routes

    return folding, routes, places, experts


class _Whole(torch.autograd.Function):
    """A second derivative goes through the parts, with the same noise and choice."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dtype: torch.dtype, how: How, real: Tensor | None, said: list[Told], *parts: Any
    ) -> tuple[Tensor, Tensor | None]:
        out, loss, told, kept = _there(u, dtype, how, real, Parts(*parts))
        said.append(told)
        ctx.save_for_backward(u, real, *parts, *kept)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return out, loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        how, (u, real, *rest) = ctx.how, ctx.saved_tensors
        parts, kept = Parts(*rest[:8]), Kept(*rest[8:])
        learns = ctx.needs_input_grad
        if all(grad is None for grad in grads):
            return (None,) * len(learns)
        if torch.is_grad_enabled():  # someone will differentiate this once more
            plain = functools.partial(_plainly, how, real, kept)
            by_u, *found = through_plain(plain, (u, *parts), (learns[0], *learns[5:]), grads)
        else:
            by_u, *found = _back(u, how, real, parts, kept, learns[0], Parts(*learns[5:]), *grads)
        return by_u, None, None, None, None, *found


class Kept(NamedTuple):
    """What the way back needs: the tokens and weights in the narrow type, the router's products, pairs, and rows."""

    rows: Tensor
    up: Tensor
    down: Tensor
    both: Tensor
    query: Tensor
    scores: Tensor
    noisy: Tensor
    notes: Tensor
    chosen: Tensor
    gates: Tensor
    order: Tensor
    place: Tensor
    token: Tensor
    expert: Tensor
    ends: Tensor
    x: Tensor  # (s, d) by place
    before: Tensor  # (s, h) before the bias and GELU
    hidden: Tensor
    y: Tensor  # (s, d)


def _there(
    u: Tensor, dtype: torch.dtype, how: How, real: Tensor | None, parts: Parts
) -> tuple[Tensor, Tensor | None, Told, Kept]:
    folding, routes, places, experts = _kernels()
    up, up_bias, down, down_bias, weight, bias, directions, log_scale = _without_gaps(parts)
    (t, _), e, q, tutel = u.shape, up.shape[0], weight.shape[0], how.form == "tutel"
    rows, up, down = u.to(dtype).contiguous(), up.to(dtype), down.to(dtype)
    folded, folded_bias, both, narrow_bias = folding.fold(weight, bias, directions, dtype)
    query = F.linear(rows, both[:q], narrow_bias)  # (t, q)
    dots = torch.empty(t, e, device=u.device)
    torch.addmm(folded_bias, u.float(), folded.T, out=dots)  # a product to a given place is none of autocast's
    drawn = torch.randn_like(dots) if how.noise else None
    scores, noisy, chosen, gates, notes, counts = routes.route(
        dots, query, directions, log_scale, drawn, real, largest=math.log(LARGEST), noise=how.noise, top=how.top,
        renormalise=how.renormalise, steep=1 / how.sigma, tutel=tutel, weighed=how.weight > 0,
    )  # fmt: skip
    pairs, (loss, first, second, importance, load) = places.places(
        chosen, counts, notes, e, weight=how.weight, tutel=tutel
    )
    order, place, token, expert, ends = pairs
    x = rows.index_select(0, token)
    before = grouped(x, up, ends)
    hidden = experts.gelu(before, up_bias, expert)
    y = grouped(hidden, down, ends)
    out = experts.combine(y, down_bias, gates, expert, place, t)
    kept = Kept(
        rows, up, down, both, query, scores, noisy, notes, chosen, gates, order, place, token, expert, ends, x,
        before, hidden, y,
    )  # fmt: skip
    if not how.weight:
        return out, None, Told(scores, chosen, load), kept
    return out, loss, Told(scores, chosen, load, (first, second, importance)), kept


def _back(
    u: Tensor, how: How, real: Tensor | None, parts: Parts, kept: Kept, u_learns: bool, learns: Any,
    by_out: Tensor | None, by_loss: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the tokens and the parts, None where nothing comes back or nothing learns; `learns` is a `Parts`."""
    folding, routes, _, experts = _kernels()
    up, up_bias, down, down_bias, *router = _without_gaps(parts)
    ends, largest, t = kept.ends, math.log(LARGEST), u.shape[0]
    by_up = by_up_bias = by_down = by_down_bias = by_u = None
    if by_out is None:
        by_gates = torch.zeros_like(kept.gates)
    else:
        by_y, sums_down, by_gates = experts.combine_back(
            kept.y, down_bias, kept.gates, kept.expert, kept.order, by_out.contiguous()
        )
        by_hidden = grouped_back(by_y, kept.down, ends)
        by_before, sums_up = experts.gelu_back(kept.before, up_bias, kept.expert, by_hidden)
        if learns.up_bias or learns.down_bias:
            by_up_bias, by_down_bias = experts.by_expert(sums_up, up_bias, sums_down, down_bias, ends)
        if learns.down:
            by_down = weight_back(by_y, kept.hidden, ends).to(down.dtype)
        if learns.up:
            by_up = weight_back(by_before, kept.x, ends).to(up.dtype)
        if u_learns:
            by_x = grouped_back(by_before, kept.up, ends)
            if how.top == 1:
                by_u = by_x.index_select(0, kept.place)
            else:
                by_u = experts.combine(by_x, None, None, kept.token, kept.place, t)
    if not u_learns and not any(learns[4:]):
        return None, by_up, by_up_bias, by_down, by_down_bias, None, None, None, None
    joined, sums = routes.route_back(
        kept.scores, kept.noisy, kept.chosen, real, kept.notes, kept.query, parts.log_scale, by_gates, by_loss,
        largest=largest, renormalise=how.renormalise, steep=1 / how.sigma, tutel=how.form == "tutel",
        weight=how.weight, detach=how.detach,
    )  # fmt: skip
    by_router = folding.unfold(*router, kept.notes[t:], sums, joined.T @ kept.rows, largest)
    if u_learns:
        by_u = joined @ kept.both if by_u is None else by_u.addmm_(joined, kept.both)
        by_u = by_u.to(u.dtype)
    return by_u, by_up, by_up_bias, by_down, by_down_bias, *by_router


def _without_gaps(parts: Parts) -> Any:
    return [None if part is None else part.contiguous() for part in parts]


def _plainly(how: How, real: Tensor | None, kept: Kept, u: Tensor, *parts: Any) -> tuple[Tensor, Tensor | None]:
    """The same through the parts, each of which knows its second derivative."""
    own, dtype = Parts(*parts), kept.rows.dtype
    rows = u.to(dtype)
    with torch.autocast(u.device.type, enabled=False):
        clean = narrow_scores(u.float(), rows, own.project, own.project_bias, own.directions, own.log_scale)
    noisy = clean + (kept.noisy - kept.scores) if how.noise else clean
    gates = gates_of(noisy, kept.chosen, how.renormalise)
    at = Places(kept.order, kept.place, kept.token, kept.expert, kept.ends)
    experts = own.up.to(dtype), own.up_bias, own.down.to(dtype), own.down_bias
    out = through_experts(rows, gates, at, experts, F.gelu)
    if not how.weight:
        return out, None
    routing = Routing(clean, noisy, kept.chosen, gates)
    first, second, _ = balance(routing, sigma=how.sigma, form=how.form, detach=how.detach, real=real)
    return out, how.weight * (first + second)
