"""Time loop of a recurrent network that reads a bank before every step, with its own backward pass.

Shapes: b rows, p rows of all steps together, a rows of one step, g directions, e input width, h hidden units, m slots,
d value width. Rows are ordered as in `reference`.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.accel.graphs import (
    GRAPH_LOCK,
    CudaRecorder,
    Graph,
    GraphTable,
    can_capture,
    capture_key,
    copies,
    shapes_of,
)
from holdfast.accel.registry import fused, fused_kernels, kernels
from holdfast.core.tape import is_recording
from holdfast.ops.cells import BLOCKS, Cell
from holdfast.ops.recurrent_step import InitialState, Schedule, Weights

Tensors = Sequence[Any]  # inputs, the two tensors of an initial state or None, then the weights
INPUTS = 3 + len(Weights._fields)
MOST_WORK = 1.5  # multiplications of a folded read, relative to a plain one, up to which it is faster


def unroll(
    x: Tensor, weights: Weights, cell: Cell, schedule: Schedule, start: InitialState | None = None
) -> tuple[Tensor, Tensor]:
    """Return all hidden states (g, p, h) for inputs (g, p, e), and the slot weights, without gradient.

    If the first step does not read, its rows are missing in the weights, (g, p - b, m). The weights are complete only
    inside an open tape.
    """
    assert start is None or not schedule.zero_first, "an initial state must be read with"
    hidden, inner = (None, None) if start is None else start
    tensors = (x, hidden, inner, *weights)
    # gradients are disabled inside the function, and `requires_grad` of an input does not depend on the mode outside
    trains = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return _Unroll.apply(cell, schedule, trains, is_recording(), *tensors)  # pyright: ignore[reportReturnType]


class Trace(NamedTuple):
    """Results of the forward pass that the backward pass needs."""

    states: Tensor  # (g, p, h)
    inner: Tensor  # (g, p, ..) inner states of the cell
    read: Tensor  # (g, reads, m) slot weights
    contents: Tensor  # (g, reads, d), or (g, 0, d) if they are computed after the loop
    gates: tuple[Tensor, ...]  # (g, a, 4h) per step


class _Unroll(torch.autograd.Function):
    """The loop; gradients of the weights are computed once for all steps.

    On a GPU, training replays CUDA graphs. A replay overwrites the results of the previous one of the same shape: if
    that happened between forward and backward, the forward pass is replayed again first.
    """

    @staticmethod
    def forward(ctx: Any, cell: Cell, schedule: Schedule, trains: bool, recording: bool, *tensors: Any) -> Any:
        ctx.cell, ctx.schedule, ctx.passes = cell, schedule, None
        ctx.captures = trains and can_capture(tensors[0])
        if ctx.captures:
            with GRAPH_LOCK:
                ctx.passes = _find_passes(tensors, cell, schedule)
        if ctx.passes is not None:
            # the trace stays in the memory of the graph; only results that the caller keeps are copied, the slot
            # weights only for an open tape
            with GRAPH_LOCK:
                states, _, read, *_ = ctx.passes.replay(tensors)
                states, read = states.clone(), read.clone() if recording else read[:, :0].clone()
                ctx.replays, trace = ctx.passes.replays, []
        else:
            # the kernels of a recorded pass, so that values do not depend on when recording begins
            with fused_kernels() if ctx.captures else nullcontext():
                states, inner, read, contents, gates = run_forward(tensors, cell, schedule, save=trains or recording)
            trace = [states, inner, read, contents, *gates]
        ctx.save_for_backward(*tensors, *trace)
        ctx.mark_non_differentiable(read)
        return states, read

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors, saved = ctx.saved_tensors[:INPUTS], ctx.saved_tensors[INPUTS:]
        needs = ctx.needs_input_grad[-INPUTS:]
        if ctx.passes is not None:
            with GRAPH_LOCK:
                # another forward pass of this shape has overwritten the trace: compute it again from the saved inputs
                if ctx.passes.replays != ctx.replays:
                    ctx.passes.replay(tensors)
                    ctx.replays = ctx.passes.replays
                result = ctx.passes.replay_backward(grads[0], needs)
        else:
            states, inner, read, contents, *gates = saved
            trace = Trace(states, inner, read, contents, tuple(gates))
            with fused_kernels() if ctx.captures else nullcontext():
                result = run_backward(grads[0], tensors, trace, ctx.cell, ctx.schedule, needs)
        return None, None, None, None, *result


class _Passes:
    """The recorded forward pass of one shape, and its backward passes by the gradients that are needed.

    They share a recorder, and so their memory, because the trace of the forward pass stays there for the backward pass.
    """

    def __init__(self, tensors: Tensors, cell: Cell, schedule: Schedule) -> None:
        self.cell, self.schedule = cell, schedule
        self.recorder = CudaRecorder(tensors[0].device)
        self.forward = self._record(lambda *x: run_forward(x, cell, schedule), tensors)
        self.backward: dict[Hashable, Graph] = {}
        self.replays = 0

    def _record(self, function: Callable[..., Any], inputs: Tensors) -> Graph:
        own = copies(inputs)
        with torch.no_grad(), fused_kernels():
            self.recorder.warm_up(lambda: function(*own))
            return self.recorder.record(lambda: function(*own), own)

    def replay(self, inputs: Tensors) -> Trace:
        self.replays += 1
        return self.forward.replay(inputs)

    def replay_backward(self, grad: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
        """Return copies of the gradients that are needed, for the trace of the last forward pass."""
        key = tuple(needs)
        if key not in self.backward:
            # the graph reads inputs and trace where the forward pass has them
            inputs, trace = self.forward.inputs, Trace(*self.forward.result)
            self.backward[key] = self._record(
                lambda g: run_backward(g, inputs, trace, self.cell, self.schedule, needs), (grad,)
            )
        return copies(self.backward[key].replay((grad,)))


_graphs = GraphTable[_Passes]()


def _find_passes(tensors: Tensors, cell: Cell, schedule: Schedule) -> _Passes | None:
    """Return the CUDA graphs of the loop for these shapes; None while they have not been repeated."""
    key = (*capture_key(tensors[0]), cell, schedule, shapes_of(tensors))
    passes = _graphs.find(key)
    if passes is None and _graphs.is_due(key):
        passes = _Passes(tensors, cell, schedule)
        _graphs.keep(key, passes)
    return passes


def _split(tensors: Tensors) -> tuple[Tensor, Weights, InitialState | None]:
    """Split into inputs, weights and initial state."""
    x, hidden, inner, *weights = tensors
    start = None if hidden is None else InitialState(hidden, inner)
    return x, Weights(*weights), start  # pyright: ignore[reportReturnType, reportArgumentType]


def is_launch_bound(x: Tensor) -> bool:
    """Whether the number of kernels per step counts more than their work, as on a GPU."""
    return x.is_cuda


def fold(x: Tensor, weights: Weights) -> Tensor | None:
    """Return the contribution of every slot to the sums (g, m, blocks of the input * h), where that saves a kernel.

    A read is then one product per step, of slot weights and this, instead of two; the content follows after the loop.
    """
    d, entering = weights.by_content.shape[1:]
    work = weights.slots * entering / max(1, d * (weights.slots + entering))
    if not weights.slots or not is_launch_bound(x) or work > MOST_WORK:
        return None
    return torch.bmm(weights.values, weights.by_content)


def run_forward(tensors: Tensors, cell: Cell, schedule: Schedule, *, save: bool = True) -> Trace:
    """Run all steps; without `save`, results that only a backward pass or a tape needs are dropped."""
    x, weights, start = _split(tensors)
    (g, p, _), width, b = x.shape, weights.by_state.shape[1], schedule.active[0]
    by_input, by_state = _columns(cell.by_input, width), _columns(cell.by_state, width)
    # the part of the sums that does not depend on the state, for all steps in one product: (g, p, 4h)
    projected = weights.bias[:, None].expand(-1, p, -1).clone()
    projected[..., by_input].baddbmm_(x, weights.by_input)
    states, inner = x.new_empty(g, p, width), x.new_empty(g, p, cell.inner_blocks * width)
    read, contents = [x.new_empty(g, 0, weights.slots)], [x.new_empty(g, 0, weights.values.shape[2])]
    first = _first_state(start, states, inner, b)
    keys_t = weights.keys.mT.contiguous()  # a product with a transposed matrix takes a third longer
    folded, gates = fold(x, weights), []
    cell_forward, _ = _in_place(cell, x)
    for step in schedule.steps():
        sums, before = projected[:, step.now], step.before
        h, c = first if before is None else (states[:, before], inner[:, before])
        # a zero state adds nothing to the sums, so its product is left out
        if before is None and start is None:
            sums = sums.contiguous()
        elif cell.by_state == slice(0, BLOCKS):
            sums = _product(h, weights.by_state, sums)
        else:
            sums = sums.contiguous()
            _add_product(sums[..., by_state], h, weights.by_state)
        # the state before the step reads the bank: share (g, a, m), content (g, a, d)
        if weights.slots and step.read is not None:
            share = _product(h, keys_t).softmax(-1)
            if folded is None:
                content = _product(share, weights.values)
                _add_product(sums[..., by_input], content, weights.by_content)
                contents += [content] if save else []
            else:
                _add_product(sums[..., by_input], share, folded)
            read += [share] if save else []
        # writes the states of this step in place, and turns the sums into the gates that the backward pass needs
        cell_forward(sums, states[:, step.now], inner[:, step.now], h, c)
        if save:
            gates.append(sums)
    return Trace(states, inner, torch.cat(read, 1), torch.cat(contents, 1), tuple(gates))


def run_backward(
    grad: Tensor,  # (g, p, h) of the states
    tensors: Tensors,
    trace: Trace,
    cell: Cell,
    schedule: Schedule,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Run all steps in reverse and return the gradient of each input that needs one, in order."""
    x, weights, start = _split(tensors)
    states, inner, read, contents, gates = trace
    b, width = schedule.active[0], states.shape[-1]
    by_input, by_state = _columns(cell.by_input, width), _columns(cell.by_state, width)
    to_state, to_content, to_share = (w.mT.contiguous() for w in (weights.by_state, weights.by_content, weights.values))
    folded, adds_in_place = fold(x, weights), is_launch_bound(x)
    to_share_at_once = None if folded is None else folded.mT.contiguous()
    first, grad_inner, grad = _first_state(start, states, inner, b), _zeros(states, b), grad.clone()
    grad_start = None if start is None else _zeros(states, b)
    sums = x.new_empty(*x.shape[:2], BLOCKS * width)
    grad_contents, grad_scores = [contents[:, :0]], [read[:, :0]]  # per step, in order
    _, cell_backward = _in_place(cell, x)
    # in reverse order: `grad` (g, p, h) collects what later steps add to the state of a step before it is used
    for step, gate in reversed(list(zip(schedule.steps(), gates, strict=True))):
        before, now = step.before, step.now
        h, c = first if before is None else (states[:, before], inner[:, before])
        # gradient of the sums of this step (g, a, 4h), kept for all steps: the weights need it after the loop
        out = sums[:, now]
        direct = cell_backward(gate, inner[:, now], h, c, grad[:, now], grad_inner[:, : step.rows], out)
        earlier = grad_start if before is None else grad[:, before]
        if earlier is None:  # without an initial state the scores of the first step are constant
            to_before = None
        elif adds_in_place:
            to_before = _add_product(earlier, out[..., by_state], to_state)
        else:
            to_before = _product(out[..., by_state], to_state)
        if weights.slots and step.read is not None:
            # lists grow at the front, so that their rows have the order of the forward pass
            if to_share_at_once is None:
                grad_contents.insert(0, _product(out[..., by_input], to_content))
            if to_before is not None:
                if to_share_at_once is None:
                    grad_share = _product(grad_contents[0], to_share)
                else:
                    grad_share = _product(out[..., by_input], to_share_at_once)
                grad_score = torch._softmax_backward_data(grad_share, read[:, step.read], -1, grad_share.dtype)
                grad_scores.insert(0, grad_score)
                _add_product(to_before, grad_score, weights.keys)
        if earlier is not None and to_before is not None:
            if direct is not None:
                to_before.add_(direct)
            # on a GPU it was added in place above, which saves a launch
            if not adds_in_place:
                earlier += to_before
    entering = schedule.entering(states, None if start is None else start.hidden)  # (g, p - b or p, h)
    # gradients of the weights: one product over the rows of all steps instead of one per step
    by_inputs, carried = sums[..., by_input], sums[:, sums.shape[1] - entering.shape[1] :, by_state]
    skipped = by_inputs.shape[1] - read.shape[1]  # rows of a first step that does not read
    if folded is not None:
        contents = torch.bmm(read, weights.values)
        grad_contents = [torch.bmm(by_inputs[:, skipped:], to_content)]
    # in the order of the inputs of the function; those that are not needed are not computed
    gradients = (
        lambda: by_inputs @ weights.by_input.mT,
        lambda: grad_start,
        lambda: grad_inner,
        lambda: x.mT @ by_inputs,
        lambda: entering.mT @ carried,
        lambda: sums.sum(1),
        lambda: contents.mT @ by_inputs[:, skipped:],
        lambda: torch.cat(grad_scores, 1).mT @ entering,
        lambda: read.mT @ torch.cat(grad_contents, 1),
    )
    return [gradient() if need else None for gradient, need in zip(gradients, needs, strict=True)]


