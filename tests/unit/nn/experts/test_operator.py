"""A layer as an operator: one graph, the values, gradients and tape of the uncompiled layer, and shapes known before.

Whatever is compiled is so for shapes of any length from the second one on.
"""

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
from holdfast.nn.experts.layer import SparseMoE, exclude_padding
from holdfast.nn.experts.fast import compiled_forward
from holdfast.nn.experts.fused import Config, Weights
from tests.unit.nn.transformers import transformer

HOW = {"top": 2, "renormalise": True, "noise": 0.25, "weight": 0.5, "sigma": 0.25, "form": "logit", "detach": False}
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of its compilers: each version has others
WIDTH, HIDDEN, INNER, EXPERTS = 24, 40, 32, 6


class Block(nn.Module):
    """Something to fuse on both sides; the tokens that experts see are those that were given, to the last bit."""

    def __init__(self, *, bias: bool = True, **options) -> None:
        super().__init__()
        self.feed = SparseMoE(WIDTH, HIDDEN, nn.GELU(), inner=INNER, **options, bias=bias)

    def forward(self, x):
        return 0.5 * x + self.feed(x).float() * 2


class Graphs:
    """A backend of the compiler that keeps what it is given, and leaves it to another."""

    def __init__(self, backend: str) -> None:
        self.seen, self.backend = [], backend

    def __call__(self, graph, inputs):
        self.seen.append(graph)
        return torch._dynamo.lookup_backend(self.backend)(graph, inputs)

    def operators(self) -> list[int]:
        """Of each graph, how many layers of experts it has."""
        ours = torch.ops.holdfast.experts, torch.ops.holdfast.experts.default
        return [sum(node.target in ours for node in graph.graph.nodes) for graph in self.seen]


def fresh(backend: str = "aot_eager") -> Graphs:
    torch.compiler.reset()
    return Graphs(backend)


def passed(layer, x, learned, *, learns=True, listens=True, seed=1):
    """The output, what a tape heard, and all gradients, in bf16."""
    torch.manual_seed(seed)
    device = x.device.type
    hears = tape() if listens else nullcontext({})
    with hears as side, torch.autocast(device, torch.bfloat16), torch.set_grad_enabled(learns):
        out = layer(x)
    grads = ()
    if learns:
        loss = out.float().square().sum() + sum(side.get("loss/experts", []))
        grads = torch.autograd.grad(loss, learned, allow_unused=True)
    return out, dict(side), grads


def alike(found, wanted, *, close=0.0):
    """All of it, with the same gradients missing; up to rounding where kernels differ."""
    (out, side, grads), (other, heard, others) = found, wanted
    assert side.keys() == heard.keys()
    pairs = [(out, other), *zip(grads, others, strict=True)]
    for name, values in side.items():
        pairs += zip(values, heard[name], strict=True)
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, b.requires_grad)
        if close and a.is_floating_point():
            apart = (a.detach().float() - b.detach().float()).abs().max()
            assert apart <= close * b.detach().abs().max().clamp_min(1e-3)
        else:
            assert torch.equal(a, b)


def tokens(batch, device, *, learns=True):
    given = torch.randn(batch, 10, WIDTH, generator=torch.Generator().manual_seed(batch))
    return given.to(device).requires_grad_(learns)


def block(device, *, training=True, **options) -> Block:
    torch.manual_seed(0)
    return Block(**options).to(device).train(training)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_compiled_it_is_one_graph_and_the_same_to_the_last_bit(by_narrow_kernels, top, bias, training):
    made, graphs = block(by_narrow_kernels, training=training, top=top, bias=bias), fresh()
    compiled = torch.compile(made, backend=graphs, fullgraph=True)
    for batch in (4, 6, 7):  # the second length makes shapes free, so the third is nothing new
        x = tokens(batch, by_narrow_kernels)
        learned = x, *made.parameters()
        ways = [passed(layer, x, learned, learns=training) for layer in (compiled, made)]
        alike(*ways)
        assert ("loss/experts" in ways[0][1]) == training
    assert graphs.operators() == [1, 1]


