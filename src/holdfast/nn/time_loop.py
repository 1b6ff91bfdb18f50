"""The time loop of a recurrent network that reads a bank of slots with its state before every step.

b rows, t steps, p rows of all steps together, a rows of one step, g directions, e input width, h hidden units,
m slots, d width of a value. Rows are sorted by length, the longest first, and lie step after step: (g, p, ..), so that
the rows of a step that still have a word are the first ones of the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.nn.cells import BLOCKS, Cell


class Weights(NamedTuple):
    """What a network of g directions has; one without a bank has no slots, m = d = 0."""

    by_input: Tensor  # (g, e, blocks of the input * h)
    by_state: Tensor  # (g, h, blocks of the state * h)
    bias: Tensor  # (g, 4h)
    by_content: Tensor  # (g, d, blocks of the input * h)
    keys: Tensor  # (g, m, h)
    values: Tensor  # (g, m, d)

    @property
    def slots(self) -> int:
        return self.keys.shape[1]


class Step(NamedTuple):
    """Where the rows of a step lie, where the same rows lay a step before, and where their reads lie."""

    rows: int
    now: slice
    before: slice | None
    read: slice | None


class Schedule(NamedTuple):
    """How many rows each step has, and whether the first step reads nothing (else all slots alike)."""

    active: tuple[int, ...]
    zero_first: bool = True

    def steps(self) -> list[Step]:
        starts = [0, *accumulate(self.active)]
        skipped = self.active[0] if self.zero_first else 0
        found = []
        for i, rows in enumerate(self.active):
            start, earlier = starts[i], starts[i - 1]
            before = slice(earlier, earlier + rows) if i else None
            read = slice(start - skipped, start - skipped + rows) if start >= skipped else None
            found.append(Step(rows, slice(start, start + rows), before, read))
        return found

    def entering(self, states: Tensor) -> Tensor:
        """(g, p - b, ..) what the rows of every step but the first had in the step before."""
        befores = [step.before for step in self.steps() if step.before is not None]
        return torch.cat([states[:, before] for before in befores] or [states[:, :0]], 1)


def unroll(x: Tensor, weights: Weights, cell: type[Cell], schedule: Schedule) -> tuple[Tensor, Tensor]:
    """(g, p, h) all hidden states for inputs (g, p, e), and, without gradient, the weights of the slots.

    Where the first step reads nothing its rows are not among the weights, (g, p - b, m).
    """
    return _Unrolled.apply(x, cell, schedule, *weights)  # pyright: ignore[reportReturnType]


def plain(x: Tensor, weights: Weights, cell: type[Cell], schedule: Schedule) -> Tensor:
    """The same states as one expression, for those who differentiate twice."""
    g, width, _ = weights.by_state.shape
    before, after = cell.by_input.start * width, (BLOCKS - cell.by_input.stop) * width
    late = (BLOCKS - cell.by_state.stop) * width
    found = []
    h = c = x.new_zeros(g, schedule.active[0], width)
    for step in schedule.steps():
        h, c = h[:, : step.rows], c[:, : step.rows]
        entering = x[:, step.now] @ weights.by_input
        if step.read is not None and weights.slots:
            entering = entering + (h @ weights.keys.mT).softmax(-1) @ weights.values @ weights.by_content
        sums = weights.bias[:, None] + F.pad(entering, (before, after)) + F.pad(h @ weights.by_state, (0, late))
        h, c = cell.plain(sums, h, c)
        found.append(h)
    return torch.cat(found, 1)


class Trace(NamedTuple):
    """What the way back needs of the way there."""

    states: Tensor  # (g, p, h)
    kept: Tensor  # (g, p, ..) what the cell keeps besides
    read: Tensor  # (g, reads, m) the weights of the slots
    contents: Tensor  # (g, reads, d)
    gates: tuple[Tensor, ...]  # (g, a, 4h) of each step


class _Unrolled(torch.autograd.Function):
    """The loop there and back; the gradients of the weights are taken once for all steps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cell: type[Cell], schedule: Schedule, *given: Tensor) -> Any:
        *trace, gates = run_forward(x, Weights(*given), cell, schedule)
        ctx.save_for_backward(x, *given, *trace, *gates)
        ctx.cell, ctx.schedule = cell, schedule
        ctx.mark_non_differentiable(trace[2])
        return trace[0], trace[2]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, *saved = ctx.saved_tensors
        weights, needs = Weights(*saved[:6]), (ctx.needs_input_grad[0], *ctx.needs_input_grad[3:])
        if torch.is_grad_enabled():  # someone will differentiate this once more
            wanted = [part for part, need in zip((x, *weights), needs, strict=True) if need]
            states = plain(x, weights, ctx.cell, ctx.schedule)
            more = iter(torch.autograd.grad(states, wanted, grads[0], create_graph=True, materialize_grads=True))
            found = [next(more) if need else None for need in needs]
        else:
            states, kept, read, contents, *gates = saved[6:]
            trace = Trace(states, kept, read, contents, tuple(gates))
            found = run_backward(grads[0], x, weights, trace, ctx.cell, ctx.schedule, needs)
        return found[0], None, None, *found[1:]