def _product(x: Tensor, weight: Tensor, add: Tensor | None = None) -> Tensor:
    """Return x (g, a, k) times weight (g, k, n), plus `add`, by a kernel inside `fused_kernels`."""
    fast = fused("recurrent", x)
    if fast is None:
        return torch.bmm(x, weight) if add is None else torch.baddbmm(add, x, weight)
    out = x.new_empty(*x.shape[:2], weight.shape[2])
    fast.product(x, weight, out, add)
    return out


def _add_product(sums: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add x (g, a, k) times weight (g, k, n) to the sums, as `_product` does, and return them."""
    fast = fused("recurrent", x)
    if fast is None:
        return sums.baddbmm_(x, weight)
    fast.product(x, weight, sums, sums)
    return sums


def _in_place(cell: Cell, x: Tensor) -> tuple[Callable[..., None], Callable[..., Tensor | None]]:
    """Return forward and backward pass of a cell, which are kernels on a GPU."""
    fast = kernels("recurrent", x)
    return (cell.forward, cell.backward) if fast is None else fast.CELLS[cell]


def _columns(blocks: slice, width: int) -> slice:
    return slice(blocks.start * width, blocks.stop * width)


def _first_state(start: InitialState | None, states: Tensor, inner: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the hidden and inner state before the first step."""
    first = _zeros(inner, rows)
    if start is None:
        return _zeros(states, rows), first
    if start.inner is not None and first.shape[-1]:
        first[..., : states.shape[-1]] = start.inner
    return start.hidden, first


def _zeros(like: Tensor, rows: int) -> Tensor:
    return like.new_zeros(len(like), rows, like.shape[-1])