@pytest.mark.parametrize(
    "options",
    [{"noise": 0.0}, {"balance": 0.0}, {"form": "tutel", "threshold_learns": False}, {"temperature_learned": False}],
)
@pytest.mark.parametrize("listens", [True, False])
def test_whatever_is_left_out_is_left_out_compiled_too(by_narrow_kernels, options, listens):
    made, graphs, x = block(by_narrow_kernels, **options), fresh(), tokens(4, by_narrow_kernels)
    compiled = torch.compile(made, backend=graphs, fullgraph=True)
    learned = x, *made.parameters()
    alike(*(passed(layer, x, learned, listens=listens) for layer in (compiled, made)))
    assert graphs.operators() == [1]


@pytest.mark.parametrize("learns", ["up_proj", "down_proj_bias", "router", "directions", "none"])
def test_what_is_frozen_changes_no_other_gradient(by_narrow_kernels, learns):
    made, x = block(by_narrow_kernels), tokens(4, by_narrow_kernels, learns=learns == "none")
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(learns in name)
    learned = [each for each in (x, *made.parameters()) if each.requires_grad]
    compiled = torch.compile(made, backend=fresh(), fullgraph=True)
    alike(*(passed(layer, x, learned) for layer in (compiled, made)))


def test_padding_counts_in_no_loss_compiled_too(by_narrow_kernels):
    made, graphs, x = block(by_narrow_kernels), fresh(), tokens(4, by_narrow_kernels)
    mask = torch.arange(40, device=by_narrow_kernels).view(4, 10) % 3 != 0
    compiled, learned = torch.compile(made, backend=graphs, fullgraph=True), (x, *made.parameters())
    with exclude_padding(mask):
        ways = [passed(layer, x, learned) for layer in (compiled, made)]
    alike(*ways)
    assert torch.equal(ways[0][1]["experts/real"][0], mask)
    assert graphs.operators() == [1]


@pytest.mark.parametrize("which", ["out", "loss"])
def test_either_output_alone_has_its_gradients(by_narrow_kernels, which):
    made, x = block(by_narrow_kernels).feed, tokens(4, by_narrow_kernels)
    learned, found = (x, *made.parameters()), []
    for layer in (torch.compile(made, backend=fresh(), fullgraph=True), made):
        torch.manual_seed(1)
        with tape() as side, torch.autocast(x.device.type, torch.bfloat16):
            out = layer(x)
        total = out.float().sum() if which == "out" else side["loss/experts"][0]
        found.append(torch.autograd.grad(total, learned, allow_unused=True, materialize_grads=True))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_each_call_draws_anew_and_as_the_uncompiled_layer_does(by_narrow_kernels):
    made, x = block(by_narrow_kernels, noise=4.0), tokens(4, by_narrow_kernels, learns=False)
    compiled, heard = torch.compile(made, backend=fresh(), fullgraph=True), []
    for layer in (compiled, made):
        torch.manual_seed(3)
        with tape() as side, torch.autocast(x.device.type, torch.bfloat16):
            layer(x)
            layer(x)
        heard.append(side["experts/chosen"])
    assert not torch.equal(*heard[0])
    assert all(torch.equal(a, b) for a, b in zip(*heard, strict=True))


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_layers_of_a_network_are_one_graph_each(by_narrow_kernels, tmp_path, top, training):
    """The first batch and its size, then another."""
    net, x = transformer("vit", tmp_path, experts={"count": 4, "at": [0, 2], "inner": 8, "top": top})
    net, x, graphs = net.to(by_narrow_kernels).train(training), to(x, by_narrow_kernels), fresh()
    batches, learned = (x, x[:4]), tuple(net.parameters())

    def run(given):
        torch.manual_seed(1)
        with tape() as side, torch.autocast(by_narrow_kernels.type, torch.bfloat16), torch.set_grad_enabled(training):
            out = net(given)
        loss = out.float().square().sum() + sum(side.get("loss/experts", []))
        return out, dict(side), torch.autograd.grad(loss, learned, allow_unused=True) if training else ()

    wanted = [run(each) for each in batches]
    for layer in net.stack():
        layer.compile(backend=graphs, fullgraph=True)
    for given, plain in zip(batches, wanted, strict=True):
        alike(run(given), plain, close=0.02)  # a GPU adds up gradients of attention in any order
    assert Counter(graphs.operators()) == {0: 2, 1: 2}  # two with experts are one, for each of two lengths


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_fused_with_what_lies_around_it_the_same_comes_out(top, bias, training):
    device = torch.device("cuda")
    made, graphs = block(device, training=training, top=top, bias=bias), fresh("inductor")
    compiled = torch.compile(made, backend=graphs, fullgraph=True)
    for batch in (4, 6, 7):
        x = tokens(batch, device)
        learned = x, *made.parameters()
        alike(*(passed(layer, x, learned, learns=training) for layer in (compiled, made)), close=0.02)
    assert graphs.operators() == [1, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("top", [1, 2])
def test_layers_of_a_network_are_fused_and_learn(tmp_path, top):
    """Experts are still alike, so that a token whose choice rounding moves comes out the same."""
    net, x = transformer("vit", tmp_path, experts={"count": 4, "at": [0, 2], "inner": 8, "top": top, "noise": 0.0})
    net, x, graphs = net.to("cuda").train(), to(x, "cuda"), fresh("inductor")
    outs = []
    for compiled in (False, True):
        for layer in net.stack() if compiled else ():
            layer.compile(backend=graphs, fullgraph=True)
        with tape() as side, torch.autocast("cuda", torch.bfloat16):
            out = net(x)
        outs.append(out.detach().float())
        net.zero_grad()
        (out.float().square().sum() + sum(side["loss/experts"])).backward()
        assert len(side["experts/chosen"]) == 2
        for layer in net.stack():
            assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())
    assert (outs[0] - outs[1]).abs().max() <= 0.05 * outs[0].abs().max()
    assert Counter(graphs.operators()) == {0: 1, 1: 1}


