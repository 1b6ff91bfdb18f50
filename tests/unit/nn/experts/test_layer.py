"""SparseMoE: equal experts, records, capacity, padding, autocast, and the equations of the complete layer."""

import doctest

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from transformers.activations import ACT2FN

import holdfast.nn.experts.layer
from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.experts.layer import ExpertSettings, SparseMoE, _is_exact_gelu, exclude_padding, shuffled_routing
from holdfast.nn.experts.router import ROUTERS, route
from holdfast.ops.balance import Config, weighted_balance

U = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(0))


def feed(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(1)
    return nn.Linear(8, 12, bias=bias), nn.Linear(12, 8, bias=bias)


def copied(bias: bool = True, **options) -> SparseMoE:
    up, down = feed(bias)
    return SparseMoE.from_feed_forward(up, down, nn.GELU(), ExpertSettings(**{"count": 4, "inner": 5, **options}))


def plain(bias: bool = True) -> torch.Tensor:
    up, down = feed(bias)
    return down(F.gelu(up(U)))


def differing(**options) -> SparseMoE:
    layer = copied(**options)
    with torch.no_grad():
        for p in (layer.up_proj, layer.up_proj_bias, layer.down_proj, layer.down_proj_bias):
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
    return layer


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(("top", "gate", "bias"), [(1, "preserving", True), (2, None, True), (2, None, False),
    (3, "preserving", True), (3, "renormalised", False), (4, None, True)])  # fmt: skip
def test_copied_experts_equal_the_network_they_were_copied_from(top, gate, bias, router):
    options = {"top": top, "gate": gate, "router": router, "jitter": 0.0}
    assert_close(copied(bias, **options).eval()(U), plain(bias), rtol=1e-5, atol=1e-5)
    assert_close(copied(bias, **options).train()(U), plain(bias), rtol=1e-5, atol=1e-5)  # noise moves nothing yet


def test_settings_of_gates():
    assert [ExpertSettings(top=top).gates for top in (1, 2)] == ["raw", "preserving"]
    assert ExpertSettings(top=1, gate="preserving").gates == "preserving"
    with pytest.raises(BadInput, match="`gate` must be preserving, renormalised or raw, got 'row'"):
        ExpertSettings(gate="row")


def test_jitter_changes_the_copies_but_not_their_mean():
    layer, (up, _) = copied(jitter=0.1), feed()
    assert_close(layer.up_proj.mean(0), up.weight, rtol=1e-4, atol=1e-6)
    difference = ((layer.up_proj - up.weight).std() / up.weight.std()).detach()
    assert 0.05 < float(difference) < 0.15
    with tape() as side:
        layer.eval()(U)
        copied(jitter=0.0).eval()(U)
    differences = [float(value) for value in side["stat/experts/difference"]]
    assert differences[0] == pytest.approx(float(difference), rel=0.3)
    assert differences[1] < 1e-6
    assert 1 < float(side["stat/experts/effective"][0]) <= 4
    assert float(side["stat/experts/spread"][0]) > 0


@pytest.mark.parametrize("missing", [0, 1])
def test_a_single_missing_bias_is_zero(missing):
    pair = feed()
    pair[missing].bias = None
    layer = SparseMoE.from_feed_forward(*pair, nn.GELU(), ExpertSettings(count=4, inner=5)).train()
    expected = pair[1](F.gelu(pair[0](U)))
    assert_close(layer(U), expected, rtol=1e-5, atol=1e-5)
    assert not (layer.up_proj_bias, layer.down_proj_bias)[missing].any()


@pytest.mark.parametrize("form", ["logit", "tutel"])
def test_a_single_expert_has_loss_zero(form):
    layer = copied(count=1, top=1, form=form).train()
    with tape() as side:
        out = layer(U)
    assert float(side["loss/experts"][0].detach()) == 0
    (out.sum() + side["loss/experts"][0]).backward()
    assert bool(layer.router.directions.grad.isfinite().all())


def test_records_in_training_and_evaluation():
    layer = differing(balance=0.5).train()
    with tape() as side:
        layer(U)
    first, second = side["experts/importance-loss"][0], side["experts/load-loss"][0]
    assert_close(side["loss/experts"][0].detach(), 0.25 * (first + second))
    assert side["loss/experts"][0].requires_grad
    assert side["experts/chosen"][0].shape == (3, 7, 2)
    assert side["experts/scores"][0].shape == (3, 7, 4)
    with tape() as side:
        layer.eval()(U)
    stats = {f"stat/experts/{name}" for name in ("difference", "effective", "spread")}
    assert set(side) == {"experts/chosen", "experts/scores", *stats}
    with tape() as side:
        differing(balance=0.0).train()(U)
    assert "loss/experts" not in side


def test_capacity_drops_the_least_confident_tokens():
    layer = differing(count=2, top=1, capacity=0.5, noise=0.0).train()
    with tape() as side:
        out = layer(U).view(-1, 8)
    result = route(layer.router, U.view(-1, 8), top=1, gate="raw", noise=0.0)
    room = int(0.5 * 11)
    dropped = []
    for e in range(2):
        actual = [t for t in range(21) if int(result.chosen[t, 0]) == e]
        dropped += sorted(actual, key=lambda t: -float(result.gates.detach()[t, 0]))[room:]
    assert dropped
    empty = [t for t in range(21) if not bool(out[t].detach().any())]
    assert sorted(dropped) == empty
    assert float(side["share/experts/dropped"][0]) == pytest.approx(len(dropped) / 21)
    with tape() as side:
        roomy = differing(count=2, top=1, capacity=9.0, noise=0.0).train()(U)
    assert float(side["share/experts/dropped"][0]) == 0
    assert_close(roomy, differing(count=2, top=1, noise=0.0)(U))
    parity = differing(count=2, top=1, eval_capacity=0.5).eval()(U).view(-1, 8)
    assert sum(not bool(row.any()) for row in parity.detach()) == len(dropped)


@pytest.mark.parametrize(("count", "noise", "sigma"), [(3, 0.0, 1 / 3), (5, 0.0, 1 / 5), (6, 0.3, 0.3 / 6)])
def test_sigma_of_the_load_loss(count, noise, sigma):
    options = ExpertSettings(count=count, inner=5, noise=noise)
    layer = SparseMoE.from_feed_forward(nn.Linear(8, 16), nn.Linear(16, 8), nn.GELU(), options).train()
    torch.manual_seed(0)
    with tape() as side:
        layer(U)
    torch.manual_seed(0)
    result = route(layer.router, U, top=2, gate="renormalised", noise=noise / count)
    expected, *_ = weighted_balance(result, Config(2, "raw", noise / count, 0.005, sigma, "logit"), None)
    assert_close(side["loss/experts"][0], expected)


def test_padding_is_excluded_from_losses():
    layer, mask = differing().train(), torch.ones(3, 7, dtype=torch.bool)
    mask[:, 4:] = False
    torch.manual_seed(0)
    with tape() as side, exclude_padding(mask):
        out = layer(U)
    garbage = U.clone()
    garbage[:, 4:] = 50.0
    torch.manual_seed(0)
    with tape() as other, exclude_padding(mask):
        same = layer(garbage)
    assert torch.equal(side["experts/real"][0], mask)
    assert_close(side["loss/experts"][0], other["loss/experts"][0])
    assert_close(out[:, :4], same[:, :4])
    counts = torch.bincount(side["experts/chosen"][0][:, :4].flatten(), minlength=layer.settings.count)
    assert_close(side["share/experts/load"][0], counts / counts.sum())
    with tape() as all_count:
        layer(garbage)
    assert not torch.allclose(all_count["loss/experts"][0], other["loss/experts"][0])


def test_autocast_applies_to_experts_and_not_to_scores():
    layer = differing().eval()
    with tape() as side:
        wide = layer(U)
    with tape() as under, torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = layer(U)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(side["experts/scores"][0], under["experts/scores"][0])
    assert_close(narrow.float(), wide, rtol=0.05, atol=0.1)


def test_dropout_in_training_only():
    layer = copied(dropout=0.5)
    assert_close(layer.eval()(U), plain(), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(layer.train()(U), plain(), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"top": 5}, r"top.*4.*5"), ({"temperature": 0.001}, r"temperature.*0\.01.*0\.001")],
)  # fmt: skip
def test_wrong_settings(options, message):
    with pytest.raises(BadInput, match=message):
        copied(**options)


