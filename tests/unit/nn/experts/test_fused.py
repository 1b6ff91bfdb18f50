"""Fused kernels: values, both derivatives and statistics of the layer's equations; the forced reference path."""

import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from holdfast.accel import fused_experts as module
from holdfast.accel.fused_experts import Config, Weights, fused_experts, supported
from holdfast.accel.registry import without_kernels
from holdfast.core.tape import tape
from holdfast.nn.experts.layer import SparseMoE, exclude_padding
from holdfast.ops.routing import MAX_SCALE

pytestmark = pytest.mark.usefixtures("any_width")
CONFIG = Config(top=2, gate="preserving", noise=0.25, weight=0.5, sigma=0.25, form="logit")
SIZES = (37, 6, 24, 40, 64)  # tokens, experts, width, hidden width, inner width
# sizes, changes of the configuration, whether a mask excludes tokens
CASES = [
    ((1, 1, 8, 8, 5), {"top": 1}, False),
    (SIZES, {}, False),
    (SIZES, {"top": 1, "gate": "raw"}, True),
    (SIZES, {"gate": "raw"}, True),
    (SIZES, {"top": 3}, True),
    ((70, 5, 40, 136, 300), {"gate": "raw"}, False),
    ((150, 20, 8, 24, 37), {"top": 4, "noise": 0.0}, False),
    ((300, 32, 72, 8, 16), {"top": 3, "gate": "raw"}, True),
    ((70, 5, 40, 136, 300), {"weight": 0.0}, False),
]


def case(sizes, device):
    """Tokens and weights; no token chooses the second of five or more experts."""
    t, e, d, h, q = sizes
    shapes = [(t, d), (e, h, d), (e, h), (e, d, h), (e, d), (q, d), (q,), (e, q)]
    u, *weights = (torch.randn(s, generator=torch.Generator().manual_seed(i)) for i, s in enumerate(shapes))
    for weight in (weights[0], weights[2]):
        weight /= weight.shape[-1] ** 0.5
    if e > 4:
        weights[4][0], weights[5][0], weights[6][:, 0], weights[6][1, 0] = 0.0, 30.0, 1.0, -60.0
    return [tensor.to(device) for tensor in (u, *weights, torch.tensor(0.7))]


def masked(t, device, excluded):
    return torch.arange(t, device=device) % 3 != 1 if excluded else None


def draw_noise(config, t, e, device):
    torch.manual_seed(5)
    return torch.randn(t, e, device=device) if config.noise else torch.zeros(t, e, device=device)


def fused(config, mask, u, *weights):
    torch.manual_seed(5)
    return fused_experts(u, u.dtype, config, Weights(*weights), mask)


def naive(config, mask, noise, u, up, up_bias, down, down_bias, weight, bias, directions, log_scale):
    """Every expert on every token; states, loss, both losses, importance, scores, choices and their load."""
    query, e = u @ weight.T + bias, len(up)
    clean = log_scale.exp() * F.cosine_similarity(query[:, None], directions[None], dim=-1, eps=1e-12)
    noisy = clean + config.noise * noise
    chosen = noisy.detach().argsort(dim=-1, descending=True, stable=True)[:, : config.top]
    gates = noisy.softmax(-1).gather(1, chosen)
    total = gates.sum(-1, keepdim=True)
    gates = gates / {"raw": 1, "renormalised": total, "preserving": total.detach()}[config.gate]
    hidden = F.gelu(torch.einsum("td,ehd->teh", u, up) + up_bias)
    y = torch.einsum("teh,edh->ted", hidden, down) + down_bias
    out = torch.einsum("te,ted->td", torch.zeros_like(clean).scatter(1, chosen, gates), y)
    share, threshold = clean.softmax(-1), noisy.gather(1, chosen[:, -1:])
    margin = (clean if config.form == "logit" else share) - threshold
    probabilities = (1 + torch.erf(margin / config.sigma / math.sqrt(2))) / 2
    counted = torch.ones(len(u), 1, device=u.device) if mask is None else mask[:, None]
    amounts = [(x * counted).sum(0) for x in (share, probabilities)]
    divisor = e if config.form == "logit" else max(1, e - 1)
    losses = [((a - a.mean()) ** 2).sum() / divisor / (a.mean() ** 2 + 1e-10) for a in amounts]
    load = torch.bincount(chosen.flatten(), minlength=e) / chosen.numel()
    return out, config.weight * sum(losses), *losses, amounts[0] / amounts[0].sum(), clean, chosen, load


