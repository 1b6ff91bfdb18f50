"""A layer of experts in one piece where kernels do it: the same passes one after the other, one node in the graph.

On a GPU the layer is done sooner than Python has built and walked a dozen nodes.
t tokens, k chosen, s = t k pairs of a token and an expert, e experts, d width, q width in which the cosine is taken
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.nn.experts.balance import balance
from holdfast.nn.experts.dispatch import Places, fits, grouped_back, grouped_there, through_experts, weight_back
from holdfast.nn.experts.router import FEW, LARGEST, Routing, gates_of, narrow_scores
from holdfast.nn.kernels import differentiable_gradients, usable

MOST = 32  # experts that kernels take: products of tiles hold them all


class How(NamedTuple):
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
    if torch.compiler.is_compiling():  # nobody knows yet at which addresses weights lie that are narrow already
        return dtype not in (parts.up.dtype, parts.down.dtype)
    return not parts.down.data_ptr() % 16


def _on(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cuda":
        return False
    if torch.compiler.is_compiling():
        from holdfast.nn.experts.compiling import kernels_serve

        return kernels_serve(device, dtype)
    return usable("experts", device, dtype) is not None


def in_one_piece(
    u: Tensor, dtype: torch.dtype, how: How, parts: Parts, real: Tensor | None
) -> tuple[Tensor, Tensor | None, Told]:
    """The layer with GELU and all pairs kept: states (t, d), the weighted balance losses, and what is told."""
    if torch.is_grad_enabled():
        said: list[Told] = []
        out, loss = _Whole.apply(u, dtype, how, real, said, *parts)  # pyright: ignore[reportGeneralTypeIssues]
        return out, loss, said[0]
    out, loss, told, _ = there(u, how, real, drawn(u, how, parts), *narrowed(u, dtype, parts))
    return out, loss, told


def drawn(u: Tensor, how: How, parts: Parts) -> Tensor | None:
    """(t, e) chance for the scores, where they have noise."""
    return torch.randn(u.shape[0], parts.directions.shape[0], device=u.device) if how.noise else None


def narrowed(u: Tensor, dtype: torch.dtype, parts: Parts) -> tuple[Tensor, Parts]:
    """The tokens, and the parts with the weights of experts, in the type of their products."""
    return u.to(dtype), parts._replace(up=parts.up.to(dtype), down=parts.down.to(dtype))


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
        rows, narrow = narrowed(u, dtype, Parts(*parts))
        out, loss, told, kept = there(u, how, real, drawn(u, how, narrow), rows, narrow)
        said.append(told)
        ctx.save_for_backward(u, real, *parts, rows, narrow.up, narrow.down, *kept)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return out, loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        how, (u, real, *rest) = ctx.how, ctx.saved_tensors
        parts, (rows, up, down), kept = Parts(*rest[:8]), rest[8:11], Kept(*rest[11:])
        learns = ctx.needs_input_grad
        if all(grad is None for grad in grads):
            return (None,) * len(learns)
        learned = learns[0], *learns[5:]
        if torch.is_grad_enabled():  # someone will differentiate this once more
            plain = functools.partial(plainly, how, real, rows.dtype, kept)
            by_u, *found = differentiable_gradients(plain, (u, *parts), learned, grads)
        else:
            narrow = parts._replace(up=up, down=down)
            by_u, *found = widened(u, parts, back(how, real, rows, narrow, kept, learned, *grads))
        return by_u, None, None, None, None, *found


def widened(u: Tensor, parts: Parts, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """What comes `back`, in the types of what was `narrowed`."""
    types = {0: u.dtype, 1: parts.up.dtype, 3: parts.down.dtype}
    return [grad if grad is None or i not in types else grad.to(types[i]) for i, grad in enumerate(grads)]


class Kept(NamedTuple):
    """What the way back needs: the router's products and choices, pairs, and rows."""

    scores: Tensor
    chosen: Tensor
    both: Tensor
    query: Tensor
    notes: Tensor
    gates: Tensor
    order: Tensor
    place: Tensor
    token: Tensor
    expert: Tensor
    ends: Tensor
    x: Tensor  # (s, d) by place
    before: Tensor  # (s, h) before the bias and GELU
    y: Tensor  # (s, d)
    noisy: Tensor  # the scores themselves where there is no noise


