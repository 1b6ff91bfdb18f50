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
from holdfast.nn.kernels import kernels, through_plain

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


def in_one_piece(
    u: Tensor, dtype: torch.dtype, how: How, parts: Parts, real: Tensor | None
) -> tuple[Tensor, Tensor | None, Told] | None:
    """The layer with GELU and all pairs kept, of tokens (t, d) with products in `dtype`: states (t, d), the weighted
    balance losses, and what is told. None where no kernels do it.
    """  # fmt: skip
    if torch.compiler.is_compiling() or kernels("experts", u) is None or how.top > FEW or parts.up.shape[0] > MOST:
        return None
    if not fits(u, parts.up, dtype) or parts.down.data_ptr() % 16:
        return None
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
        if torch.is_grad_enabled():  # someone will differentiate this once more
            plain = functools.partial(_plainly, how, real, kept)
            by_u, *found = through_plain(plain, (u, *parts), (learns[0], *learns[5:]), grads)
        else:
            by_u, *found = _back(u, how, real, parts, kept, learns, *grads)
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
    up, up_bias, down, down_bias, weight, bias, directions, log_scale = parts
    (t, _), e, q, tutel = u.shape, up.shape[0], weight.shape[0], how.form == "tutel"
    rows, up, down = u.to(dtype).contiguous(), up.to(dtype), down.to(dtype)
    directions = directions.contiguous()
    folded, folded_bias, both, narrow_bias = folding.fold(weight.contiguous(), bias.contiguous(), directions, dtype)
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
    u: Tensor, how: How, real: Tensor | None, parts: Parts, kept: Kept, learns: tuple[bool, ...],
    by_out: Tensor | None, by_loss: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the tokens and of all parts."""
    folding, routes, _, experts = _kernels()
    up, up_bias, down, down_bias, weight, bias, directions, log_scale = parts
    ends, largest = kept.ends, math.log(LARGEST)
    by_out = torch.zeros_like(kept.rows) if by_out is None else by_out.contiguous()
    by_y, sums_down, by_gates = experts.combine_back(kept.y, down_bias, kept.gates, kept.expert, kept.order, by_out)
    by_hidden = grouped_back(by_y, kept.down, ends)
    by_before, sums_up = experts.gelu_back(kept.before, up_bias, kept.expert, by_hidden)
    by_biases = None, None
    if up_bias is not None:
        by_biases = experts.by_expert(sums_up, up_bias, sums_down, down_bias, ends)
    by_down = weight_back(by_y, kept.hidden, ends).to(down.dtype) if learns[7] else None
    by_up = weight_back(by_before, kept.x, ends).to(up.dtype) if learns[5] else None
    by_x = grouped_back(by_before, kept.up, ends)
    if how.top == 1:
        by_rows = by_x.index_select(0, kept.place)
    else:
        by_rows = experts.combine(by_x, None, None, kept.token, kept.place, u.shape[0])
    joined, sums = routes.route_back(
        kept.scores, kept.noisy, kept.chosen, real, kept.notes, kept.query, log_scale, by_gates, by_loss,
        largest=largest, renormalise=how.renormalise, steep=1 / how.sigma, tutel=how.form == "tutel",
        weight=how.weight, detach=how.detach,
    )  # fmt: skip
    few, sizes = (weight.contiguous(), bias.contiguous(), directions.contiguous(), log_scale), kept.notes[u.shape[0] :]
    by_router = folding.unfold(*few, sizes, sums, joined.T @ kept.rows, largest)
    by_u = by_rows.addmm_(joined, kept.both).to(u.dtype)
    return by_u, by_up, by_biases[0], by_down, by_biases[1], *by_router


def _plainly(how: How, real: Tensor | None, kept: Kept, u: Tensor, *parts: Any) -> tuple[Tensor, Tensor | None]:
    """The same through the parts, each of which knows its second derivative."""
    own, dtype = Parts(*parts), kept.rows.dtype
    rows = u.to(dtype)
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