def run_forward(x: Tensor, weights: Weights, cell: type[Cell], schedule: Schedule) -> Trace:
    """All steps from the first to the last."""
    (g, p, _), width, b = x.shape, weights.by_state.shape[1], schedule.active[0]
    by_input, by_state = _columns(cell.by_input, width), _columns(cell.by_state, width)
    reads = 0 if not weights.slots else p - b if schedule.zero_first else p
    projected = weights.bias[:, None].expand(-1, p, -1).clone()
    projected[..., by_input].baddbmm_(x, weights.by_input)
    states, kept = x.new_empty(g, p, width), x.new_empty(g, p, cell.kept * width)
    read, contents = x.new_empty(g, reads, weights.slots), x.new_empty(g, reads, weights.values.shape[2])
    still, nothing = _zeros(states, b), _zeros(kept, b)
    across = weights.keys.mT.contiguous()  # a product with a transposed matrix takes a third longer
    gates = []
    for step in schedule.steps():
        sums, h, inner = projected[:, step.now].contiguous(), still, nothing
        if step.before is not None:
            h, inner = states[:, step.before], kept[:, step.before]
            sums[..., by_state].baddbmm_(h, weights.by_state)
        if weights.slots and step.read is not None:
            share = torch.bmm(h, across).softmax(-1)
            content = torch.bmm(share, weights.values)
            sums[..., by_input].baddbmm_(content, weights.by_content)
            read[:, step.read], contents[:, step.read] = share, content
        cell.forward(sums, states[:, step.now], kept[:, step.now], h, inner)
        gates.append(sums)
    return Trace(states, kept, read, contents, tuple(gates))


def run_backward(
    grad: Tensor,  # (g, p, h) of the states
    x: Tensor,
    weights: Weights,
    trace: Trace,
    cell: type[Cell],
    schedule: Schedule,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """All steps from the last to the first: gradients of the inputs and of each weight that needs one, in order."""
    states, kept, read, contents, gates = trace
    b, width = schedule.active[0], states.shape[-1]
    by_input, by_state = _columns(cell.by_input, width), _columns(cell.by_state, width)
    to_state, to_content, to_share = (w.mT.contiguous() for w in (weights.by_state, weights.by_content, weights.values))
    still, nothing, inner, grad = _zeros(states, b), _zeros(kept, b), _zeros(states, b), grad.clone()
    sums = x.new_empty(*x.shape[:2], BLOCKS * width)
    by_contents, by_scores = torch.empty_like(contents), torch.empty_like(read)
    for step, gate in reversed(list(zip(schedule.steps(), gates, strict=True))):
        before, now = step.before, step.now
        h, c = (still, nothing) if before is None else (states[:, before], kept[:, before])
        out = sums[:, now]
        direct = cell.back(gate, kept[:, now], h, c, grad[:, now], inner[:, : step.rows], out)
        to_before = None if before is None else torch.bmm(out[..., by_state], to_state)
        if weights.slots and step.read is not None:
            by_content_now = torch.bmm(out[..., by_input], to_content)
            by_contents[:, step.read] = by_content_now
            if to_before is not None:  # the scores of the first step are no function of anything
                share = read[:, step.read]
                by_score = torch.bmm(by_content_now, to_share).mul_(share)
                by_score.addcmul_(share, by_score.sum(-1, keepdim=True), value=-1)
                by_scores[:, step.read] = by_score
                to_before.baddbmm_(by_score, weights.keys)
        if to_before is not None:
            grad[:, before] += to_before if direct is None else to_before.add_(direct)
    entering, tall = schedule.entering(states), sums[..., by_input]  # (g, p - b, h), (g, p, blocks of the input * h)
    reading, scored = tall.shape[1] - read.shape[1], read.shape[1] - entering.shape[1]  # the first rows of each
    made = (
        lambda: tall @ weights.by_input.mT,
        lambda: x.mT @ tall,
        lambda: entering.mT @ sums[:, b:, by_state],
        lambda: sums.sum(1),
        lambda: contents.mT @ tall[:, reading:],
        lambda: by_scores[:, scored:].mT @ entering,
        lambda: read.mT @ by_contents,
    )
    return [make() if need else None for make, need in zip(made, needs, strict=True)]


def _columns(blocks: slice, width: int) -> slice:
    return slice(blocks.start * width, blocks.stop * width)


def _zeros(like: Tensor, rows: int) -> Tensor:
    return like.new_zeros(len(like), rows, like.shape[-1])
