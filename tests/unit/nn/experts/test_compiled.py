"""The layer under torch.compile: its reference path in one graph, with values, gradients and records of that path."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from holdfast.accel import fused_experts
from holdfast.accel.registry import without_kernels
from holdfast.core.inputs import to
from holdfast.core.tape import tape
from holdfast.nn.experts.layer import SparseMoE, exclude_padding
from holdfast.ops import expert_dispatch as dispatch
from tests.devices import GPU
from tests.unit.nn.transformers import transformer

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of torch's compilers differ between versions
WIDTH, HIDDEN, INNER = 24, 40, 32


class Block(nn.Module):
    """An expert layer with operations to fuse on both sides; the experts see exactly the input."""

    def __init__(self, *, bias: bool = True, **settings) -> None:
        super().__init__()
        self.feed = SparseMoE(WIDTH, HIDDEN, bias=bias, inner=INNER, **settings)

    def forward(self, x):
        return 0.5 * x + self.feed(x).float() * 2


class GraphCollector:
    """A compiler backend that keeps the graphs it receives."""

    def __init__(self) -> None:
        torch.compiler.reset()
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


@pytest.fixture(params=["cpu", GPU], autouse=True)
def device(request) -> Iterator[torch.device]:
    """A device whose eager layer takes the reference path too."""
    with without_kernels("experts"):
        yield torch.device(request.param)


def run(layer, x, leaves, seed=1):
    """Output, records and gradients in bf16."""
    torch.manual_seed(seed)
    with tape() as side, torch.autocast(x.device.type, torch.bfloat16):
        out = layer(x)
    loss = out.float().square().sum() + sum(side["loss/experts"])
    return out, dict(side), torch.autograd.grad(loss, leaves, allow_unused=True)


def assert_equal_runs(actual, expected, tolerance=0.02):
    """Compare relative to the largest entry; the same gradients are missing."""
    (out, side, grads), (other, other_side, other_grads) = actual, expected
    assert side.keys() == other_side.keys()
    pairs = [(out, other), *zip(grads, other_grads, strict=True)]
    for name, values in side.items():
        pairs += zip(values, other_side[name], strict=True)
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            difference = (a.detach().float() - b.detach().float()).abs().max()
            assert difference <= tolerance * b.detach().float().abs().max().clamp_min(1e-3)


def tokens(batch, device):
    x = torch.randn(batch, 10, WIDTH, generator=torch.Generator().manual_seed(batch))
    return x.to(device).requires_grad_()


@pytest.mark.parametrize("settings", [{"top": 1}, {"top": 2}, {"bias": False}, {"balance": 0.0}, {"form": "tutel"}])
def test_one_graph_for_all_lengths_equals_the_eager_layer(device, settings):
    torch.manual_seed(0)
    layer, collector = Block(noise=0.0, **settings).to(device), GraphCollector()
    compiled = torch.compile(layer, backend=collector, fullgraph=True)
    for batch in (4, 6, 7):  # after the second length shapes are dynamic
        x = tokens(batch, device)
        assert_equal_runs(*(run(module, x, (x, *layer.parameters())) for module in (compiled, layer)))
    assert len(collector.graphs) == 2


def test_padding_is_excluded_from_losses(device):
    layer, x = Block(noise=0.0).to(device), tokens(4, device)
    mask = torch.arange(40, device=device).view(4, 10) % 3 != 0
    compiled, leaves = torch.compile(layer, backend=GraphCollector(), fullgraph=True), (x, *layer.parameters())
    with exclude_padding(mask):
        runs = [run(module, x, leaves) for module in (compiled, layer)]
    assert_equal_runs(*runs)
    assert torch.equal(runs[0][1]["experts/real"][0], mask)


def test_the_compiler_takes_the_reference_path_where_kernels_exist(device, monkeypatch):
    monkeypatch.setattr(fused_experts, "kernels", lambda *_: pytest.fail("kernels are for eager layers"))
    layer = Block().to(device)
    with torch.autocast(device.type, torch.bfloat16):
        torch.compile(layer, backend=GraphCollector(), fullgraph=True)(tokens(4, device))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"triton.cudagraphs": True}])
@pytest.mark.parametrize("top", [1, 2])
def test_compiled_networks_train_as_eager_ones(tmp_path, top, options):
    """Six steps. Without noise, experts that are still equal make rounding of scores harmless."""
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


def test_device_properties_are_constants_of_the_compiler(monkeypatch):
    calls, device, collector = [], torch.device("cuda"), GraphCollector()
    monkeypatch.setattr(dispatch, "_capability", lambda device: calls.append(device) or (9, 0))

    def function(x):
        return x + 1 if dispatch._device_has_grouped_mm(device) else x - 1

    compiled = torch.compile(function, backend=collector, fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist() == [2, 2]
    assert calls == [device]
    assert len(collector.graphs) == 1
