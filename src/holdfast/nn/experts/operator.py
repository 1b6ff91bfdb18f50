"""The layer in one piece as an operator of torch: a compiler calls it as it is, and fuses what lies around it.

Without that a compiled network breaks at each such layer, and each piece costs the host more than many kernels. What
a compiler has to know of shapes comes of the same Python, run on tensors without numbers: no kernel is launched then.
Where a GPU replays layers, the operator does that too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.nn.cuda_graphs import no_token
from holdfast.nn.experts.replayed import back_again, there_again
from holdfast.nn.experts.whole import How, Kept, Parts, Told, back, drawn, narrowed, there, widened

PARTS = (
    "Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, "
    "Tensor project, Tensor project_bias, Tensor directions, Tensor log_scale"
)
HOW = "int top, bool renormalise, float noise, float weight, float sigma, str form, bool detach"
LOSS = 4  # where it comes, if it has a weight: after states, scores, choices and load, and before what it is made of


def in_a_graph(
    u: Tensor, dtype: torch.dtype, how: How, parts: Parts, real: Tensor | None, *, again: bool
) -> tuple[Tensor, Tensor | None, Told]:
    """What `in_one_piece` gives, where a compiler looks on; `again`: the same may come step after step."""
    from holdfast.nn.experts.compiling import may_replay

    replays = again and may_replay(u.device)
    out, scores, chosen, load, *losses = torch.ops.holdfast.experts(u, real, dtype, replays, *parts, *how)
    if not losses:
        return out, None, Told(scores, chosen, load)
    loss, first, second, importance = losses
    return out, loss, Told(scores, chosen, load, (first, second, importance))


class _Node(torch.autograd.Function):
    """Casts of tokens are left to the compiler, which joins them with what comes before and after."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, real: Tensor | None, dtype: torch.dtype, again: bool, *rest: Any
    ) -> tuple[Tensor, ...]:
        parts, ctx.how, ctx.again, rows = Parts(*rest[:8]), rest[8:], again, u.to(dtype)
        found = torch.ops.holdfast.experts_there(u, real, rows, True, again, *parts, *ctx.how)
        told, kept = found[: LOSS * 2], found[LOSS * 2 :]
        if not How(*ctx.how).weight:
            told, kept = found[:LOSS], found[LOSS:]
        ctx.save_for_backward(u, real, *parts, rows, *told[1:3], *kept)
        ctx.mark_non_differentiable(*(each for i, each in enumerate(told) if i not in (0, LOSS)))
        ctx.set_materialize_grads(False)
        return tuple(told)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        u, real, *rest = ctx.saved_tensors
        parts, rows, kept = Parts(*rest[:8]), rest[8], rest[9:]
        by_out, by_loss = grads[0], grads[LOSS] if len(grads) > LOSS else None
        learns = ctx.needs_input_grad
        if by_out is None and by_loss is None:
            return (None,) * len(learns)
        given = real, rows, kept, [learns[0], *learns[4:12]], ctx.again, by_out, by_loss
        found = torch.ops.holdfast.experts_back(*given, *parts, *ctx.how)
        by_u, *by_parts = widened(u, parts, [grad if grad.numel() else None for grad in found])
        return by_u, None, None, None, *by_parts, *(None for _ in ctx.how)


def _experts(u: Tensor, real: Tensor | None, dtype: torch.dtype, again: bool, *rest: Any) -> list[Tensor]:
    """Only what is told leaves it; a compiler sees the two below, which cost the host no look at gradients."""
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (u, *rest[:8])):
        return list(_Node.apply(u, real, dtype, again, *rest))  # pyright: ignore[reportArgumentType]
    return torch.ops.holdfast.experts_there(u, real, u.to(dtype), False, again, *rest)


def _there(u: Tensor, real: Tensor | None, rows: Tensor, keep: bool, again: bool, *rest: Any) -> list[Tensor]:
    how = How(*rest[8:])
    found = there_again(u, rows, how, Parts(*rest[:8]), keep) if again else None
    return _plain_there(u, real, rows, keep, again, *rest) if found is None else _listed(how, *found)


def _plain_there(u: Tensor, real: Tensor | None, rows: Tensor, keep: bool, again: bool, *rest: Any) -> list[Tensor]:
    """Without a recording."""
    how, parts = How(*rest[8:]), Parts(*rest[:8])
    _, narrow = narrowed(rows, rows.dtype, parts)
    out, loss, told, kept = there(u, how, real, drawn(u, how, parts), rows, narrow)
    user = (no_token(),) if again else ()
    return _listed(how, out, loss, told, (kept, narrow.up, narrow.down, *user) if keep else None)


def _listed(how: How, out: Tensor, loss: Tensor | None, told: Told, left: tuple[Any, ...] | None) -> list[Any]:
    """What an operator gives shares no memory: no scores twice where there is no noise."""
    found = [out, told.scores, told.chosen, told.load]
    if told.losses is not None:
        found += [loss, *told.losses]
    if left is None:
        return found
    kept, *more = left
    return [*found, *(kept[2:] if how.noise else kept[2:-1]), *more]


def _back(
    real: Tensor | None, rows: Tensor, left: Sequence[Tensor], learned: Sequence[bool], again: bool,
    by_out: Tensor | None, by_loss: Tensor | None, *rest: Any,
) -> list[Tensor]:  # fmt: skip
    if again:
        how, (*kept, _, _, user) = How(*rest[8:]), left
        found = back_again(user, how, Parts(*rest[:8]), _kept(how, kept), learned, (by_out, by_loss))
        if found is not None:
            return _without_none(rows, found)
    return _plain_back(real, rows, left, learned, again, by_out, by_loss, *rest)


def _plain_back(
    real: Tensor | None, rows: Tensor, left: Sequence[Tensor], learned: Sequence[bool], again: bool,
    by_out: Tensor | None, by_loss: Tensor | None, *rest: Any,
) -> list[Tensor]:  # fmt: skip
    """Without a recording."""
    how, (*kept, up, down) = How(*rest[8:]), left[:-1] if again else left
    narrow = Parts(*rest[:8])._replace(up=up, down=down)
    return _without_none(rows, back(how, real, rows, narrow, _kept(how, kept), learned, by_out, by_loss))


def _kept(how: How, kept: list[Tensor]) -> Kept:
    own = kept if how.noise else [*kept, kept[0]]
    return Kept(*own)


def _without_none(rows: Tensor, grads: Sequence[Tensor | None]) -> list[Tensor]:
    """An empty tensor is none."""
    return [rows.new_empty(0) if grad is None else grad for grad in grads]


_library = torch.library.Library("holdfast", "FRAGMENT")
_library.define(f"experts(Tensor u, Tensor? real, ScalarType dtype, bool again, {PARTS}, {HOW}) -> Tensor[]")
_library.impl("experts", _experts, "CompositeImplicitAutograd")
# noise is drawn inside, so that no two calls are the same
_library.define(
    f"experts_there(Tensor u, Tensor? real, Tensor rows, bool keep, bool again, {PARTS}, {HOW}) -> Tensor[]",
    tags=torch.Tag.nondeterministic_seeded,
)
_library.define(
    "experts_back(Tensor? real, Tensor rows, Tensor[] left, bool[] learned, bool again, Tensor? by_out, "
    f"Tensor? by_loss, {PARTS}, {HOW}) -> Tensor[]"
)
for _name, _way, _shapes in (("experts_there", _there, _plain_there), ("experts_back", _back, _plain_back)):
    _library.impl(_name, _way, "CompositeExplicitAutograd")
    torch.library.register_fake(f"holdfast::{_name}", _shapes, lib=_library)