@pytest.mark.gpu
@pytest.mark.parametrize("by_compiler", [True, False])
@pytest.mark.parametrize("top", [1, 2])
def test_layers_that_a_gpu_replays_go_down_as_others_do(tmp_path, top, by_compiler):
    """Six steps: what is replayed in the last ones was recorded at other weights."""
    losses = []
    for recorded in (False, True):
        torch.compiler.reset()
        torch.manual_seed(0)
        net, x = transformer("vit", tmp_path, experts={"count": 4, "at": [0, 2], "inner": 8, "top": top, "noise": 0.0})
        net, x, losses = net.to("cuda").train(), to(x, "cuda"), [*losses, []]
        for layer in net.stack() if recorded else ():
            layer.compile(options={"triton.cudagraphs": by_compiler})
        descent = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            with tape() as side, torch.autocast("cuda", torch.bfloat16):
                loss = (net(x).float() - 1).square().mean() + sum(side["loss/experts"])
            descent.zero_grad()
            loss.backward()
            descent.step()
            losses[-1].append(loss.item())
    plain, replayed = losses
    assert plain[-1] < 0.9 * plain[0]
    assert replayed == pytest.approx(plain, rel=0.02)


def tensors(t):
    """Tokens and parts."""
    shapes = [
        (t, WIDTH), (EXPERTS, HIDDEN, WIDTH), (EXPERTS, HIDDEN), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, WIDTH),
        (INNER, WIDTH), (INNER,), (EXPERTS, INNER), (),
    ]  # fmt: skip
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]


def calls(how, some, bias, t, device):
    """The arguments of both operators; those of the way back with what comes of the way there."""
    u, *own = (each.to(device) for each in tensors(t))
    parts = Weights(*own) if bias else Weights(*own)._replace(up_bias=None, down_bias=None)
    real, rows = torch.arange(t, device=device) % 3 != 1 if some else None, u.to(torch.bfloat16)
    there = u, real, rows, True, not some, *parts, *how.values()
    found = torch.ops.holdfast.experts_forward(*there)
    told = 8 if how["weight"] else 4
    by_loss = torch.ones_like(found[4]) if how["weight"] else None
    kept = [*found[1:3], *found[told:]]
    learned = [each is not None for each in (u, *parts)]
    back = real, rows, kept, learned, not some, torch.ones_like(found[0]), by_loss, *parts, *how.values()
    return (torch.ops.holdfast.experts_forward, there, found), (
        torch.ops.holdfast.experts_backward, back, torch.ops.holdfast.experts_backward(*back)
    )  # fmt: skip


CASES = [
    ({}, False, True),
    ({"top": 1, "renormalise": False, "noise": 0.0}, True, True),
    ({"weight": 0.0}, False, False),
    ({"form": "tutel", "top": 3}, True, False),
]


