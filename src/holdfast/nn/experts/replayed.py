"""A layer of experts that a GPU replays: the same layer with as many tokens, step after step, batch after batch.

In one piece it is still two dozen kernels, which a host takes longer to ask for than a GPU to do. Recorded they are
asked for at once, there and back; what lies between them is held for as long as the layer's weights live.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from holdfast.nn.cuda_graphs import GRAPH_LOCK, OFTEN, CapturedPasses, Repeated, can_capture, capture_key, copy_out
from holdfast.nn.experts.dispatch import without_waiting
from holdfast.nn.experts.whole import How, Kept, Parts, Told, back, narrowed, plainly, there
from holdfast.nn.kernels import differentiable_gradients

# pairs of a token and an expert: with more of them the GPU is the one to wait for, and much would be held
MOST = 65_536


class Done:
    """What a layer does again and again, in training and in prediction."""

    def __init__(self) -> None:
        self.learned, self.predicted = Repeated(), Repeated(OFTEN)


_layers = WeakIdKeyDictionary()  # Done of each, by the weight that its experts begin with: a copy begins anew


def done_with(up: Tensor) -> Done:
    """What the layer with this first weight did."""
    done = _layers.get(up)
    if done is None:
        done = _layers[up] = Done()
    return done


def forget(up: Tensor) -> None:
    """Its recordings would hold a GPU's memory."""
    with GRAPH_LOCK:
        _layers.pop(up, None)


def replayed(u: Tensor, dtype: torch.dtype, how: How, parts: Parts) -> tuple[Tensor, Tensor | None, Told] | None:
    """What `in_one_piece` gives without a mask, where this layer did the same before; None: it has to go that way."""
    learns = torch.is_grad_enabled()
    with GRAPH_LOCK:
        passes = _find((u,), dtype, how, parts, keep=learns)
        if passes is None:
            return None
        if not learns:
            return _replay(passes, (u,))
        said: list[Told] = []
        out, loss = _Replayed.apply(u, passes, how, said, *parts)  # pyright: ignore[reportGeneralTypeIssues]
        return out, loss, said[0]


def there_again(u: Tensor, rows: Tensor, how: How, parts: Parts, keep: bool) -> tuple[Any, ...] | None:
    """The same to an operator of tokens that are narrow already: what is given and told, and what is kept or None.

    What is kept stays where the recording left it: pairs, rows and weights, and last who needs them.
    """
    with GRAPH_LOCK:
        passes = _find((u, rows), rows.dtype, how, parts, keep=keep)
        if passes is None:
            return None
        told = _replay(passes, (u, rows))
        if not keep:
            return *told, None
        kept, _, narrow, _ = passes.captured.outputs[3:]
        return *told, (kept, narrow.up, narrow.down, passes.use())


def back_again(
    user: Tensor, how: How, parts: Parts, kept: Kept, learned: Sequence[bool], grads: Sequence[Tensor | None]
) -> list[Tensor | None] | None:
    """Gradients as `back` gives them, of the pass that this user needs; None: what was kept is all that there is."""
    with GRAPH_LOCK:
        passes, last = CapturedPasses.of(user)
        if passes is None:
            return None
        if not last and kept.x.data_ptr() == passes.captured.outputs[3].x.data_ptr():
            raise RuntimeError("experts: another pass has overwritten what the way back of this one needs")
        if not last or _where(parts) != passes.reads:  # it was copied, or parameters have other memory
            return None
        return copy_out(_back(passes, how, tuple(learned), grads))


def _find(
    given: tuple[Tensor, ...], dtype: torch.dtype, how: How, parts: Parts, *, keep: bool
) -> CapturedPasses | None:
    """What was recorded for this, tokens and perhaps the same narrow; training may need the memory of predictions."""
    u = given[0]
    if len(u) * how.top > MOST or not _recordable(u):
        return None
    done = done_with(parts.up)
    if keep and done.predicted.passes is not None:
        done.predicted = Repeated(OFTEN)
    how_many, inference = len(given), torch.is_inference_mode_enabled()
    key = keep, inference, how_many, u.shape, u.dtype, dtype, how, *capture_key(u), *_where(parts)
    return (done.learned if keep else done.predicted).find(key, partial(_passes, given, dtype, how, parts, keep=keep))


