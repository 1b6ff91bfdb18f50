"""The layer under torch.compile: one operator per layer, with values, gradients and records of the eager layer."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from holdfast.core.inputs import to
from holdfast.core.tape import tape
from holdfast.nn.experts import dispatch, fast
from holdfast.nn.experts.fused import Config, Weights
from holdfast.nn.experts.layer import SparseMoE, exclude_padding
from tests.unit.nn.transformers import transformer

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of torch's compilers differ between versions
CONFIG = {"top": 2, "gate": "preserving", "noise": 0.25, "weight": 0.5, "sigma": 0.25, "form": "logit", "detach": False}
WIDTH, HIDDEN, INNER, EXPERTS = 24, 40, 32, 6


class Block(nn.Module):
    """An expert layer with operations to fuse on both sides; the experts see exactly the input."""

    def __init__(self, *, bias: bool = True, **settings) -> None:
        super().__init__()
        self.feed = SparseMoE(WIDTH, HIDDEN, bias=bias, inner=INNER, **settings)

    def forward(self, x):
        return 0.5 * x + self.feed(x).float() * 2


class GraphCollector:
    """A compiler backend that keeps the graphs it receives and passes them on to another backend."""

    def __init__(self, backend: str = "aot_eager") -> None:
        torch.compiler.reset()
        self.graphs, self.backend = [], backend

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return torch._dynamo.lookup_backend(self.backend)(graph, inputs)

    def operators(self) -> list[int]:
        """Number of expert layers per graph."""
        targets = torch.ops.holdfast.experts, torch.ops.holdfast.experts.default
        return [sum(node.target in targets for node in graph.graph.nodes) for graph in self.graphs]


def run(layer, x, leaves, *, grad=True, recording=True, seed=1):
    """Output, records and gradients in bf16."""
    torch.manual_seed(seed)
    device = torch.device(leaves[-1].device).type
    recorder = tape() if recording else nullcontext({})
    with recorder as side, torch.autocast(device, torch.bfloat16), torch.set_grad_enabled(grad):
        out = layer(x)
    loss = out.float().square().sum() + sum(side.get("loss/experts", []))
    return out, dict(side), torch.autograd.grad(loss, leaves, allow_unused=True) if grad else ()


def assert_equal_runs(actual, expected, *, tolerance=0.0):
    """Compare two runs, exactly or relative to the largest entry; the same gradients are missing."""
    (out, side, grads), (other, other_side, other_grads) = actual, expected
    assert side.keys() == other_side.keys()
    pairs = [(out, other), *zip(grads, other_grads, strict=True)]
    for name, values in side.items():
        pairs += zip(values, other_side[name], strict=True)
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, b.requires_grad)
        if tolerance and a.is_floating_point():
            difference = (a.detach().float() - b.detach().float()).abs().max()
            assert difference <= tolerance * b.detach().abs().max().clamp_min(1e-3)
        else:
            assert torch.equal(a, b)


def tokens(batch, device, *, grad=True):
    x = torch.randn(batch, 10, WIDTH, generator=torch.Generator().manual_seed(batch))
    return x.to(device).requires_grad_(grad)


def block(device, *, training=True, **settings) -> Block:
    torch.manual_seed(0)
    return Block(**settings).to(device).train(training)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
def test_one_graph_for_all_lengths_equals_the_eager_layer(bf16_device, top, bias, training, backend):
    layer, collector = block(bf16_device, training=training, top=top, bias=bias), GraphCollector(backend)
    compiled = torch.compile(layer, backend=collector, fullgraph=True)
    for batch in (4, 6, 7):  # after the second length shapes are dynamic
        x = tokens(batch, bf16_device)
        runs = [run(module, x, (x, *layer.parameters()), grad=training) for module in (compiled, layer)]
        assert_equal_runs(*runs, tolerance=0.0 if backend == "aot_eager" else 0.02)
        assert ("loss/experts" in runs[0][1]) == training
    assert collector.operators() == [1, 1]


@pytest.mark.parametrize(
    "settings",
    [{"noise": 0.0}, {"balance": 0.0}, {"form": "tutel", "threshold_learns": False}, {"temperature_learned": False}],
)
@pytest.mark.parametrize("recording", [True, False])
def test_settings_and_recording(bf16_device, settings, recording):
    layer, collector, x = block(bf16_device, **settings), GraphCollector(), tokens(4, bf16_device)
    compiled, leaves = torch.compile(layer, backend=collector, fullgraph=True), (x, *layer.parameters())
    assert_equal_runs(*(run(module, x, leaves, recording=recording) for module in (compiled, layer)))
    assert collector.operators() == [1]


@pytest.mark.parametrize("trained", ["up_proj", "down_proj_bias", "router", "directions", "none"])
def test_frozen_weights_change_no_other_gradient(bf16_device, trained):
    layer, x = block(bf16_device), tokens(4, bf16_device, grad=trained == "none")
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(trained in name)
    leaves = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    compiled = torch.compile(layer, backend=GraphCollector(), fullgraph=True)
    assert_equal_runs(*(run(module, x, leaves) for module in (compiled, layer)))


def test_padding_is_excluded_from_losses(bf16_device):
    layer, collector, x = block(bf16_device), GraphCollector(), tokens(4, bf16_device)
    mask = torch.arange(40, device=bf16_device).view(4, 10) % 3 != 0
    compiled, leaves = torch.compile(layer, backend=collector, fullgraph=True), (x, *layer.parameters())
    with exclude_padding(mask):
        runs = [run(module, x, leaves) for module in (compiled, layer)]
    assert_equal_runs(*runs)
    assert torch.equal(runs[0][1]["experts/real"][0], mask)
    assert collector.operators() == [1]


@pytest.mark.parametrize("output", ["out", "loss"])
def test_gradients_of_either_output_alone(bf16_device, output):
    layer, x = block(bf16_device).feed, tokens(4, bf16_device)
    leaves, grads = (x, *layer.parameters()), []
    for module in (torch.compile(layer, backend=GraphCollector(), fullgraph=True), layer):
        torch.manual_seed(1)
        with tape() as side, torch.autocast(x.device.type, torch.bfloat16):
            out = module(x)
        total = out.float().sum() if output == "out" else side["loss/experts"][0]
        grads.append(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_every_call_draws_the_noise_of_the_eager_layer(bf16_device):
    layer, x = block(bf16_device, noise=4.0), tokens(4, bf16_device, grad=False)
    compiled, choices = torch.compile(layer, backend=GraphCollector(), fullgraph=True), []
    for module in (compiled, layer):
        torch.manual_seed(3)
        with tape() as side, torch.autocast(x.device.type, torch.bfloat16):
            module(x)
            module(x)
        choices.append(side["experts/chosen"])
    assert not torch.equal(*choices[0])
    assert all(torch.equal(a, b) for a, b in zip(*choices, strict=True))


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_equal_layers_of_a_network_share_one_graph(bf16_device, tmp_path, top, training):
    net, x = transformer("vit", tmp_path, experts={"count": 4, "at": [0, 2], "inner": 8, "top": top})
    net, x, collector = net.to(bf16_device).train(training), to(x, bf16_device), GraphCollector()
    batches, parameters = (x, x[:4]), tuple(net.parameters())
    expected = [run(net, batch, parameters, grad=training) for batch in batches]
    for layer in net.stack():
        layer.compile(backend=collector, fullgraph=True)
    for batch, eager in zip(batches, expected, strict=True):  # a GPU sums gradients of attention in any order
        assert_equal_runs(run(net, batch, parameters, grad=training), eager, tolerance=0.02)
    assert Counter(collector.operators()) == {0: 2, 1: 2}  # two kinds of layers, two lengths


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"triton.cudagraphs": False}, {"triton.cudagraphs": True}])
@pytest.mark.parametrize("top", [1, 2])
def test_compiled_networks_train_as_eager_ones(tmp_path, top, options):
    """Six steps; later steps replay CUDA graphs that were captured at earlier weights. Without noise, experts that are
    still equal make rounding of scores harmless."""
    losses = {False: [], True: []}
    for compiled, history in losses.items():
        torch.compiler.reset()
        torch.manual_seed(0)
        net, x = transformer("vit", tmp_path, experts={"count": 4, "at": [0, 2], "inner": 8, "top": top, "noise": 0.0})
        net, x = net.to("cuda").train(), to(x, "cuda")
        for layer in net.stack() if compiled else ():
            layer.compile(options=options)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            with tape() as side, torch.autocast("cuda", torch.bfloat16):
                loss = (net(x).float() - 1).square().mean() + sum(side["loss/experts"])
            assert len(side["experts/chosen"]) == 2
            optimizer.zero_grad()
            loss.backward()
            assert all(bool(p.grad.isfinite().all()) for layer in net.stack() for p in layer.parameters())
            optimizer.step()
            history.append(loss.item())
    assert losses[False][-1] < 0.9 * losses[False][0]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


def tensors(t):
    """Tokens and weights."""
    shapes = [
        (t, WIDTH), (EXPERTS, HIDDEN, WIDTH), (EXPERTS, HIDDEN), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, WIDTH),
        (INNER, WIDTH), (INNER,), (EXPERTS, INNER), (),
    ]  # fmt: skip
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]


def operator_calls(config, masked, bias, t, device):
    """Operator, arguments and outputs of the forward pass, and of the backward pass of its outputs."""
    u, *rest = (tensor.to(device) for tensor in tensors(t))
    weights = Weights(*rest) if bias else Weights(*rest)._replace(up_bias=None, down_bias=None)
    mask, rows = torch.arange(t, device=device) % 3 != 1 if masked else None, u.to(torch.bfloat16)
    forward, backward = torch.ops.holdfast.experts_forward, torch.ops.holdfast.experts_backward
    arguments = u, mask, rows, True, not masked, *weights, *config.values()
    outputs = forward(*arguments)
    results = 8 if config["weight"] else 4
    by_loss = torch.ones_like(outputs[4]) if config["weight"] else None
    saved, needs_grad = [*outputs[1:3], *outputs[results:]], [tensor is not None for tensor in (u, *weights)]
    grads = mask, rows, saved, needs_grad, not masked, torch.ones_like(outputs[0]), by_loss, *weights, *config.values()
    return (forward, arguments, outputs), (backward, grads, backward(*grads))


@pytest.mark.parametrize(
    ("changes", "masked", "bias"),
    [
        ({}, False, True),
        ({"top": 1, "gate": "raw", "noise": 0.0}, True, True),
        ({"weight": 0.0}, False, False),
        ({"form": "tutel", "top": 3}, True, False),
    ],
)
def test_operators_have_correct_fake_shapes_and_share_no_memory(bf16_device, changes, masked, bias):
    for operator, arguments, outputs in operator_calls(CONFIG | changes, masked, bias, 37, bf16_device):
        with FakeTensorMode() as mode:

            def fake(value, mode=mode):
                if isinstance(value, list):
                    return [fake(item) for item in value]
                return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

            shapes = operator(*map(fake, arguments))
        for a, b in zip(outputs, shapes, strict=True):
            assert (a.shape, a.dtype, a.stride(), a.device) == (b.shape, b.dtype, b.stride(), b.device)
        flat = [item for value in arguments for item in (value if isinstance(value, list) else [value])]
        storages = [output.untyped_storage().data_ptr() for output in outputs if output.numel()]
        assert len(set(storages)) == len(storages)
        assert not set(storages) & {x.untyped_storage().data_ptr() for x in flat if isinstance(x, torch.Tensor)}
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("top", [1, 2])
def test_a_symbolic_number_of_tokens_stays_symbolic(top):
    """On fake tensors, as a compiler sees the layer: no kernel is launched."""
    pytest.importorskip("triton")
    config, mode = Config(**CONFIG | {"top": top}), FakeTensorMode(shape_env=ShapeEnv())
    free = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    inputs = (mode.from_tensor(x, symbolic_context=None if i else free) for i, x in enumerate(tensors(37)))
    u, *weights = leaves = [x.requires_grad_() for x in inputs]
    with mode:
        out, loss, stats = fast.compiled_forward(u, torch.bfloat16, config, Weights(*weights), None, replay=True)
        grads = torch.autograd.grad(out.float().sum() + loss, leaves)
    t = u.shape[0]
    assert isinstance(t, torch.SymInt)
    assert t.node.expr.free_symbols
    assert (out.shape, out.dtype) == ((t, WIDTH), torch.bfloat16)
    assert (stats.chosen.shape, stats.scores.shape, stats.load.shape) == ((t, top), (t, EXPERTS), (EXPERTS,))
    assert not any(x.requires_grad for x in (stats.scores, stats.chosen, stats.load, *stats.losses))
    for grad, leaf in zip(grads, leaves, strict=True):
        assert (grad.shape, grad.dtype) == (leaf.shape, leaf.dtype)


def test_bf16_weights_take_the_reference_path(bf16_device):
    """Their addresses, and so their alignment, are not known before the program runs."""
    layer, x = block(bf16_device, noise=0.0).bfloat16(), tokens(4, bf16_device, grad=False)
    collector = GraphCollector()
    with torch.no_grad():
        outputs = [m(x.bfloat16()) for m in (torch.compile(layer, backend=collector, fullgraph=True), layer)]
    assert collector.operators() == [0]
    torch.testing.assert_close(*outputs, rtol=0.05, atol=0.05)


def test_device_properties_are_constants_of_the_compiler(monkeypatch):
    calls, device, collector = [], torch.device("cuda"), GraphCollector("eager")
    monkeypatch.setattr(fast, "usable", lambda *arguments: calls.append(arguments) or arguments)
    monkeypatch.setattr(dispatch, "_capability", lambda device: calls.append(device) or (9, 0))

    def function(x):
        supported = fast._has_kernels(device, torch.float32) and dispatch._device_has_grouped_mm(device)
        return x + 1 if supported else x - 1

    compiled = torch.compile(function, backend=collector, fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist() == [2, 2]
    assert calls == [("experts", device, torch.float32), device]
    assert len(collector.graphs) == 1


@pytest.mark.parametrize(("backend", "replays"), [("cudagraphs", False), ("aot_eager", True)])
def test_no_replay_inside_a_backend_with_cuda_graphs(monkeypatch, backend, replays):
    monkeypatch.setattr(fast, "grouped_mm_is_asynchronous", lambda _: True)
    torch.compiler.reset()

    def function(x):
        return x + 1 if fast._may_replay(x.device) else x - 1

    out = torch.compile(function, backend=backend, fullgraph=True)(torch.ones(2))
    assert out.tolist() == ([2, 2] if replays else [0, 0])