@pytest.mark.parametrize(("sizes", "changes", "excluded"), CASES)
def test_values_derivatives_and_statistics(kernel_device, assert_derivatives, sizes, changes, excluded):
    config, inputs = CONFIG._replace(**changes), case(sizes, kernel_device)
    mask, noise = masked(sizes[0], kernel_device, excluded), draw_noise(config, *sizes[:2], kernel_device)
    count = 2 if config.weight else 1
    assert_derivatives(
        lambda *tensors: fused(config, mask, *tensors)[:count],
        lambda *tensors: naive(config, mask, noise.double(), *tensors)[:count],
        inputs, tolerance=2e-4, twice=False,
    )  # fmt: skip
    out, loss, stats = fused(config, mask, *inputs)
    expected = naive(config, mask, noise, *inputs)
    torch.testing.assert_close(stats.scores, expected[5], rtol=1e-4, atol=1e-5)
    assert torch.equal(stats.chosen, expected[6])
    assert stats.chosen.dtype == torch.int64
    torch.testing.assert_close(stats.load, expected[7])
    assert (loss is None) == (stats.losses is None) == (config.weight == 0)
    for a, b in zip(stats.losses or (), expected[2:5], strict=False):
        assert not a.requires_grad
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(fused(config, mask, *inputs)[0], out)


def test_scale_at_its_limit_and_zero_norms(kernel_device):
    u, *weights, _ = case((4, 3, 8, 8, 8), kernel_device)
    u[1] = weights[5][:] = weights[6][2] = 0  # a query and a direction of norm zero
    inputs = [tensor.requires_grad_() for tensor in (u, *weights, torch.tensor(9.0, device=kernel_device))]
    out, loss, stats = fused(CONFIG._replace(top=1, gate="raw", noise=0.0), None, *inputs)
    expected = MAX_SCALE * F.cosine_similarity((u[0] @ weights[4].T)[None], weights[6][:2], dim=-1)
    torch.testing.assert_close(stats.scores[0, :2], expected.detach(), rtol=1e-4, atol=1e-3)
    grads = torch.autograd.grad(out.sum() + loss, inputs)
    assert grads[-1] == 0
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
def test_nan_scores_choose_an_existing_expert(kernel_device):
    inputs = case((5, 6, 8, 8, 8), kernel_device)
    inputs[0][2] = math.nan
    out, _, stats = fused(CONFIG, None, *inputs)
    assert 0 <= int(stats.chosen.min()) <= int(stats.chosen.max()) < 6
    assert bool(out[[0, 1, 3, 4]].isfinite().all())


