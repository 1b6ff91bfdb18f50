"""The time loop of a recurrent network that reads a bank of slots with its state before every step, there and back.

b rows, p rows of all steps together, a rows of one step, g directions, e input width, h hidden units, m slots,
d width of a value. Rows lie as `plain_loop` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.core.tape import is_recording
from holdfast.nn.cuda_graphs import GRAPH_LOCK, CapturedPasses, GraphCache, can_capture, capture_key, copy_out
from holdfast.nn.recurrent.cells import BLOCKS, Cell
from holdfast.nn.recurrent.reference import InitialState, Schedule, Weights, plain

Parts = Sequence[Tensor | None]  # inputs, the two tensors of a start or None, then the weights
PARTS = 3 + len(Weights._fields)


def unroll(
    x: Tensor, weights: Weights, cell: type[Cell], schedule: Schedule, start: InitialState | None = None
) -> tuple[Tensor, Tensor]:
    """(g, p, h) all hidden states for inputs (g, p, e), and, without gradient, the weights of the slots.

    Where the first step reads nothing its rows are not among the weights, (g, p - b, m). Ask for the weights under a
    tape: without one there may be none.
    """
    assert start is None or not schedule.zero_first, "a state to start from is there to read with"
    hidden, inner = (None, None) if start is None else start
    parts = (x, hidden, inner, *weights)
    # inside the function gradients are off, and what an input needs says nothing of whether they were on outside
    learns = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)
    return _Unrolled.apply(cell, schedule, learns, is_recording(), *parts)  # pyright: ignore[reportReturnType]


class Trace(NamedTuple):
    """What the way back needs of the way there."""

    states: Tensor  # (g, p, h)
    kept: Tensor  # (g, p, ..) what the cell keeps besides
    read: Tensor  # (g, reads, m) the weights of the slots
    contents: Tensor  # (g, reads, d)
    gates: tuple[Tensor, ...]  # (g, a, 4h) of each step


class _Unrolled(torch.autograd.Function):
    """The loop there and back; the gradients of the weights are taken once for all steps.

    On a GPU in training both ways are recorded graphs. What such a pass leaves is overwritten by the next one of its
    shape: where that came between, the way there is gone once more before the way back.
    """

    @staticmethod
    def forward(ctx: Any, cell: type[Cell], schedule: Schedule, learns: bool, told: bool, *parts: Tensor | None) -> Any:
        ctx.cell, ctx.schedule, ctx.passes = cell, schedule, None
        given = [part for part in parts if part is not None]
        if can_capture(given[0]) and learns:
            with GRAPH_LOCK:
                ctx.passes = _passes(parts, cell, schedule)
                states, _, read, *_ = ctx.passes.forward(given)
                states, read = states.clone(), read.clone() if told else read[:, :0].clone()
                ctx.replays, trace = ctx.passes.replays, []
        else:
            states, kept, read, contents, gates = run_forward(parts, cell, schedule, keep=learns or told)
            trace = [states, kept, read, contents, *gates]
        ctx.save_for_backward(*parts, *trace)
        ctx.mark_non_differentiable(read)
        return states, read

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        parts, saved = ctx.saved_tensors[:PARTS], ctx.saved_tensors[PARTS:]
        needs = ctx.needs_input_grad[-PARTS:]
        if torch.is_grad_enabled():  # someone will differentiate this once more
            wanted = [part for part, need in zip(parts, needs, strict=True) if need]
            x, weights, start = _split(parts)
            states = plain(x, weights, ctx.cell, ctx.schedule, start)
            more = iter(torch.autograd.grad(states, wanted, grads[0], create_graph=True, materialize_grads=True))
            found = [next(more) if need else None for need in needs]
        elif ctx.passes is not None:
            with GRAPH_LOCK:
                found = _replayed(ctx, parts, needs, grads[0])
        else:
            states, kept, read, contents, *gates = saved
            trace = Trace(states, kept, read, contents, tuple(gates))
            found = run_backward(grads[0], parts, trace, ctx.cell, ctx.schedule, needs)
        return None, None, None, None, *found


_shelf = GraphCache()


def _passes(parts: Parts, cell: type[Cell], schedule: Schedule) -> CapturedPasses:
    """The recorded loop for these shapes."""
    shapes = tuple(None if part is None else (part.dtype, *part.shape) for part in parts)
    given = [part for part in parts if part is not None]

    def there(*given: Tensor) -> tuple[Any, ...]:
        return run_forward(_placed(parts, given), cell, schedule)

    return _shelf.find((*capture_key(given[0]), cell, schedule, shapes), lambda: CapturedPasses(there, given))


def _replayed(ctx: Any, parts: Parts, needs: Sequence[bool], grad: Tensor) -> list[Tensor | None]:
    passes, cell, schedule = ctx.passes, ctx.cell, ctx.schedule
    if passes.replays != ctx.replays:
        passes.forward([part for part in parts if part is not None])
        ctx.replays = passes.replays
    held, trace = _placed(parts, passes.captured.inputs), Trace(*passes.captured.outputs)
    return copy_out(
        passes.backward(needs, lambda grad: run_backward(grad, held, trace, cell, schedule, needs), (grad,))
    )


def _placed(parts: Parts, given: Sequence[Tensor]) -> Parts:
    """Other tensors in the places of those that are there."""
    more = iter(given)
    return tuple(None if part is None else next(more) for part in parts)


def _split(parts: Parts) -> tuple[Tensor, Weights, InitialState | None]:
    """Inputs, weights and start."""
    x, hidden, inner, *weights = parts
    start = None if hidden is None else InitialState(hidden, inner)
    return x, Weights(*weights), start  # pyright: ignore[reportReturnType, reportArgumentType]


def run_forward(parts: Parts, cell: type[Cell], schedule: Schedule, *, keep: bool = True) -> Trace:
    """All steps from the first to the last; what only the way back or a tape asks for is not kept unless told to."""
    x, weights, start = _split(parts)
    (g, p, _), width, b = x.shape, weights.by_state.shape[1], schedule.active[0]
    by_input, by_state = _columns(cell.by_input, width), _columns(cell.by_state, width)
    projected = weights.bias[:, None].expand(-1, p, -1).clone()
    projected[..., by_input].baddbmm_(x, weights.by_input)
    states, kept = x.new_empty(g, p, width), x.new_empty(g, p, cell.kept * width)
    read, contents = [x.new_empty(g, 0, weights.slots)], [x.new_empty(g, 0, weights.values.shape[2])]
    first = _first(start, states, kept, b)
    across = weights.keys.mT.contiguous()  # a product with a transposed matrix takes a third longer
    gates = []
    for step in schedule.steps():
        sums, before = projected[:, step.now], step.before
        h, inner = first if before is None else (states[:, before], kept[:, before])
        if before is None and start is None:
            sums = sums.contiguous()
        elif cell.by_state == slice(0, BLOCKS):
            sums = torch.baddbmm(sums, h, weights.by_state)
        else:
            sums = sums.contiguous()
            sums[..., by_state].baddbmm_(h, weights.by_state)
        if weights.slots and step.read is not None:
            share = torch.bmm(h, across).softmax(-1)
            content = torch.bmm(share, weights.values)
            sums[..., by_input].baddbmm_(content, weights.by_content)
            if keep:
                read.append(share)
                contents.append(content)
        cell.forward(sums, states[:, step.now], kept[:, step.now], h, inner)
        if keep:
            gates.append(sums)
    return Trace(states, kept, torch.cat(read, 1), torch.cat(contents, 1), tuple(gates))


def run_backward(
    grad: Tensor,  # (g, p, h) of the states
    parts: Parts,
    trace: Trace,
    cell: type[Cell],
    schedule: Schedule,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """All steps from the last to the first: the gradient of each part that needs one, in order."""
    x, weights, start = _split(parts)
    states, kept, read, contents, gates = trace
    b, width = schedule.active[0], states.shape[-1]
    by_input, by_state = _columns(cell.by_input, width), _columns(cell.by_state, width)
    to_state, to_content, to_share = (w.mT.contiguous() for w in (weights.by_state, weights.by_content, weights.values))
    first, inner, grad = _first(start, states, kept, b), _zeros(states, b), grad.clone()
    by_start = None if start is None else _zeros(states, b)
    sums = x.new_empty(*x.shape[:2], BLOCKS * width)
    by_contents, by_scores = [contents[:, :0]], [read[:, :0]]  # step by step, the last first
    for step, gate in reversed(list(zip(schedule.steps(), gates, strict=True))):
        before, now = step.before, step.now
        h, c = first if before is None else (states[:, before], kept[:, before])
        out = sums[:, now]
        direct = cell.back(gate, kept[:, now], h, c, grad[:, now], inner[:, : step.rows], out)
        earlier = by_start if before is None else grad[:, before]
        to_before = None if earlier is None else torch.bmm(out[..., by_state], to_state)
        if weights.slots and step.read is not None:
            by_content_now = torch.bmm(out[..., by_input], to_content)
            by_contents.insert(0, by_content_now)
            if to_before is not None:  # without a start the scores of the first step are no function of anything
                by_share = torch.bmm(by_content_now, to_share)
                by_score = torch._softmax_backward_data(by_share, read[:, step.read], -1, by_share.dtype)
                by_scores.insert(0, by_score)
                to_before.baddbmm_(by_score, weights.keys)
        if earlier is not None and to_before is not None:
            earlier += to_before if direct is None else to_before.add_(direct)
    entering = schedule.entering(states, None if start is None else start.hidden)  # (g, p - b or p, h)
    tall, carried = sums[..., by_input], sums[:, sums.shape[1] - entering.shape[1] :, by_state]
    reading = tall.shape[1] - read.shape[1]  # the rows of a first step that reads nothing
    made = (
        lambda: tall @ weights.by_input.mT,
        lambda: by_start,
        lambda: inner,
        lambda: x.mT @ tall,
        lambda: entering.mT @ carried,
        lambda: sums.sum(1),
        lambda: contents.mT @ tall[:, reading:],
        lambda: torch.cat(by_scores, 1).mT @ entering,
        lambda: read.mT @ torch.cat(by_contents, 1),
    )
    return [make() if need else None for make, need in zip(made, needs, strict=True)]


def _columns(blocks: slice, width: int) -> slice:
    return slice(blocks.start * width, blocks.stop * width)


def _first(start: InitialState | None, states: Tensor, kept: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """What the first step finds as the state before and as what the cell kept with it."""
    keep = _zeros(kept, rows)
    if start is None:
        return _zeros(states, rows), keep
    if start.inner is not None and keep.shape[-1]:
        keep[..., : states.shape[-1]] = start.inner
    return start.hidden, keep


def _zeros(like: Tensor, rows: int) -> Tensor:
    return like.new_zeros(len(like), rows, like.shape[-1])