@pytest.mark.parametrize(("options", "some", "bias"), CASES)
def test_shapes_without_numbers_are_those_that_come_and_no_memory_is_shared(by_narrow_kernels, options, some, bias):
    for operator_, given, found in calls(HOW | options, some, bias, 37, by_narrow_kernels):
        with FakeTensorMode() as mode:

            def fake(each, mode=mode):
                return mode.from_tensor(each) if isinstance(each, torch.Tensor) else each

            shapes = operator_(*([fake(e) for e in each] if isinstance(each, list) else fake(each) for each in given))
        for a, b in zip(found, shapes, strict=True):
            assert (a.shape, a.dtype, a.stride(), a.device) == (b.shape, b.dtype, b.stride(), b.device)
        inputs = [e for each in given for e in (each if isinstance(each, list) else [each])]
        held = [each.untyped_storage().data_ptr() for each in found if each.numel()]
        assert len(set(held)) == len(held)
        assert not set(held) & {e.untyped_storage().data_ptr() for e in inputs if isinstance(e, torch.Tensor)}


@pytest.mark.parametrize(("options", "some", "bias"), CASES)
def test_torch_itself_finds_no_fault_with_the_operators(by_narrow_kernels, options, some, bias):
    for operator_, given, _ in calls(HOW | options, some, bias, 37, by_narrow_kernels):
        torch.library.opcheck(operator_, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("top", [1, 2])
def test_a_length_that_is_not_known_stays_so_there_and_back(top):
    """As a compiler sees it: no kernel, and a number of tokens that stands for all."""
    pytest.importorskip("triton")
    how, mode = Config(**HOW | {"top": top}), FakeTensorMode(shape_env=ShapeEnv())
    free = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    given = (mode.from_tensor(each, symbolic_context=None if i else free) for i, each in enumerate(tensors(37)))
    u, *parts = learned = [each.requires_grad_() for each in given]
    with mode:
        out, loss, told = compiled_forward(u, torch.bfloat16, how, Weights(*parts), None, replay=True)
        grads = torch.autograd.grad(out.float().sum() + loss, learned)
    t = u.shape[0]
    assert isinstance(t, torch.SymInt)
    assert t.node.expr.free_symbols
    assert (out.shape, out.dtype) == ((t, WIDTH), torch.bfloat16)
    assert (told.chosen.shape, told.scores.shape, told.load.shape) == ((t, top), (t, EXPERTS), (EXPERTS,))
    assert told.losses is not None
    assert not [each for each in (told.scores, told.chosen, told.load, *told.losses) if each.requires_grad]
    for grad, each in zip(grads, learned, strict=True):
        assert (grad.shape, grad.dtype) == (each.shape, each.dtype)


def test_weights_that_are_narrow_already_go_the_plain_way(by_narrow_kernels):
    """Nobody can say, before it runs, at which addresses they will lie."""
    made, x = block(by_narrow_kernels, noise=0.0).bfloat16(), tokens(4, by_narrow_kernels, learns=False)
    graphs = fresh()
    compiled = torch.compile(made, backend=graphs, fullgraph=True)
    with torch.no_grad():
        found, wanted = (layer(x.bfloat16()) for layer in (compiled, made))
    assert graphs.operators() == [0]
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)


def test_what_a_device_can_do_is_a_constant_to_a_compiler(monkeypatch):
    asked, device, graphs = [], torch.device("cuda"), fresh("eager")
    monkeypatch.setattr(fast, "usable", lambda *which: asked.append(which) or which)
    monkeypatch.setattr(dispatch, "_capability", lambda device: asked.append(device) or (9, 0))

    def supported(x):
        return x + 1 if fast._has_kernels(device, torch.float32) and dispatch._device_has_grouped_mm(device) else x - 1

    found = torch.compile(supported, backend=graphs, fullgraph=True)
    assert found(torch.ones(2)).tolist() == found(torch.ones(2)).tolist() == [2, 2]
    assert asked == [("experts", device, torch.float32), device]
    assert len(graphs.seen) == 1


@pytest.mark.parametrize(("backend", "replays"), [("cudagraphs", False), ("aot_eager", True)])
def test_a_backend_that_records_is_left_to_it(monkeypatch, backend, replays):
    monkeypatch.setattr(fast, "grouped_mm_is_asynchronous", lambda _: True)
    torch.compiler.reset()

    def told(x):
        return x + 1 if fast._may_replay(x.device) else x - 1

    found = torch.compile(told, backend=backend, fullgraph=True)(torch.ones(2))
    assert found.tolist() == ([2, 2] if replays else [0, 0])