def there(
    u: Tensor, how: How, real: Tensor | None, chance: Tensor | None, rows: Tensor, parts: Parts
) -> tuple[Any, ...]:
    """States (t, d), the weighted losses, what is told and kept; of what was `drawn`, and rows and parts `narrowed`."""
    folding, routes, places, experts = _kernels()
    up, up_bias, down, down_bias, weight, bias, directions, log_scale = _without_gaps(parts)
    rows, (t, _), e, q, tutel = rows.contiguous(), u.shape, up.shape[0], weight.shape[0], how.form == "tutel"
    folded, folded_bias, both, narrow_bias = folding.fold(weight, bias, directions, rows.dtype)
    query = F.linear(rows, both[:q], narrow_bias)  # (t, q)
    dots = torch.empty(t, e, device=u.device)
    torch.addmm(folded_bias, u.float(), folded.T, out=dots)  # a product to a given place is none of autocast's
    scores, noisy, chosen, gates, notes, counts = routes.route(
        dots, query, directions, log_scale, chance, real, largest=math.log(LARGEST), noise=how.noise, top=how.top,
        renormalise=how.renormalise, steep=1 / how.sigma, tutel=tutel, weighed=how.weight > 0,
    )  # fmt: skip
    pairs, (loss, first, second, importance, load) = places.places(
        chosen, counts, notes, e, weight=how.weight, tutel=tutel
    )
    order, place, token, expert, ends = pairs
    x = rows.index_select(0, token)
    before = grouped_there(x, up, ends)
    hidden = experts.gelu(before, up_bias, expert)
    y = grouped_there(hidden, down, ends)
    out = experts.combine(y, down_bias, gates, expert, place, t)
    kept = Kept(scores, chosen, both, query, notes, gates, order, place, token, expert, ends, x, before, y, noisy)
    loss, losses = (loss, (first, second, importance)) if how.weight else (None, None)
    return out, loss, Told(scores, chosen, load, losses), kept


def back(
    how: How, real: Tensor | None, rows: Tensor, parts: Parts, kept: Kept, learned: Sequence[bool],
    by_out: Tensor | None, by_loss: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the rows and the parts in their types, None where nothing comes back or nothing learns."""
    folding, routes, _, experts = _kernels()
    up, up_bias, down, down_bias, *router = _without_gaps(parts)
    u_learns, learns = learned[0], Parts(*learned[1:])  # pyright: ignore[reportArgumentType]
    ends, largest, t = kept.ends, math.log(LARGEST), rows.shape[0]
    by_up = by_up_bias = by_down = by_down_bias = by_u = None
    if by_out is None:
        by_gates = torch.zeros_like(kept.gates)
    else:
        by_y, sums_down, by_gates = experts.combine_back(
            kept.y, down_bias, kept.gates, kept.expert, kept.order, by_out.contiguous()
        )
        by_hidden = grouped_back(by_y, down, ends)
        by_before, sums_up, hidden = experts.gelu_back(kept.before, up_bias, kept.expert, by_hidden, again=learns.down)
        if learns.up_bias or learns.down_bias:
            by_up_bias, by_down_bias = experts.by_expert(sums_up, up_bias, sums_down, down_bias, ends)
        if hidden is not None:
            by_down = weight_back(by_y, hidden, ends)
        if learns.up:
            by_up = weight_back(by_before, kept.x, ends)
        if u_learns:
            by_x = grouped_back(by_before, up, ends)
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
    by_router = folding.unfold(*router, kept.notes[t:], sums, joined.T @ rows, largest)
    if u_learns:
        by_u = joined @ kept.both if by_u is None else by_u.addmm_(joined, kept.both)
    return by_u, by_up, by_up_bias, by_down, by_down_bias, *by_router


def _without_gaps(parts: Parts) -> Any:
    return [None if part is None else part.contiguous() for part in parts]


def plainly(how: How, real: Any, dtype: torch.dtype, kept: Kept, u: Tensor, *parts: Any) -> tuple[Tensor, Any]:
    """The same through the parts, each of which knows its second derivative."""
    rows, own = narrowed(u, dtype, Parts(*parts))
    with torch.autocast(u.device.type, enabled=False):
        clean = narrow_scores(u.float(), rows, own.project, own.project_bias, own.directions, own.log_scale)
    noisy = clean + (kept.noisy - kept.scores) if how.noise else clean
    gates = gates_of(noisy, kept.chosen, how.renormalise)
    at = Places(kept.order, kept.place, kept.token, kept.expert, kept.ends)
    out = through_experts(rows, gates, at, own[:4], F.gelu)
    if not how.weight:
        return out, None
    routing = Routing(clean, noisy, kept.chosen, gates)
    first, second, _ = balance(routing, sigma=how.sigma, form=how.form, detach=how.detach, real=real)
    return out, how.weight * (first + second)
