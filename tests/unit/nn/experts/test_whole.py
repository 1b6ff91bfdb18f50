"""A layer in one piece by kernels: the layer written out, in values, both derivatives, and what is told of it."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from holdfast.core.tape import tape
from holdfast.nn.experts import fast
from holdfast.nn.experts.layer import SparseMoE, exclude_padding
from holdfast.nn.experts.router import MAX_SCALE
from holdfast.nn.experts.fast import supported
from holdfast.nn.experts.fused import Config, Weights, fused_forward

HOW = Config(top=2, renormalise=True, noise=0.25, weight=0.5, sigma=0.25, form="logit", detach=False)
# tokens, experts, width, hidden width, inner width; how else; whether some tokens are padding
CASES = [
    ((1, 1, 8, 8, 5), {"top": 1}, False),
    ((9, 1, 8, 8, 5), {"top": 1, "form": "tutel"}, False),
    ((37, 6, 24, 40, 64), {}, False),
    ((37, 6, 24, 40, 64), {"top": 1, "renormalise": False}, True),
    ((37, 6, 24, 40, 64), {"form": "tutel"}, True),
    ((70, 5, 40, 136, 300), {"form": "tutel", "detach": True, "renormalise": False}, False),
    ((150, 20, 8, 24, 37), {"top": 4, "noise": 0.0, "detach": True}, False),
    ((300, 32, 72, 8, 16), {"top": 3, "renormalise": False}, True),
    ((70, 5, 40, 136, 300), {"weight": 0.0}, False),
]


def drawn(*shape, device, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def case(sizes, device):
    """Tokens and parts; nobody chooses the second expert where there are some to choose from."""
    t, e, d, h, q = sizes
    shapes = [(t, d), (e, h, d), (e, h), (e, d, h), (e, d), (q, d), (q,), (e, q)]
    u, *parts = (drawn(*shape, device=device, seed=i) for i, shape in enumerate(shapes))
    for weight in (parts[0], parts[2]):
        weight /= weight.shape[-1] ** 0.5
    if e > 4:
        parts[4][0], parts[5][0], parts[6][:, 0], parts[6][1, 0] = 0.0, 30.0, 1.0, -60.0
    return u, *parts, torch.tensor(0.7, device=device)


def padding(t, device, some):
    return torch.arange(t, device=device) % 3 != 1 if some else None


def noise_of(how, t, e, device):
    torch.manual_seed(5)
    return torch.randn(t, e, device=device) if how.noise else torch.zeros(t, e, device=device)


def mine(how, real, u, *parts):
    torch.manual_seed(5)
    assert supported(u, u.dtype, how, Weights(*parts))
    return fused_forward(u, u.dtype, how, Weights(*parts), real)


def naive(how, real, noise, u, up, up_bias, down, down_bias, weight, bias, directions, log_scale):
    """Every expert on every token; states, the loss, both losses, importance, choices and their load."""
    query, e = u @ weight.T + bias, len(up)
    clean = log_scale.exp() * F.cosine_similarity(query[:, None], directions[None], dim=-1, eps=1e-12)
    noisy = clean + how.noise * noise
    chosen = noisy.detach().argsort(dim=-1, descending=True, stable=True)[:, : how.top]
    gates = noisy.softmax(-1).gather(1, chosen)
    gates = gates / gates.sum(-1, keepdim=True) if how.renormalise else gates
    hidden = F.gelu(torch.einsum("td,ehd->teh", u, up) + up_bias)
    each = torch.einsum("teh,edh->ted", hidden, down) + down_bias
    out = torch.einsum("te,ted->td", torch.zeros_like(clean).scatter(1, chosen, gates), each)
    share, threshold = clean.softmax(-1), noisy.gather(1, chosen[:, -1:])
    apart = (clean if how.form == "logit" else share) - (threshold.detach() if how.detach else threshold)
    chances = (1 + torch.erf(apart / how.sigma / math.sqrt(2))) / 2
    counts = torch.ones(len(u), 1, device=u.device) if real is None else real[:, None]
    amounts = [(each * counts).sum(0) for each in (share, chances)]
    below = e if how.form == "logit" else max(1, e - 1)
    losses = [((a - a.mean()) ** 2).sum() / below / (a.mean() ** 2 + 1e-10) for a in amounts]
    load = torch.bincount(chosen.flatten(), minlength=e) / chosen.numel()
    return out, how.weight * sum(losses), *losses, amounts[0] / amounts[0].sum(), clean, chosen, load


@pytest.mark.parametrize(("sizes", "options", "some"), CASES)
def test_values_and_both_derivatives_are_those_of_the_layer_written_out(by_kernels, same, sizes, options, some):
    how, inputs = HOW._replace(**options), case(sizes, by_kernels)
    real, noise = padding(sizes[0], by_kernels, some), noise_of(how, *sizes[:2], by_kernels)
    count = 1 if how.weight == 0 else 2
    same(
        lambda *parts: mine(how, real, *parts)[:count],
        lambda *parts: naive(how, real, noise.double(), *parts)[:count],
        inputs, close=2e-4,
    )  # fmt: skip


@pytest.mark.parametrize(("sizes", "options", "some"), CASES)
def test_what_is_told_is_what_happened(by_kernels, sizes, options, some):
    how, inputs = HOW._replace(**options), case(sizes, by_kernels)
    real, noise = padding(sizes[0], by_kernels, some), noise_of(how, *sizes[:2], by_kernels)
    out, loss, told = mine(how, real, *inputs)
    wanted = naive(how, real, noise, *inputs)
    torch.testing.assert_close(told.scores, wanted[5], rtol=1e-4, atol=1e-5)
    assert torch.equal(told.chosen, wanted[6])
    assert told.chosen.dtype == torch.int64
    torch.testing.assert_close(told.load, wanted[7])
    assert (loss is None) == (told.losses is None) == (how.weight == 0)
    if told.losses is not None:
        for a, b in zip(told.losses, wanted[2:5], strict=True):
            assert not a.requires_grad
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(mine(how, real, *inputs)[0], out)


def test_a_scale_at_its_limit_moves_no_more_and_a_length_of_nothing_leaves_numbers(by_kernels):
    u, *parts, _ = case((4, 3, 8, 8, 8), by_kernels)
    u[1] = parts[5][:] = parts[6][2] = 0  # a query and a direction of nothing
    inputs = [each.requires_grad_() for each in (u, *parts, torch.tensor(9.0, device=by_kernels))]
    out, loss, told = mine(HOW._replace(top=1, renormalise=False, noise=0.0), None, *inputs)
    query = u[0] @ parts[4].T
    expected = MAX_SCALE * F.cosine_similarity(query[None], parts[6][:2], dim=-1)
    torch.testing.assert_close(told.scores[0, :2], expected.detach(), rtol=1e-4, atol=1e-3)
    grads = torch.autograd.grad(out.sum() + loss, inputs)
    assert grads[-1] == 0
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
def test_what_is_no_number_still_names_an_expert(by_kernels):
    inputs = case((5, 6, 8, 8, 8), by_kernels)
    inputs[0][2] = math.nan
    out, _, told = mine(HOW, None, *inputs)
    assert int(told.chosen.min()) >= 0
    assert int(told.chosen.max()) < 6
    assert bool(out[[0, 1, 3, 4]].isfinite().all())


def test_many_blocks_are_added_up_first_and_the_same_comes_again(by_kernels, monkeypatch):
    """And in turns, where there are more of them than are held at once."""
    monkeypatch.setattr("holdfast.nn.kernels.routing.SUM_BLOCKS", 4)
    monkeypatch.setattr("holdfast.nn.kernels.experts.SUM_ROWS", 2)
    monkeypatch.setattr("holdfast.nn.kernels.routing.COUNTS", 32)
    inputs = [each.requires_grad_() for each in case((300, 6, 24, 40, 64), by_kernels)]
    noise, heard = noise_of(HOW, 300, 6, by_kernels), []
    wanted = naive(HOW, None, noise, *inputs)
    wanted = wanted[0], *torch.autograd.grad(wanted[0].sum() + wanted[1], inputs)
    for few in (4096, 4096, 0):
        monkeypatch.setattr("holdfast.nn.kernels.routing.MAX_COUNTS", few)
        out, loss, told = mine(HOW, None, *inputs)
        heard.append((out, told.load, *torch.autograd.grad(out.sum() + loss, inputs)))
    for again in heard[1:]:
        assert all(torch.equal(a, b) for a, b in zip(heard[0], again, strict=True))
    for a, b in zip((heard[0][0], *heard[0][2:]), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_without_biases(by_kernels, same):
    how, inputs = HOW._replace(noise=0.0), case((37, 6, 24, 40, 64), by_kernels)

    def bare(u, up, down, *router):
        return mine(how, None, u, up, None, down, None, *router)[:2]

    def naive_bare(u, up, down, *router):
        return naive(how, None, 0.0, u, up, 0.0, down, 0.0, *router)[:2]

    same(bare, naive_bare, [each for i, each in enumerate(inputs) if i not in (2, 4)], close=2e-4)


@pytest.mark.parametrize("learn", [(0,), (1,), (3,), (2, 4), (8,), (5, 7), (1, 2, 3, 4), (0, 6)])
def test_what_is_frozen_changes_no_other_gradient(by_kernels, learn):
    learned = [each.requires_grad_() for each in case((37, 6, 24, 40, 64), by_kernels)]
    some = [each if i in learn else each.detach() for i, each in enumerate(learned)]
    totals = (sum(x.square().sum() for x in mine(HOW, None, *each)[:2]) for each in (learned, some))
    wanted, found = (torch.autograd.grad(total, [learned[i] for i in learn], retain_graph=True) for total in totals)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_parts_and_masks_with_gaps_are_read_as_they_are(by_kernels):
    inputs = case((36, 6, 24, 40, 64), by_kernels)
    spread = [x.T.contiguous().T if x.ndim == 2 else x for x in inputs]
    assert not spread[2].is_contiguous()
    heard = []
    for each in (inputs, spread):
        leaves = [x.detach().requires_grad_() for x in each]
        out, loss, _ = mine(HOW, None, *leaves)
        heard.append((out, loss, *torch.autograd.grad(out.sum() + loss, leaves)))
    for a, b in zip(*heard, strict=True):
        torch.testing.assert_close(a, b)


def test_either_output_alone_has_its_gradients_and_none_has_none(by_kernels):
    inputs = [each.requires_grad_() for each in case((37, 6, 24, 40, 64), by_kernels)]
    both_grads = torch.autograd.grad(sum(each.sum() for each in mine(HOW, None, *inputs)[:2]), inputs)
    first, second = (
        torch.autograd.grad(mine(HOW, None, *inputs)[which].sum(), inputs, allow_unused=True) for which in (0, 1)
    )
    assert [grad is None for grad in second] == [False, *[True] * 4, *[False] * 4]  # experts have no part in the loss
    for both, one, other in zip(both_grads, first, second, strict=True):
        torch.testing.assert_close(both, one if other is None else one + other, rtol=1e-3, atol=1e-4)

    class Deaf(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    for again in (False, True):
        total = Deaf.apply(mine(HOW, None, *inputs)[0]).sum()
        assert set(torch.autograd.grad(total, inputs, create_graph=again, allow_unused=True)) == {None}


def test_its_loss_can_be_changed_in_place(by_kernels):
    _, loss, _ = mine(HOW, None, *(each.requires_grad_() for each in case((37, 6, 24, 40, 64), by_kernels)))
    before = float(loss.detach())
    loss *= 2
    assert float(loss.detach()) == pytest.approx(2 * before)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("balance", [0.0, 0.01])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("heard", [True, False])
def test_a_layer_tells_and_learns_the_same_by_kernels_and_plainly(
    by_kernels, monkeypatch, training, balance, padded, heard
):
    torch.manual_seed(0)
    made = SparseMoE(24, 40, nn.GELU(), inner=32, balance=balance).to(by_kernels).train(training)
    u = torch.randn(6, 7, 24, device=by_kernels, requires_grad=True)
    mask = (torch.arange(42, device=by_kernels).view(7, 6) % 4 != 0).T if padded else None  # with gaps
    told, ways = [], []
    for enabled in (True, False):
        if not enabled:
            monkeypatch.setattr(fast, "ENABLED", False)
        torch.manual_seed(1)
        with exclude_padding(mask) if padded else nullcontext(), tape() if heard else nullcontext({}) as side:
            out = made(u)
        ways.append("FusedExperts" in str(out.grad_fn.next_functions[0][0]))
        grads = torch.autograd.grad(out.square().sum() + sum(side.get("loss/experts", [])), (u, *made.parameters()))
        told.append({"out": [out], "grads": grads, **side})
    assert ways == [True, False]
    assert told[0].keys() == told[1].keys()
    assert ("share/experts/importance" in told[0]) == (heard and training)
    assert ("loss/experts" in told[0]) == (heard and training and balance > 0)
    assert ("experts/real" in told[0]) == (heard and padded)
    for name, values in told[0].items():
        for a, b in zip(values, told[1][name], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}")


def test_narrow_products_round_and_no_more(by_kernels):
    """Scores decide as wide ones do, so that tokens go to the same experts."""
    inputs = [each.requires_grad_() for each in case((70, 5, 40, 136, 64), by_kernels)]
    heard = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(5)
        out, loss, told = fused_forward(inputs[0], dtype, HOW, Weights(*inputs[1:]), None)
        assert out.dtype == dtype
        heard.append((out.float(), loss, *torch.autograd.grad(out.float().square().sum() + loss, inputs)))
        heard[-1] += (told.chosen,)
    assert torch.equal(heard[0][-1], heard[1][-1])
    for a, b in zip(heard[0][:-1], heard[1][:-1], strict=True):
        assert a.dtype == b.dtype
        assert bool((a - b).detach().abs().max() <= 0.05 * b.detach().abs().max())


def test_too_many_experts_or_choices_go_the_plain_way(by_kernels):
    for sizes, top in (((9, 33, 8, 8, 8), 2), ((9, 6, 8, 8, 8), 5)):
        u, *parts = case(sizes, by_kernels)
        assert not supported(u, u.dtype, HOW._replace(top=top), Weights(*parts))


def test_one_bias_of_two_goes_the_plain_way(monkeypatch):
    monkeypatch.setattr(fast, "_has_kernels", lambda *_: True)
    monkeypatch.setattr(fast, "supports_grouped_mm", lambda *_: True)
    u, *parts = case((37, 6, 24, 40, 64), torch.device("cpu"))
    assert supported(u, u.dtype, HOW, Weights(*parts))
    for lacking in ("up_bias", "down_bias"):
        assert not supported(u, u.dtype, HOW, Weights(*parts)._replace(**{lacking: None}))