def test_many_blocks_are_deterministic(kernel_device):
    inputs = [tensor.requires_grad_() for tensor in case((300, 6, 24, 40, 64), kernel_device)]
    out, loss, *_ = naive(CONFIG, None, draw_noise(CONFIG, 300, 6, kernel_device), *inputs)
    expected, results = (out, *torch.autograd.grad(out.sum() + loss, inputs)), []
    for _ in range(2):
        out, loss, stats = fused(CONFIG, None, *inputs)
        results.append((out, *torch.autograd.grad(out.sum() + loss, inputs), stats.load))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    for a, b in zip(results[0][:-1], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("trained", [(0,), (1,), (3,), (2, 4), (8,), (5, 7), (1, 2, 3, 4), (0, 6)])
def test_frozen_weights_change_no_other_gradient(kernel_device, trained):
    leaves = [tensor.requires_grad_() for tensor in case(SIZES, kernel_device)]
    some = [leaf if i in trained else leaf.detach() for i, leaf in enumerate(leaves)]
    totals = (sum(x.square().sum() for x in fused(CONFIG, None, *tensors)[:2]) for tensors in (leaves, some))
    grads = (torch.autograd.grad(total, [leaves[i] for i in trained], retain_graph=True) for total in totals)
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_strided_weights_and_in_place_changes_of_the_loss(kernel_device):
    inputs = case((36, 6, 24, 40, 64), kernel_device)
    strided = [x.T.contiguous().T if x.ndim == 2 else x for x in inputs]
    assert not strided[2].is_contiguous()
    results = []
    for tensors in (inputs, strided):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out, loss, _ = fused(CONFIG, None, *leaves)
        loss *= 1
        results.append((out, loss, *torch.autograd.grad(out.sum() + loss, leaves)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_gradients_of_either_output_alone_and_of_none(kernel_device):
    inputs = [tensor.requires_grad_() for tensor in case(SIZES, kernel_device)]
    both = torch.autograd.grad(sum(x.sum() for x in fused(CONFIG, None, *inputs)[:2]), inputs)
    first, second = (
        torch.autograd.grad(fused(CONFIG, None, *inputs)[i].sum(), inputs, allow_unused=True) for i in (0, 1)
    )
    assert [grad is None for grad in second] == [False, *[True] * 4, *[False] * 4]  # the loss is one of the router
    for total, one, other in zip(both, first, second, strict=True):
        torch.testing.assert_close(total, one if other is None else one + other, rtol=1e-3, atol=1e-4)
    for again in (False, True):
        total = NoGradient.apply(fused(CONFIG, None, *inputs)[0]).sum()
        assert set(torch.autograd.grad(total, inputs, create_graph=again, allow_unused=True)) == {None}


def test_bf16_products_only_round(kernel_device):
    """Scores stay in fp32, so tokens choose the same experts."""
    inputs, results = [tensor.requires_grad_() for tensor in case((70, 5, 40, 136, 64), kernel_device)], []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(5)
        out, loss, stats = fused_experts(inputs[0], dtype, CONFIG, Weights(*inputs[1:]), None)
        assert out.dtype == dtype
        grads = torch.autograd.grad(out.float().square().sum() + loss, inputs)
        results.append((stats.chosen, out.float(), loss, *grads))
    assert torch.equal(results[0][0], results[1][0])
    for a, b in zip(results[0][1:], results[1][1:], strict=True):
        assert a.dtype == b.dtype
        assert bool((a - b).detach().abs().max() <= 0.05 * b.detach().abs().max())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("options", [{"balance": 0.0}, {"balance": 0.01}, {"top": 1}, {"top": 3}])
def test_fused_layer_equals_the_reference_path(kernel_device, training, padded, recording, options):
    torch.manual_seed(0)
    layer = SparseMoE(24, 40, inner=32, **options)
    layer.to(kernel_device).train(training)
    nn.init.normal_(layer.down_proj_bias)
    u = torch.randn(6, 7, 24, device=kernel_device, requires_grad=True)
    mask = (torch.arange(42, device=kernel_device).view(7, 6) % 4 != 0).T if padded else None  # not contiguous
    results, nodes = [], []
    for left_out in ((), ("experts",)):
        torch.manual_seed(1)
        padding, side = exclude_padding(mask) if padded else nullcontext(), {}
        with without_kernels(*left_out), padding, tape() if recording else nullcontext(side) as side:
            out = layer(u)
        nodes.append("FusedExperts" in str(out.grad_fn.next_functions[0][0]))
        loss = out.square().sum() + sum(side.get("loss/experts", []))
        results.append({"out": [out], "grads": torch.autograd.grad(loss, (u, *layer.parameters())), **side})
    assert nodes == [True, False]
    assert results[0].keys() == results[1].keys()
    assert ("share/experts/importance" in results[0]) == (recording and training)
    assert ("loss/experts" in results[0]) == (recording and training and layer.settings.balance > 0)
    assert ("experts/real" in results[0]) == (recording and padded)
    for name, values in results[0].items():
        for a, b in zip(values, results[1][name], strict=True):
            a, b = a.detach().double(), b.detach().double()
            assert (a - b).abs().max() <= 1e-3 * b.abs().max().clamp_min(0.1), name


def test_unsupported_layers_take_the_reference_path(monkeypatch):
    monkeypatch.setattr(module, "kernels", lambda *_: True)
    monkeypatch.setattr(module, "supports_grouped_mm", lambda *_: True)

    def of(sizes=SIZES, **changes):
        u, *weights = case(sizes, torch.device("cpu"))
        config = CONFIG._replace(**{name: value for name, value in changes.items() if name in CONFIG._fields})
        weights = Weights(*weights)._replace(**{n: value for n, value in changes.items() if n in Weights._fields})
        return supported(u, u.dtype, config, weights)

    assert of()
    assert not of(sizes=(9, 33, 8, 8, 8))
    assert not of(top=5)
    assert not of(up_bias=None)
    assert not of(down_bias=None)
    assert not of(gate="renormalised")
    assert not of(form="tutel")
