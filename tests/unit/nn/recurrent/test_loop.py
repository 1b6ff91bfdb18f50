"""The time loop and its backward pass equal those of plain steps."""

import pytest
import torch
from torch.testing import assert_close

from holdfast.accel import recurrent_loop as loop
from holdfast.accel.graphs import WARM_UP, GraphTable
from holdfast.accel.recurrent_loop import fold, unroll
from holdfast.accel.registry import module
from holdfast.ops.cells import CELLS, LSTM
from holdfast.ops.recurrent_step import InitialState, Schedule, Weights, reference_step
from tests.devices import KERNEL_DEVICES, CalledRecorder
from tests.gradients import assert_same

ACTIVE = (3, 3, 2, 1)


def parts(cell: str, *, slots: int, width: int = 2) -> tuple[torch.Tensor, Weights]:
    """Return inputs of 9 rows, width 3, and weights of two directions."""
    rng = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(2, *shape, generator=rng, dtype=torch.float64).requires_grad_(min(shape) > 0)

    module, d = CELLS[cell], 2 if slots else 0
    entering, carried = ((blocks.stop - blocks.start) * width for blocks in (module.by_input, module.by_state))
    weights = Weights(
        draw(3, entering), draw(width, carried), draw(4 * width), draw(d, entering), draw(slots, width), draw(slots, d)
    )
    return draw(9, 3), weights


def reference_loop(x, weights: Weights, cell, schedule: Schedule, start: InitialState | None = None) -> torch.Tensor:
    """Return all hidden states (g, p, h), step by step."""
    states, without = [], weights._replace(keys=weights.keys[:, :0], values=weights.values[:, :0])
    h = c = x.new_zeros(len(x), schedule.active[0], weights.by_state.shape[1])
    if start is not None:
        h, c = start.hidden, c if start.inner is None else start.inner
    for step in schedule.steps():
        h, c = h[:, : step.rows], c[:, : step.rows]
        h, c = reference_step(x[:, step.now], h, c, without if step.read is None else weights, cell)
        states.append(h)
    return torch.cat(states, 1)


