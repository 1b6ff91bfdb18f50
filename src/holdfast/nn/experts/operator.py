"""The layer in one piece as an operator of torch: a compiler calls it as it is, and fuses what lies around it.

Without that a compiled network breaks at each such layer, and each piece costs the host more than many kernels. What
a compiler has to know of shapes comes of the same Python, run on tensors without numbers: no kernel is launched then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.nn.experts.whole import How, Kept, Parts, Told, back, drawn, narrowed, there, widened

PARTS = (
    "Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, "
    "Tensor project, Tensor project_bias, Tensor directions, Tensor log_scale"
)
HOW = "int top, bool renormalise, float noise, float weight, float sigma, str form, bool detach"
LOSS = 4  # where it comes, if it has a weight: after states, scores, choices and load, and before what it is made of


def in_a_graph(
    u: Tensor, dtype: torch.dtype, how: How, parts: Parts, real: Tensor | None
) -> tuple[Tensor, Tensor | None, Told]:
    """What `in_one_piece` gives, where a compiler looks on."""
    out, scores, chosen, load, *losses = torch.ops.holdfast.experts(u, real, dtype, *parts, *how)
    if not losses:
        return out, None, Told(scores, chosen, load)
    loss, first, second, importance = losses
    return out, loss, Told(scores, chosen, load, (first, second, importance))


class _Recorded(torch.autograd.Function):
    """Casts are left to the compiler, which joins them with what comes before and after."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, real: Tensor | None, dtype: torch.dtype, *rest: Any) -> tuple[Tensor, ...]:
        parts, ctx.how = Parts(*rest[:8]), rest[8:]
        rows, narrow = narrowed(u, dtype, parts)
        found = torch.ops.holdfast.experts_there(u, real, rows, True, *narrow, *ctx.how)
        told, kept = found[: LOSS * 2], found[LOSS * 2 :]
        if not How(*ctx.how).weight:
            told, kept = found[:LOSS], found[LOSS:]
        ctx.save_for_backward(u, real, *parts, rows, narrow.up, narrow.down, *told[1:3], *kept)
        ctx.mark_non_differentiable(*(each for i, each in enumerate(told) if i not in (0, LOSS)))
        ctx.set_materialize_grads(False)
        return tuple(told)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        u, real, *rest = ctx.saved_tensors
        parts, (rows, up, down), kept = Parts(*rest[:8]), rest[8:11], rest[11:]
        by_out, by_loss = grads[0], grads[LOSS] if len(grads) > LOSS else None
        learns = ctx.needs_input_grad
        if by_out is None and by_loss is None:
            return (None,) * len(learns)
        narrow, learned = parts._replace(up=up, down=down), [learns[0], *learns[3:11]]
        found = torch.ops.holdfast.experts_back(real, rows, kept, learned, by_out, by_loss, *narrow, *ctx.how)
        by_u, *by_parts = widened(u, parts, [grad if grad.numel() else None for grad in found])
        return by_u, None, None, *by_parts, *(None for _ in ctx.how)


def _experts(u: Tensor, real: Tensor | None, dtype: torch.dtype, *rest: Any) -> list[Tensor]:
    """Only what is told leaves it; a compiler sees the two below, which cost the host no look at gradients."""
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (u, *rest[:8])):
        return list(_Recorded.apply(u, real, dtype, *rest))  # pyright: ignore[reportArgumentType]
    rows, narrow = narrowed(u, dtype, Parts(*rest[:8]))
    return torch.ops.holdfast.experts_there(u, real, rows, False, *narrow, *rest[8:])


def _there(u: Tensor, real: Tensor | None, rows: Tensor, keep: bool, *rest: Any) -> list[Tensor]:
    """What an operator gives shares no memory: no scores twice where there is no noise."""
    how, parts = How(*rest[8:]), Parts(*rest[:8])
    out, loss, told, kept = there(u, how, real, drawn(u, how, parts), rows, parts)
    found = [out, told.scores, told.chosen, told.load]
    if told.losses is not None:
        found += [loss, *told.losses]
    return found + list(kept[2:] if how.noise else kept[2:-1]) if keep else found


def _back(
    real: Tensor | None, rows: Tensor, kept: Sequence[Tensor], learned: Sequence[bool],
    by_out: Tensor | None, by_loss: Tensor | None, *rest: Any,
) -> list[Tensor]:  # fmt: skip
    """An empty tensor is none."""
    how = How(*rest[8:])
    own = [*kept] if how.noise else [*kept, kept[0]]
    found = back(how, real, rows, Parts(*rest[:8]), Kept(*own), learned, by_out, by_loss)
    return [rows.new_empty(0) if grad is None else grad for grad in found]


_library = torch.library.Library("holdfast", "FRAGMENT")
_library.define(f"experts(Tensor u, Tensor? real, ScalarType dtype, {PARTS}, {HOW}) -> Tensor[]")
_library.impl("experts", _experts, "CompositeImplicitAutograd")
# noise is drawn inside, so that no two calls are the same
_library.define(
    f"experts_there(Tensor u, Tensor? real, Tensor rows, bool keep, {PARTS}, {HOW}) -> Tensor[]",
    tags=torch.Tag.nondeterministic_seeded,
)
_library.define(
    "experts_back(Tensor? real, Tensor rows, Tensor[] kept, bool[] learned, Tensor? by_out, Tensor? by_loss, "
    f"{PARTS}, {HOW}) -> Tensor[]"
)
for _name, _way in (("experts_there", _there), ("experts_back", _back)):
    _library.impl(_name, _way, "CompositeExplicitAutograd")
    torch.library.register_fake(f"holdfast::{_name}", _way, lib=_library)