@pytest.mark.parametrize(
    ("activation", "exact"),
    [(nn.GELU(), True), (ACT2FN["gelu"], True), (ACT2FN["gelu_python"], False), (nn.GELU("tanh"), False),
     (ACT2FN["gelu_new"], False), (nn.ReLU(), False)],
)  # fmt: skip
def test_activations(activation, exact):
    up, down = feed()
    layer = SparseMoE.from_feed_forward(up, down, activation, ExpertSettings(count=3, inner=5)).eval()
    assert_close(layer(U), down(activation(up(U))), rtol=1e-5, atol=1e-5)
    assert _is_exact_gelu(activation) == exact


@pytest.mark.parametrize(("top", "gate"), [(1, None), (2, None), (2, "renormalised"), (2, "raw"), (1, "preserving")])
def test_equations_of_the_complete_layer(top, gate):
    """Output, balance loss, and the gradients of the input and of every parameter."""
    layer, u = differing(top=top, gate=gate, inner=300, noise=0.0).train(), U.clone().requires_grad_()
    with tape() as side:
        result = layer(u)
    flat, router = u.view(-1, 8), layer.router
    query = router.project(flat)
    clean = router.log_scale.exp() * F.cosine_similarity(query[:, None], router.directions[None], dim=-1)
    share = clean.softmax(-1)
    best = share.topk(top, dim=-1)
    total = best.values.sum(-1, keepdim=True)
    divisor = {"raw": 1.0, "renormalised": total, "preserving": total.detach()}
    gates = best.values / divisor[gate or ("raw" if top == 1 else "preserving")]
    hidden = F.gelu(torch.einsum("td,ehd->teh", flat, layer.up_proj) + layer.up_proj_bias)
    each = torch.einsum("teh,edh->ted", hidden, layer.down_proj) + layer.down_proj_bias
    expected = (gates[..., None] * each.gather(1, best.indices[..., None].expand(-1, -1, 8))).sum(1).view_as(u)
    threshold = clean.gather(1, best.indices[:, -1:])
    amounts = share.sum(0), torch.special.ndtr((clean - threshold) * 4).sum(0)
    loss = 0.005 * sum(a.var(unbiased=False) / a.mean() ** 2 for a in amounts)
    assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert_close(side["loss/experts"][0], loss, rtol=1e-4, atol=1e-7)
    assert torch.equal(side["experts/chosen"][0].view(-1, top), best.indices)
    assert_close(side["share/experts/importance"][0], share.mean(0).detach(), rtol=1e-4, atol=1e-6)
    counts = torch.bincount(best.indices.flatten(), minlength=4)
    assert_close(side["share/experts/load"][0], counts / counts.sum())
    learned = (u, *layer.parameters())
    weights = torch.randn(U.shape, generator=torch.Generator().manual_seed(3))
    actual = torch.autograd.grad((result * weights).sum() + 100 * side["loss/experts"][0], learned)
    target = torch.autograd.grad((expected * weights).sum() + 100 * loss, learned)
    for a, b in zip(actual, target, strict=True):
        assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_example_in_the_docstring():
    results = doctest.testmod(holdfast.nn.experts.layer)
    assert (results.failed, results.attempted) == (0, 4)


def test_shuffled_routing_keeps_loads_and_padding_and_changes_what_depends_on_the_choice():
    layer, mask = differing(top=2).eval(), torch.ones(3, 7, dtype=torch.bool)
    mask[1:, 4:] = False
    with tape() as side, exclude_padding(mask):
        expected = layer(U)
    with tape() as shuffled, exclude_padding(mask), shuffled_routing(0):
        out, again = layer(U), layer(U)
    with shuffled_routing(0), exclude_padding(mask):
        assert_close(layer(U), out, rtol=0, atol=0)
    with shuffled_routing(1), exclude_padding(mask):
        assert not torch.equal(layer(U), out)
    assert not torch.equal(out, again)
    changed = (out - expected).abs().amax(-1) > 1e-6
    assert float(changed[mask].float().mean()) > 0.5
    assert not changed[~mask].any()
    chosen, before = shuffled["experts/chosen"][0], side["experts/chosen"][0]
    assert_close(chosen.flatten().bincount(), before.flatten().bincount(), rtol=0, atol=0)
    same = copied(top=2).eval()
    with shuffled_routing(0):
        assert_close(same(U), plain(), rtol=1e-5, atol=1e-5)
