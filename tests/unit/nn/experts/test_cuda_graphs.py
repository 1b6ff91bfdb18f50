"""Captured layers equal layers without CUDA graphs, whatever happens between forward and backward pass.

Without a GPU a graph is a function that is called again and writes its results over those of the first call.
"""

import copy
import gc
import pickle
import threading
import time
import weakref

import pytest
import torch
import torch.utils.checkpoint

from holdfast.core.tape import tape
from holdfast.nn import cuda_graphs
from holdfast.nn.cuda_graphs import WARMUP_PASSES, WARMUP_PREDICTIONS, CapturedPass, RepeatedPass
from holdfast.nn.experts import fast
from holdfast.nn.experts.fast import graphs_of
from holdfast.nn.experts.layer import SparseMoE, exclude_padding

WIDTH, HIDDEN, TOKENS = 24, 40, 10


def flat(values):
    """Tensors in nested tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from flat(value)


class CalledGraph:
    """A stand-in for a CUDA graph that calls the function on the same memory."""

    def __init__(self, function, inputs, outputs) -> None:
        self.function, self.inputs, self.outputs = function, inputs, outputs

    @torch.no_grad()
    def replay(self) -> None:
        for old, new in zip(flat(self.outputs), flat(self.function(*self.inputs)), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


@pytest.fixture
def device(bf16_device, monkeypatch) -> torch.device:
    if bf16_device.type == "cpu":

        @torch.no_grad()
        def capture(function, inputs, _):
            copies = [tensor.detach().clone() for tensor in inputs]
            outputs = tuple(function(*copies))
            return CapturedPass(copies, outputs, CalledGraph(function, copies, outputs))

        monkeypatch.setattr(cuda_graphs, "capture", capture)
        monkeypatch.setattr(cuda_graphs, "_memory_pool", lambda _: None)
        monkeypatch.setattr(fast, "can_capture", lambda _: True)
        monkeypatch.setattr(fast, "grouped_mm_is_asynchronous", lambda _: True)
    return bf16_device


@pytest.fixture
def uncaptured(monkeypatch):
    """Copies a layer into one that is never captured."""

    def copied(layer: SparseMoE) -> SparseMoE:
        other = copy.deepcopy(layer)
        graphs = graphs_of(other.up_proj)
        for repeated in (graphs.training, graphs.prediction):
            monkeypatch.setattr(repeated, "find", lambda *_: None)
        return other

    return copied


def layer_on(device, **settings) -> SparseMoE:
    torch.manual_seed(0)
    return SparseMoE(WIDTH, HIDDEN, inner=32, **settings).to(device).train()


def captured(layer):
    """Captured training passes of a layer, None before the capture."""
    return graphs_of(layer.up_proj).training.passes


def predictions(layer):
    return graphs_of(layer.up_proj).prediction.passes


def tokens(device, seed=0, count=TOKENS):
    x = torch.randn(2, count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return x.to(device).requires_grad_()


def forward(layer, x, seed=0):
    """Output and records."""
    torch.manual_seed(seed)
    with tape() as side, torch.autocast(x.device.type, torch.bfloat16):
        out = layer(x)
    return out, {name: tuple(values) for name, values in side.items()}


def loss_of(out, side):
    return (out.float() - 1).square().mean() + sum(side.get("loss/experts", ()))


def backward(layer, x, result, **options):
    return torch.autograd.grad(loss_of(*result), (x, *layer.parameters()), **options)


def step(layer, x, seed=0):
    result = forward(layer, x, seed)
    return detached(result, backward(layer, x, result))


def detached(result, grads=()):
    out, side = result
    return out.detach(), *(tuple(value.detach() for value in side[name]) for name in sorted(side)), tuple(grads)


def warm_up(layer, device):
    for seed in range(WARMUP_PASSES + 1):
        step(layer, tokens(device, seed))
    assert captured(layer) is not None


def warm_up_predictions(layer, device):
    with torch.no_grad():
        for seed in range(WARMUP_PREDICTIONS + 1):
            forward(layer.eval(), tokens(device, seed))
    assert predictions(layer) is not None
    return layer


def assert_same(actual, expected, device):
    """Compare exactly on a CPU; a GPU may sum products in another order."""
    for a, b in zip(flat(actual), flat(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if device.type == "cpu" or not a.is_floating_point():
            assert torch.equal(a, b)
        else:
            assert (a - b).abs().max() <= 0.02 * b.abs().max().clamp_min(1e-3)


@pytest.mark.parametrize("settings", [{}, {"top": 1}, {"noise": 0.0}, {"balance": 0.0}, {"form": "tutel"}])
def test_training_steps(device, uncaptured, settings):
    layer = layer_on(device, **settings)
    other = uncaptured(layer)
    results = []
    for module in (layer, other):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for seed in range(WARMUP_PASSES + 4):
            results.append(step(module, tokens(device, seed), seed))
            for parameter, grad in zip(module.parameters(), results[-1][-1][1:], strict=True):
                parameter.grad = grad
            optimizer.step()
    half = len(results) // 2  # after all steps: results must survive later replays
    assert_same(tuple(results[:half]), tuple(results[half:]), device)
    assert captured(layer).replays == 4
    assert captured(other) is None


def move(layer):
    old = layer.up_proj_bias.data
    layer.up_proj_bias.data = old.clone()
    old.fill_(7.0)


def two_passes(layer, device):
    xs = [tokens(device, seed) for seed in (7, 8)]
    results = [forward(layer, x, seed) for seed, x in zip((7, 8), xs, strict=True)]
    return tuple(detached(r, backward(layer, x, r)) for r, x in zip(results, xs, strict=True))


def two_passes_with_hooks(layer, device):
    xs = [tokens(device, seed) for seed in (7, 8)]
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved):
        results = [forward(layer, x, seed) for seed, x in zip((7, 8), xs, strict=True)]
    return tuple(backward(layer, x, result) for result, x in zip(results, xs, strict=True))


def backward_twice(layer, device):
    x = tokens(device, 5)
    result = forward(layer, x)
    return backward(layer, x, result, retain_graph=True), backward(layer, x, result)


def accumulated(layer, device):
    for seed in (7, 8):
        loss_of(*forward(layer, tokens(device, seed), seed)).backward()
    return tuple(p.grad for p in layer.parameters())


def moved_weights(layer, device):
    """A weight gets other memory between forward and backward pass."""
    x = tokens(device, 5)
    result = forward(layer, x, 5)
    move(layer)
    return backward(layer, x, result)


def either_output(layer, device):
    grads = []
    for output in (lambda out, side: out.float().sum(), lambda out, side: side["loss/experts"][0]):
        x = tokens(device, 5)
        total = output(*forward(layer, x, 5))
        grads.append(torch.autograd.grad(total, (x, *layer.parameters()), materialize_grads=True))
    return tuple(grads)


def checkpointed(layer, device):
    grads = []
    for seed in range(WARMUP_PASSES + 2):
        x = tokens(device, seed)
        torch.manual_seed(seed)
        with torch.autocast(device.type, torch.bfloat16):
            out = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        loss = out.float().square().mean()
        grads.append(torch.autograd.grad(loss, (x, *layer.parameters()), allow_unused=True))
    return tuple(grads)


@pytest.mark.parametrize(
    ("scenario", "replays"),
    [
        (two_passes, 1),  # the second pass is not replayed: the first one is still in use
        (two_passes_with_hooks, 0),
        (backward_twice, 1),
        (accumulated, 2),
        (moved_weights, 1),
        (either_output, 2),
        (checkpointed, 0),
    ],
)
def test_backward_passes(device, uncaptured, scenario, replays):
    layer = layer_on(device)
    warm_up(layer, device)
    other, passes, before = uncaptured(layer), captured(layer), captured(layer).replays
    assert_same(scenario(layer, device), scenario(other, device), device)
    assert passes.replays == before + replays
    if scenario is two_passes:
        step(layer, tokens(device))
        assert passes.replays == before + 2


def test_a_loop_that_keeps_its_last_loss_is_replayed(device):
    layer = layer_on(device)
    for seed in range(WARMUP_PASSES + 5):
        loss = loss_of(*forward(layer, tokens(device, seed), seed))
        loss.backward()
    assert captured(layer).replays == 5


def test_frozen_weights(device, uncaptured):
    layer, results = layer_on(device), []
    for frozen in (layer.down_proj, *layer.router.parameters()):
        frozen.requires_grad_(False)
    for module in (layer, uncaptured(layer)):
        for seed in range(WARMUP_PASSES + 2):
            module.zero_grad()
            loss_of(*forward(module, tokens(device, seed), seed)).backward()
        names = {name for name, p in module.named_parameters() if p.grad is not None}
        assert names == {"up_proj", "up_proj_bias", "down_proj_bias"}
        results.append(tuple(p.grad for p in module.parameters() if p.grad is not None))
    assert_same(*results, device)
    assert captured(layer).replays == 2
    layer.zero_grad()
    _, side = forward(layer, tokens(device).detach())
    side["loss/experts"][0].backward()  # it reaches frozen weights only
    assert all(p.grad is None for p in layer.parameters())


# the forward capture is tried once; a failed backward capture is tried again in the next step
@pytest.mark.parametrize(("failing", "attempts"), [(1, 1), (2, 3)])
def test_out_of_memory_during_capture(device, uncaptured, monkeypatch, failing, attempts):
    layer, calls, capture = layer_on(device), [], cuda_graphs.capture

    def failing_capture(*args):
        calls.append(args)
        if len(calls) == failing:
            raise torch.OutOfMemoryError("none left")
        return capture(*args)

    monkeypatch.setattr(cuda_graphs, "capture", failing_capture)
    for seed in range(WARMUP_PASSES + 3):
        x = tokens(device, seed)
        assert_same(step(layer, x, seed), step(uncaptured(layer), x, seed), device)
    assert len(calls) == attempts


@pytest.mark.parametrize("cut", [False, True])
def test_weights_at_other_addresses_are_captured_again(device, uncaptured, cut):
    layer = layer_on(device)
    warm_up(layer, device)
    old = captured(layer)
    if cut:
        layer.up_proj.data, layer.up_proj_bias.data = layer.up_proj.data[:, :16], layer.up_proj_bias.data[:, :16]
        layer.down_proj.data = layer.down_proj.data[:, :, :16]
    else:
        layer.up_proj.data = layer.up_proj.data.clone() * 2
    warm_up(layer, device)
    assert captured(layer) is not old
    x = tokens(device, 9)
    assert_same(step(layer, x, 9), step(uncaptured(layer), x, 9), device)


def test_changing_lengths_masks_and_many_tokens_are_not_captured(device, monkeypatch):
    layer = layer_on(device)
    for count in (5, 6, 7, 5, 6, 7):
        step(layer, tokens(device, count=count))
    for _ in range(2 * WARMUP_PASSES):
        with exclude_padding(torch.ones(2, TOKENS, device=device)):
            step(layer, tokens(device))
    monkeypatch.setattr(fast, "MAX_CAPTURED_PAIRS", 2 * TOKENS * layer.settings.top - 1)
    for _ in range(2 * WARMUP_PASSES):
        step(layer, tokens(device))
    assert captured(layer) is None


def test_evaluation_and_training_keep_separate_graphs(device):
    layer, x = layer_on(device), tokens(device)
    warm_up(layer, device)
    passes, replays = captured(layer), captured(layer).replays
    forward(layer.eval(), x)
    with torch.no_grad():
        for _ in range(WARMUP_PREDICTIONS + 1):
            forward(layer, x)
        assert predictions(layer).replays == 1
        forward(layer.train(), x)
    assert (captured(layer), passes.replays) == (passes, replays)
    step(layer, x)
    assert predictions(layer) is None  # training frees the graphs of predictions


@pytest.mark.parametrize("modes", [(torch.no_grad,), (torch.inference_mode, torch.no_grad)])
@pytest.mark.parametrize("top", [1, 2])
def test_predictions(device, uncaptured, modes, top):
    """Memory allocated in inference mode cannot be written outside of it."""
    layer = layer_on(device, top=top).eval()
    other, results = uncaptured(layer), []
    for mode in modes:
        with mode():
            for seed in range(WARMUP_PREDICTIONS + 3):
                x = tokens(device, seed)
                results.append(tuple(detached(forward(module, x)) for module in (layer, other)))
        assert predictions(layer).replays == 3
    assert predictions(other) is None
    for actual, expected in results:  # after all replays
        assert_same(actual, expected, device)
    assert len(predictions(layer).captured.outputs) == 4  # nothing saved for a backward pass


@torch.no_grad()
def test_threads_do_not_mix_their_predictions(device, uncaptured, monkeypatch):
    """One thread has replayed and not yet copied its results when the other begins."""
    layer, begun, results = warm_up_predictions(layer_on(device), device), threading.Event(), {}
    expected = [detached(forward(uncaptured(layer), tokens(device, seed))) for seed in (7, 8)]

    def replay(self, inputs, original=CapturedPass.replay):
        outputs = original(self, inputs)
        begun.set()
        time.sleep(0.3)
        return outputs

    def predict(seed):
        with torch.no_grad():
            results[seed] = detached(forward(layer, tokens(device, seed)))

    monkeypatch.setattr(CapturedPass, "replay", replay)
    first, second = (threading.Thread(target=predict, args=(seed,)) for seed in (7, 8))
    first.start()
    assert begun.wait(60)
    second.start()
    for thread in (first, second):
        thread.join()
    for seed, result in zip((7, 8), expected, strict=True):
        assert_same(results[seed], result, device)
    assert predictions(layer).replays == 3


def test_loading_weights_with_and_without_swapping(device):
    layer = layer_on(device)
    warm_up(layer, device)
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert captured(layer) is not None  # values were copied in place
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    warm_up(layer, device)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_graphs_belong_to_one_layer_and_die_with_it(device, copied):
    layer = layer_on(device)
    warm_up(layer, device)
    other, x = copied(layer), tokens(device, 4)
    assert captured(other) is None
    assert_same(step(other, x, 4), step(layer, x, 4), device)
    passes = weakref.ref(captured(layer))
    del layer
    gc.collect()
    assert passes() is None


class Passes:
    in_use = False


def test_passes_are_captured_after_repetition_and_dropped_for_another_key():
    captures, repeated = [], RepeatedPass()

    def find(key):
        return repeated.find(key, lambda: captures.append(key) or Passes())

    assert [find("a") for _ in range(WARMUP_PASSES)] == [None] * WARMUP_PASSES
    first = find("a")
    assert first is find("a")
    first.in_use = True
    assert find("a") is None
    first.in_use = False
    assert find("a") is first
    assert find("b") is find("a") is None
    assert captures == ["a"]


def test_matmul_precision_with_both_interfaces_of_torch():
    """The old interface raises after the new one was used."""
    matmul = torch.backends.cuda.matmul
    try:
        torch.set_float32_matmul_precision("high")
        before = cuda_graphs.matmul_precision()
        torch.set_float32_matmul_precision("highest")
        assert cuda_graphs.matmul_precision() != before
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "tf32"
            assert cuda_graphs.matmul_precision() == before
    finally:
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