def begun(rows: int, width: int = 2, *, inner: bool = True) -> InitialState:
    """Return an initial state for two directions."""
    rng = torch.Generator().manual_seed(3)
    drawn = [torch.randn(2, rows, width, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(2)]
    return InitialState(drawn[0], drawn[1] if inner else None)


def learned(x: torch.Tensor, weights: Weights) -> list[torch.Tensor]:
    return [part for part in (x, *weights) if part.requires_grad]


@pytest.fixture(params=[False, True], ids=["plain", "launch-bound"])
def launch_bound(request, monkeypatch):
    """The loop of a CPU, and that of a GPU: folded reads, gradients added in place."""
    monkeypatch.setattr(loop, "is_launch_bound", lambda x: request.param)
    return request.param


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("slots", [0, 3, 30])
@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("active", [ACTIVE, (3, 3, 3), (9,)])
def test_loop_equals_the_reference(cell, slots, zero_first, active, launch_bound):
    x, weights = parts(cell, slots=slots)
    schedule = Schedule(active, zero_first=zero_first)
    states, read = unroll(x, weights, CELLS[cell], schedule)
    expected = reference_loop(x, weights, CELLS[cell], schedule)
    for _ in range(2):  # a backward pass can be repeated
        assert_same(states, expected, (x, *weights))
    assert read.shape[1] == (0 if not slots else 9 - active[0] * zero_first)
    assert_close(read.sum(-1), torch.ones(read.shape[:2], dtype=torch.float64) if slots else torch.zeros(2, 0).double())
    assert not read.requires_grad


def test_reads_are_folded_where_that_is_little_work(launch_bound):
    """With 500 slots of width 300 the products of a step are not much larger; with 2,500 they are."""
    for slots, is_folded in ((0, False), (3, True), (30, False)):
        x, weights = parts("lstm", slots=slots)
        assert (fold(x, weights) is not None) == (is_folded and launch_bound)
    if launch_bound:
        x, weights = parts("gru", slots=3)
        folded = fold(x, weights)
        assert folded is not None
        assert_close(folded, weights.values @ weights.by_content)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("slots", [0, 3, 30])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("active", [ACTIVE, (3, 3, 3), (9,)])
def test_loop_with_initial_state_equals_the_reference(cell, slots, inner, active, launch_bound):
    x, weights = parts(cell, slots=slots)
    schedule, start = Schedule(active, zero_first=False), begun(active[0], inner=inner)
    states, read = unroll(x, weights, CELLS[cell], schedule, start)
    expected = reference_loop(x, weights, CELLS[cell], schedule, start)
    assert not torch.allclose(states, reference_loop(x, weights, CELLS[cell], schedule))
    assert read.shape[1] == (9 if slots else 0)
    assert_same(states, expected, (x, *weights, *(part for part in start if part is not None)))


def test_only_trainable_tensors_get_gradients():
    x, weights = parts("lstm", slots=3)
    x = x.detach()
    keys = weights.keys.detach()
    states, _ = unroll(x, weights._replace(keys=keys), LSTM, Schedule(ACTIVE))
    states.sum().backward()
    assert x.grad is None
    assert keys.grad is None
    assert bool(weights.values.grad.any())


def test_nothing_is_saved_without_gradients():
    x, weights = parts("lstm", slots=3)  # trainable, but no gradient is requested
    _, read = unroll(x, weights, LSTM, Schedule(ACTIVE))
    assert read.shape[1] == sum(ACTIVE[1:])
    with torch.no_grad():
        _, read = unroll(x, weights, LSTM, Schedule(ACTIVE))
    assert read.shape[1] == 0


@pytest.fixture
def replayed(monkeypatch):
    """Replays as on a GPU, by calls; yields the recorders."""
    recorders = []

    def make(device):
        recorders.append(CalledRecorder(device))
        return recorders[-1]

    monkeypatch.setattr(loop, "can_capture", lambda x: True)
    monkeypatch.setattr(loop, "CudaRecorder", make)
    monkeypatch.setattr(loop, "_graphs", GraphTable())
    return recorders


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("slots", [0, 3])
def test_replayed_loops_equal_eager_ones_whatever_comes_between_their_passes(cell, slots, replayed, monkeypatch):
    x, weights = parts(cell, slots=slots)
    leaves = learned(x, weights)

    def gradients():
        pairs = [(x * scale, Schedule(ACTIVE)) for scale in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]
        for each, schedule in pairs[:WARM_UP]:
            torch.autograd.grad(unroll(each, weights, CELLS[cell], schedule)[0].square().sum(), leaves)
        states = [unroll(each, weights, CELLS[cell], schedule)[0] for each, schedule in pairs[WARM_UP:]]
        assert all(torch.isfinite(each).all() for each in states)  # results survive later replays
        some = torch.autograd.grad(states[1].sum(), leaves[-1], retain_graph=True)
        return [*states, *some, *(g for s in states for g in torch.autograd.grad(s.square().sum(), leaves))]

    actual = gradients()
    (recorder,) = replayed
    assert recorder.recorded >= 2
    assert recorder.launched > 8
    monkeypatch.setattr(loop, "can_capture", lambda x: False)
    for a, b in zip(actual, gradients(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("columns", [8, 75])
@pytest.mark.parametrize("rows", [1, 40])
def test_products_of_slices(rows, columns, device):
    """With and without sums to add to, for aligned and unaligned sizes."""
    recurrent = module("recurrent")
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, rows + 2, 92, generator=rng).to(device)[:, 1 : 1 + rows, 4:84]
    weight = torch.randn(2, 80, columns, generator=rng).to(device)
    sums = torch.randn(2, rows, 2 * columns, generator=rng).to(device)
    expected = torch.bmm(x.double(), weight.double()).float()
    recurrent.product(x, weight, sums[..., :columns])
    assert_close(sums[..., :columns], expected, rtol=1e-5, atol=1e-5)
    changed = sums.clone()
    recurrent.product(x, weight, changed[..., columns:], sums[..., columns:])
    assert_close(changed[..., columns:], sums[..., columns:] + expected, rtol=1e-5, atol=1e-5)
    assert_close(changed[..., :columns], sums[..., :columns], rtol=0, atol=0)
