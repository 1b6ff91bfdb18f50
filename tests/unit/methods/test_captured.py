"""Captured steps equal eager ones; a recorder for the CPU stands in for CUDA graphs."""

import copy
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from holdfast import catalog
from holdfast.accel import graphs
from holdfast.accel.graphs import Graph, GraphTable
from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Tokens
from holdfast.core.seeds import seeded
from holdfast.methods import captured
from holdfast.methods.averaging import MovingAverage
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.methods.captured import StepCapture, captured_steps, use_capture
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify

STEPS, SIZES = 14, (6, 6)


class CpuRecorder:
    """Records a function by running it from a copy of the state; a replay runs it again on the same memory."""

    def __init__(self) -> None:
        self.capture: StepCapture | None = None
        self.locations: list[str] = []  # reported as synchronisations
        self.fails = False
        self.frozen = False  # replays do nothing, as a graph would that reads the wrong memory

    def warm_up(self, function):
        return function()

    @contextmanager
    def synchronisations(self):
        yield self.locations

    def record(self, function, inputs):
        assert self.capture is not None
        capture = self.capture
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        before = capture.state()
        packed = function()
        capture.restore(before)

        def replay() -> None:
            if self.frozen:
                return
            counts = capture.state().counts
            with ExitStack() as stack:
                for optimizer in capture.optimizers:
                    stack.enter_context(optimizer.capturing())
                packed.copy_(function())
            capture.set_counts(counts)  # a graph changes nothing in Python

        return Graph(inputs, packed, replay)


def _network(dropout: float = 0.2) -> Model:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout))
    return Model(body, NoNeck(16), Linear(16, 3))


def _method(name: str, settings: OptimizerSettings, **options) -> Method:
    make = partial(Optimizer, settings)
    method = catalog.build("methods", name, _network(), options=options, task=Classify(), optimizer=make)
    method.begin_stage(StageInfo(0, ("a", "b")))
    method.begin_phase(method.phases[0])
    return method.train()


def _batches(count: int = STEPS) -> list[DomainBatch]:
    rng = torch.Generator().manual_seed(1)
    n = sum(SIZES)
    draw = [(torch.randn(n, 5, generator=rng), torch.randint(0, 3, (n,), generator=rng)) for _ in range(count)]
    return [DomainBatch(x, y, (0, 1), SIZES) for x, y in draw]


def _train(method: Method, batches, recorder: CpuRecorder | None) -> list[dict[str, float]]:
    torch.manual_seed(2)
    if recorder is None:
        for optimizer in method.optimizers():
            optimizer.keep_rates(on_device=True)  # rounded to fp32, as captured updates read them
        return [_floats(method.take_step(batch)) for batch in batches]
    capture = StepCapture(method.methods()[-1], recorder)
    recorder.capture = capture
    with use_capture(capture):
        return [_floats(method.take_step(batch)) for batch in batches]


def _floats(metrics: Metrics) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _assert_equal(a: Method, b: Method) -> None:
    for (name, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y), name
    for x, y in zip(a.buffers(), b.buffers(), strict=True):
        assert torch.equal(x, y)
    for x, y in zip(a.optimizers(), b.optimizers(), strict=True):
        assert (x.calls, x.finished) == (y.calls, y.finished)


