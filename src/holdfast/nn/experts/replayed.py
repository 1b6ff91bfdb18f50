"""A layer of experts that a GPU replays: the same layer with as many tokens, step after step, batch after batch.

In one piece it is still two dozen kernels, which a host takes longer to ask for than a GPU to do. Recorded they are
asked for at once, there and back; what lies between them is held for as long as the layer lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.nn.experts.dispatch import without_waiting
from holdfast.nn.experts.whole import How, Kept, Parts, Told, back, narrowed, plainly, there
from holdfast.nn.kernels import through_plain
from holdfast.nn.recorded import ALONE, Passes, Repeated, around, can_record, own

# pairs of a token and an expert: with more of them the GPU is the one to wait for, and much would be held
MOST = 65_536


def replayed(
    u: Tensor, dtype: torch.dtype, how: How, parts: Parts, layer: Repeated
) -> tuple[Tensor, Tensor | None, Told] | None:
    """What `in_one_piece` gives without a mask, where this layer did the same before; None: it has to go that way."""
    if len(u) * how.top > MOST or not _recordable(u):
        return None
    learns = torch.is_grad_enabled()
    key = learns, torch.is_inference_mode_enabled(), u.shape, u.dtype, dtype, how, *around(u), *_where(parts)
    with ALONE:
        passes = layer.find(key, partial(_passes, u, dtype, how, parts, keep=learns))
        if passes is None:
            return None
        if not learns:
            return _replay(passes, u)
        said: list[Told] = []
        out, loss = _Replayed.apply(u, passes, how, said, *parts)  # pyright: ignore[reportGeneralTypeIssues]
        return out, loss, said[0]


def better_apart(u: Tensor, how: How) -> bool:
    """Whether a program that is being compiled had better leave this layer out, so that it is replayed."""
    if len(u) * how.top > MOST:
        return False
    from holdfast.nn.experts.compiling import may_break

    return may_break(u.device)


def _recordable(u: Tensor) -> bool:
    """Not where someone else keeps what is saved: who does checkpoints goes there twice, the same way both times."""
    watched = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None  # pyright: ignore[reportAttributeAccessIssue]
    return can_record(u) and without_waiting(u.device) and not watched


def _where(parts: Iterable[Tensor | None]) -> list[Any]:
    """Where parameters lie, and how."""
    return [None if part is None else (part.data_ptr(), part.dtype, part.shape, part.stride()) for part in parts]


def _passes(u: Tensor, dtype: torch.dtype, how: How, parts: Parts, *, keep: bool) -> Passes:
    """Parameters are read where they lie; noise is drawn before each pass, as without a recording, and none for it."""
    chance = torch.zeros(len(u), len(parts.directions), device=u.device) if how.noise else None

    def way(u: Tensor) -> tuple[Any, ...]:
        rows, narrow = narrowed(u, dtype, parts)
        *told, kept = there(u, how, None, chance, rows, narrow)
        return (*told, kept, rows, narrow, chance) if keep else (*told, chance)

    return Passes(way, (u,))


def _replay(passes: Passes, u: Tensor) -> tuple[Tensor, Tensor | None, Told]:
    """What a pass gives, in memory that no other overwrites."""
    chance = passes.way.leaves[-1]
    if chance is not None:
        chance.normal_()
    out, loss, told, *_ = passes.forward((u,))
    out, loss, scores, chosen, load, *losses = own((out, loss, *told[:3], *(told.losses or ())))
    return out, loss, Told(scores, chosen, load, tuple(losses) or None)


class _Replayed(torch.autograd.Function):
    """While a node may go back, no other pass overwrites what it needs for that."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, passes: Passes, how: How, said: list[Told], *parts: Any
    ) -> tuple[Tensor, Tensor | None]:
        out, loss, told = _replay(passes, u)
        said.append(told)
        ctx.save_for_backward(passes.use(u.device), u, *parts)
        ctx.passes, ctx.how, ctx.where = passes, how, _where(parts)
        ctx.set_materialize_grads(False)
        return out, loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (_, u, *parts), how, learns = ctx.saved_tensors, ctx.how, ctx.needs_input_grad
        learned, given = (learns[0], *learns[4:]), [grad.contiguous() for grad in grads if grad is not None]
        if not given or (grads[0] is None and not learned[0] and not any(learned[5:])):
            return (None,) * len(learns)
        kept, rows, narrow, _ = ctx.passes.way.leaves[3:]
        if torch.is_grad_enabled():  # someone will differentiate this once more, and may do so after this node is gone
            plain = partial(plainly, how, None, rows.dtype, Kept(*own(kept)))
            by_u, *found = through_plain(plain, (u, *parts), learned, grads)
            return by_u, None, None, None, *found
        there_is = tuple(grad is not None for grad in grads)

        def way(*given: Tensor) -> tuple[Any, ...]:
            more = iter(given)
            return back(how, None, rows, narrow, kept, learned, *(next(more) if each else None for each in there_is))

        with ALONE:
            if _where(parts) == ctx.where:
                left = ctx.passes.backward((learned, there_is), way, given)
            else:  # someone gave them other memory since
                narrow = Parts(*parts)._replace(up=narrow.up, down=narrow.down)  # pyright: ignore[reportArgumentType]
                left = way(*given)
            by_u, *found = own(left, like=(u, *parts))
        return by_u, None, None, None, *found