def _recordable(u: Tensor) -> bool:
    """Not where someone else keeps what is saved: who does checkpoints goes there twice, the same way both times."""
    watched = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None  # pyright: ignore[reportAttributeAccessIssue]
    return can_capture(u) and without_waiting(u.device) and not watched


def _where(parts: Iterable[Tensor | None]) -> tuple[Any, ...]:
    """Where parameters lie, and how."""
    return tuple(None if part is None else (part.data_ptr(), part.dtype, part.shape, part.stride()) for part in parts)


def _passes(given: tuple[Tensor, ...], dtype: torch.dtype, how: How, parts: Parts, *, keep: bool) -> CapturedPasses:
    """Parameters are read where they lie; noise is drawn before each pass, as without a recording, and none for it."""
    u, reads = given[0], _where(parts)
    parts = Parts(*(None if part is None else part.detach() for part in parts))  # pyright: ignore[reportArgumentType]
    chance = torch.zeros(len(u), len(parts.directions), device=u.device) if how.noise else None

    def captured(*given: Tensor) -> tuple[Any, ...]:
        rows, narrow = narrowed(given[-1], dtype, parts)
        *told, kept = there(given[0], how, None, chance, rows, narrow)
        return (*told, kept, rows, narrow, chance) if keep else (*told, chance)

    return CapturedPasses(captured, given, reads)


def _replay(passes: CapturedPasses, given: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None, Told]:
    """What a pass gives, in memory that no other overwrites."""
    chance = passes.captured.outputs[-1]
    if chance is not None:
        chance.normal_()
    out, loss, told, *_ = passes.forward(given)
    out, loss, scores, chosen, load, *losses = copy_out((out, loss, *told[:3], *(told.losses or ())))
    return out, loss, Told(scores, chosen, load, tuple(losses) or None)


def _back(
    passes: CapturedPasses,
    how: How,
    learned: tuple[bool, ...],
    grads: Sequence[Tensor | None],
    moved: Parts | None = None,
) -> tuple[Any, ...]:
    """What the way back gives, perhaps in memory that the next one overwrites; parameters may have moved."""
    kept, rows, narrow, _ = passes.captured.outputs[3:]
    there_is = tuple(grad is not None for grad in grads)
    if moved is not None:
        narrow = moved._replace(up=narrow.up, down=narrow.down)

    def captured(*given: Tensor) -> tuple[Any, ...]:
        more = iter(given)
        return back(how, None, rows, narrow, kept, learned, *(next(more) if each else None for each in there_is))

    given = [grad.contiguous() for grad in grads if grad is not None]
    replays = moved is None and can_capture(rows)
    return passes.backward((learned, there_is), captured, given) if replays else captured(*given)


class _Replayed(torch.autograd.Function):
    """While a node may go back, no other pass overwrites what it needs for that."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, passes: CapturedPasses, how: How, said: list[Told], *parts: Any
    ) -> tuple[Tensor, Tensor | None]:
        out, loss, told = _replay(passes, (u,))
        said.append(told)
        ctx.save_for_backward(passes.use(), u, *parts)
        ctx.passes, ctx.how = passes, how
        ctx.set_materialize_grads(False)
        return out, loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (_, u, *parts), how, learns = ctx.saved_tensors, ctx.how, ctx.needs_input_grad
        learned = learns[0], *learns[4:]
        if all(grad is None for grad in grads) or (grads[0] is None and not learned[0] and not any(learned[5:])):
            return (None,) * len(learns)
        if torch.is_grad_enabled():  # someone will differentiate this once more, and may do so after this node is gone
            kept, rows, *_ = ctx.passes.captured.outputs[3:]
            plain = partial(plainly, how, None, rows.dtype, Kept(*copy_out(kept)))
            by_u, *found = differentiable_gradients(plain, (u, *parts), learned, grads)
            return by_u, None, None, None, *found
        with GRAPH_LOCK:
            moved = None if _where(parts) == ctx.passes.reads else Parts(*parts)
            by_u, *found = copy_out(_back(ctx.passes, how, learned, grads, moved), like=(u, *parts))
        return by_u, None, None, None, *found