METHODS = {
    "erm": {}, "group-dro": {}, "coral": {}, "irm": {"anneal": 7}, "vrex": {"anneal": 9}, "fishr": {"anneal": 8},
    "dann": {"critic_steps": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_captured_steps_equal_eager_steps(name: str) -> None:
    settings = OptimizerSettings(lr=0.01, schedule="cosine", warmup=2, steps=STEPS, clip=1.0)
    eager, replayed = (_method(name, settings, **METHODS[name]) for _ in range(2))
    expected = _train(eager, _batches(), None)
    recorder = CpuRecorder()
    metrics = _train(replayed, _batches(), recorder)
    assert recorder.capture.summary == "captured"
    assert recorder.capture.replays >= (3 if METHODS[name].get("anneal") else 9)
    assert metrics == expected
    _assert_equal(eager, replayed)


@pytest.mark.parametrize("name", METHODS)
def test_steps_with_other_domains_share_a_graph(name: str) -> None:
    settings = OptimizerSettings(lr=0.01, schedule="cosine", steps=STEPS)
    pairs = [(i % 5, 5 + i % 3) for i in range(STEPS)]
    drawn = [replace(b, domains=p, drawn=torch.tensor(p)) for b, p in zip(_batches(), pairs, strict=True)]
    methods = [_method(name, settings, **METHODS[name]) for _ in range(2)]
    for method in methods:
        with seeded(0, "stage"):
            method.begin_stage(StageInfo(0, tuple("abcdefgh"), domains_per_step=2))
    recorder = CpuRecorder()
    expected, metrics = _train(methods[0], drawn, None), _train(methods[1], drawn, recorder)
    assert recorder.capture.replays >= (3 if METHODS[name].get("anneal") else 9)
    assert len(recorder.capture.steps.graphs) <= 2
    assert metrics == expected
    _assert_equal(*methods)


def test_sgd_and_an_average_around_the_method() -> None:
    settings = OptimizerSettings(optimizer="sgd", lr=0.05, schedule="linear", steps=STEPS)
    eager, replayed = (MovingAverage(_method("erm", settings), start=4) for _ in range(2))
    _train(eager, _batches(), None)
    recorder = CpuRecorder()
    _train(replayed, _batches(), recorder)
    assert recorder.capture.replays
    assert eager.seen == replayed.seen == STEPS
    _assert_equal(eager, replayed)


def _fallback(recorder: CpuRecorder) -> str:
    """Train with a recorder that cannot replay; the result is exactly the eager one."""
    settings = OptimizerSettings(lr=0.01, steps=STEPS)
    eager, other = (_method("erm", settings) for _ in range(2))
    expected = _train(eager, _batches(), None)
    assert _train(other, _batches(), recorder) == expected
    for x, y in zip(eager.state_dict().values(), other.state_dict().values(), strict=True):
        if isinstance(x, Tensor):
            assert torch.equal(x, y)
    return recorder.capture.summary


def test_a_step_that_waits_for_the_device_stays_eager(caplog: pytest.LogCaptureFixture) -> None:
    recorder = CpuRecorder()
    recorder.locations = ["loss.py, line 7"]
    captured._warn_once.cache_clear()
    assert _fallback(recorder) == "the CPU waits for the GPU in loss.py, line 7"
    assert "steps of ERM are not captured as CUDA graphs, because the CPU waits" in caplog.text


def test_a_failed_capture_leaves_the_eager_result() -> None:
    recorder = CpuRecorder()
    recorder.fails = True
    assert "operation not permitted" in _fallback(recorder)


def test_a_replay_that_differs_leaves_the_eager_result() -> None:
    recorder = CpuRecorder()
    recorder.frozen = True
    assert _fallback(recorder) == "a replay differs from an eager step"


def test_new_shapes_and_microbatches_are_eager_until_they_repeat() -> None:
    method, recorder = _method("erm", OptimizerSettings(lr=0.01, steps=STEPS)), CpuRecorder()
    capture = recorder.capture = StepCapture(method, recorder)
    rng = torch.Generator().manual_seed(0)
    with use_capture(capture):
        for n in (4, 5, 6, 7, 8):
            y = torch.randint(0, 3, (n,), generator=rng)
            method.take_step(DomainBatch(torch.randn(n, 5, generator=rng), y, (0,), (n,)))
        assert not capture.steps.graphs
        for batch in _batches(graphs.WARM_UP + 1):
            method.take_step(batch)
        assert len(capture.steps.graphs) == 1
        before = capture.replays
        method.microbatches = 2
        method.take_step(_batches(1)[0])
        assert capture.replays == before
        method.microbatches = 1
        method.load_state_dict(method.state_dict())  # replaces the moments, whose addresses a graph holds
        method.take_step(_batches(1)[0])
        assert capture.replays == before
    assert method.taker is None
    assert isinstance(method.optimizer.optimizer.param_groups[0]["lr"], float)


def test_a_checkpoint_holds_numbers_and_continues_exactly() -> None:
    settings = OptimizerSettings(lr=0.01, schedule="cosine", steps=STEPS)
    method, recorder = _method("erm", settings), CpuRecorder()
    recorder.capture = StepCapture(method, recorder)
    batches = _batches()
    torch.manual_seed(2)
    with use_capture(recorder.capture):
        for batch in batches[:9]:
            method.take_step(batch)
        state, random = copy.deepcopy(method.state_dict()), torch.get_rng_state()
        rates = [group["lr"] for group in method.optimizer.state_dict()["optimizer"]["param_groups"]]
        assert all(isinstance(rate, float) for rate in rates)
        resumed = _method("erm", settings)
        resumed.load_state_dict(state)
        torch.set_rng_state(random)
        for batch in batches[9:]:
            method.take_step(batch)
    torch.set_rng_state(random)
    other = CpuRecorder()
    other.capture = StepCapture(resumed, other)
    with use_capture(other.capture):
        for batch in batches[9:]:
            resumed.take_step(batch)
    for x, y in zip(method.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(x, y)


def test_tokens_are_captured_per_length_and_graphs_never() -> None:
    ids = torch.zeros(4, 6, dtype=torch.long)
    tokens = DomainBatch(Tokens(ids, ids == 0), torch.zeros(4, dtype=torch.long), (0,), (4,))
    assert len(captured._tensors_of(tokens)) == 6
    copied = captured._clone_batch(tokens)
    changed = DomainBatch(Tokens(ids + 1, ids == 0), torch.ones(4, dtype=torch.long), (0,), (4,))
    Graph(captured._tensors_of(copied), None, lambda: None).replay(captured._tensors_of(changed))
    assert isinstance(copied.x, Tokens)
    assert int(copied.x.ids.sum()) == 24
    assert int(tokens.x.ids.sum()) == 0  # pyright: ignore
    assert graphs.tensors_of((ids, ids)) == []


def test_a_table_keeps_the_graphs_used_last() -> None:
    table = GraphTable[str]()
    for key in range(graphs.MAX_GRAPHS):
        assert [table.find(key) for _ in range(graphs.WARM_UP)] == [None] * graphs.WARM_UP
        assert not table.is_due(key)
        table.find(key)
        assert table.is_due(key)
        table.keep(key, f"graph {key}")
    assert table.find(0) == "graph 0"
    table.keep("more", "graph")
    assert table.find(1) is None
    assert not table.is_due(1)
    assert table.find(0) == "graph 0"


def test_matmul_precision_with_both_interfaces_of_torch() -> None:
    """The old interface raises after the new one was used."""
    matmul = torch.backends.cuda.matmul
    try:
        torch.set_float32_matmul_precision("high")
        before = graphs.matmul_precision()
        torch.set_float32_matmul_precision("highest")
        assert graphs.matmul_precision() != before
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "tf32"
            assert graphs.matmul_precision() == before
    finally:
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


def test_without_the_private_function_of_torch_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_len_torch_dispatch_stack")
    assert not graphs.can_capture(torch.empty(0))


def test_a_cpu_and_compile_off_change_nothing() -> None:
    method = _method("erm", OptimizerSettings())
    for compile in ("auto", "off"):
        with captured_steps(method, compile=compile) as capture:
            assert capture is None
            assert method.taker is None
