"""The layer: what equal experts give, what it tells a tape, when it drops, and its type under autocast."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from transformers.activations import ACT2FN

from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.experts.balance import weighted_balance
from holdfast.nn.experts.layer import ExpertSettings, SparseMoE, _is_exact_gelu, exclude_padding
from holdfast.nn.experts.router import route

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
    made = copied(**options)
    with torch.no_grad():
        for p in (made.up_proj, made.up_proj_bias, made.down_proj, made.down_proj_bias):
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
    return made


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("top", [2, 3, 4])
def test_copies_with_renormalised_gates_are_the_network_they_were_copied_from(top, bias):
    assert_close(copied(bias, top=top).eval()(U), plain(bias), rtol=1e-5, atol=1e-5)
    assert_close(copied(bias, top=top).train()(U), plain(bias), rtol=1e-5, atol=1e-5)  # noise moves nothing yet


@pytest.mark.parametrize("lacking", [0, 1])
def test_of_two_biases_a_missing_one_is_zero(lacking):
    pair = feed()
    pair[lacking].bias = None
    made = SparseMoE.from_feed_forward(*pair, nn.GELU(), ExpertSettings(count=4, inner=5)).train()
    wanted = pair[1](F.gelu(pair[0](U)))
    assert_close(made(U), wanted, rtol=1e-5, atol=1e-5)
    up, down = made.to_feed_forward()
    assert_close(down(F.gelu(up(U))), wanted)
    assert not torch.stack([part.bias.sum() for part in (up, down)])[lacking]


@pytest.mark.parametrize("form", ["logit", "tutel"])
def test_one_expert_is_always_in_balance(form):
    made = copied(count=1, top=1, form=form).train()
    with tape() as side:
        out = made(U)
    assert float(side["loss/experts"][0].detach()) == 0
    (out.sum() + side["loss/experts"][0]).backward()
    assert bool(made.router.directions.grad.isfinite().all())


def test_one_expert_or_the_literal_equation_scales_by_the_gates():
    for options in ({"top": 1}, {"top": 2, "renormalise": False}):
        made = copied(**options).eval()
        gates = route(made.router, U.view(-1, 8), top=options["top"], renormalise=False, noise=0.0).gates
        assert_close(made(U), plain() * gates.sum(-1).view(3, 7, 1), rtol=1e-5, atol=1e-5)
        assert float(gates.detach().sum(-1).max()) < 0.95
    assert_close(copied(top=1, renormalise=True).eval()(U), plain(), rtol=1e-5, atol=1e-5)


def test_it_is_every_expert_on_every_token_weighted():
    made = differing().eval()
    found = route(made.router, U.view(-1, 8), top=2, renormalise=True, noise=0.0)
    dense = torch.zeros(21, 4).scatter(1, found.chosen, found.gates.detach())
    hidden = F.gelu(torch.einsum("td,ehd->teh", U.view(-1, 8), made.up_proj) + made.up_proj_bias)
    each = torch.einsum("teh,edh->ted", hidden, made.down_proj) + made.down_proj_bias
    assert_close(made(U), (dense[..., None] * each).sum(1).view(3, 7, 8), rtol=1e-5, atol=1e-5)


def test_in_evaluation_no_noise_and_no_other_token_matters():
    made = differing(capacity=0.5).eval()
    first = made(U)
    torch.manual_seed(9)
    assert torch.equal(made(U), first)
    alone = torch.cat([made(U[i : i + 1]) for i in range(3)])
    assert_close(alone, first, rtol=1e-5, atol=1e-6)


def test_noise_moves_the_choice_in_training_by_the_seed():
    made = differing(noise=4.0).train()
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(made(U))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])
    assert not torch.allclose(outputs[0], made.eval()(U))


def test_noise_is_one_over_the_number_of_experts_wide_in_training_alone(monkeypatch):
    asked = []

    def listening(*args, noise, **named):
        asked.append(noise)
        return route(*args, noise=noise, **named)

    monkeypatch.setattr("holdfast.nn.experts.layer.route", listening)
    for made in (copied().train(), copied(noise=2.0).train(), copied().eval()):
        made(U)
    assert asked == [0.25, 0.5, 0.0]


def test_the_tape_hears_losses_in_training_and_choices_always():
    made = differing(balance=0.5).train()
    with tape() as side:
        made(U)
    first, second = side["experts/importance-loss"][0], side["experts/load-loss"][0]
    assert_close(side["loss/experts"][0].detach(), 0.25 * (first + second))
    assert side["loss/experts"][0].requires_grad
    assert side["experts/chosen"][0].shape == (3, 7, 2)
    assert side["experts/scores"][0].shape == (3, 7, 4)
    with tape() as side:
        made.eval()(U)
    assert set(side) == {"experts/chosen", "experts/scores"}
    with tape() as side:
        differing(balance=0.0).train()(U)
    assert "loss/experts" not in side


def test_gradients_reach_experts_router_and_temperature():
    made = differing().train()
    with tape() as side:
        out = made(U)
    (out.square().sum() + side["loss/experts"][0]).backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


def test_capacity_drops_the_least_sure_and_says_how_many():
    made = differing(count=2, top=1, capacity=0.5, noise=0.0).train()
    with tape() as side:
        out = made(U).view(-1, 8)
    found = route(made.router, U.view(-1, 8), top=1, renormalise=False, noise=0.0)
    room = int(0.5 * 11)
    gone = []
    for e in range(2):
        mine = [t for t in range(21) if int(found.chosen[t, 0]) == e]
        gone += sorted(mine, key=lambda t: -float(found.gates.detach()[t, 0]))[room:]
    assert gone
    empty = [t for t in range(21) if not bool(out[t].detach().any())]
    assert sorted(gone) == empty
    assert float(side["share/experts/dropped"][0]) == pytest.approx(len(gone) / 21)
    with tape() as side:
        roomy = differing(count=2, top=1, capacity=9.0, noise=0.0).train()(U)
    assert float(side["share/experts/dropped"][0]) == 0
    assert_close(roomy, differing(count=2, top=1, noise=0.0)(U))
    parity = differing(count=2, top=1, eval_capacity=0.5).eval()(U).view(-1, 8)
    assert sum(not bool(row.any()) for row in parity.detach()) == len(gone)


@pytest.mark.parametrize(("count", "noise", "sigma"), [(3, 0.0, 1 / 3), (5, 0.0, 1 / 5), (6, 0.3, 0.3 / 6)])
def test_the_load_loss_is_smoothed_by_the_noise_of_the_scores(count, noise, sigma):
    options = ExpertSettings(count=count, inner=5, noise=noise)
    made = SparseMoE.from_feed_forward(nn.Linear(8, 16), nn.Linear(16, 8), nn.GELU(), options).train()
    torch.manual_seed(0)
    with tape() as side:
        made(U)
    torch.manual_seed(0)
    found = route(made.router, U, top=2, renormalise=True, noise=noise / count)
    wanted, *_ = weighted_balance(found, weight=0.005, sigma=sigma, form="logit", detach=False, mask=None)
    assert_close(side["loss/experts"][0], wanted)


def test_padding_is_computed_but_not_counted():
    made, mask = differing().train(), torch.ones(3, 7, dtype=torch.bool)
    mask[:, 4:] = False
    torch.manual_seed(0)
    with tape() as side, exclude_padding(mask):
        out = made(U)
    garbage = U.clone()
    garbage[:, 4:] = 50.0
    torch.manual_seed(0)
    with tape() as other, exclude_padding(mask):
        same = made(garbage)
    assert torch.equal(side["experts/real"][0], mask)
    assert_close(side["loss/experts"][0], other["loss/experts"][0])
    assert_close(out[:, :4], same[:, :4])
    counts = torch.bincount(side["experts/chosen"][0][:, :4].flatten(), minlength=made.settings.count)
    assert_close(side["share/experts/load"][0], counts / counts.sum())
    with tape() as all_count:
        made(garbage)
    assert not torch.allclose(all_count["loss/experts"][0], other["loss/experts"][0])


def test_under_autocast_experts_are_narrow_and_scores_are_not():
    made = differing().eval()
    with tape() as side:
        wide = made(U)
    with tape() as under, torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = made(U)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(side["experts/scores"][0], under["experts/scores"][0])
    assert_close(narrow.float(), wide, rtol=0.05, atol=0.1)


def test_names_and_shapes_are_those_of_transformers():
    made = copied()
    shapes = {name: tuple(p.shape) for name, p in made.named_parameters() if "router" not in name}
    assert shapes == {
        "up_proj": (4, 12, 8), "up_proj_bias": (4, 12), "down_proj": (4, 8, 12), "down_proj_bias": (4, 8),
    }  # fmt: skip


def test_dropout_lies_inside_the_experts_in_training_alone():
    made = copied(dropout=0.5)
    assert_close(made.eval()(U), plain(), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(made.train()(U), plain(), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "told"),
    [({"top": 5}, r"top.*4.*5"), ({"noise": -1.0}, r"noise.*-1"), ({"form": "x"}, "form"),
     ({"dropout": 1.0}, r"dropout.*1\.0"), ({"router": "x"}, "router 'x'")],
)  # fmt: skip
def test_wrong_settings_get_one_sentence(options, told):
    with pytest.raises(BadInput, match=told):
        copied(**options)


@pytest.mark.parametrize(
    ("activation", "exact"),
    [(nn.GELU(), True), (ACT2FN["gelu"], True), (ACT2FN["gelu_python"], False), (nn.GELU("tanh"), False),
     (ACT2FN["gelu_new"], False), (nn.ReLU(), False)],
)  # fmt: skip
def test_any_activation_is_what_lies_between(activation, exact):
    up, down = feed()
    made = SparseMoE.from_feed_forward(up, down, activation, ExpertSettings(count=3, inner=5)).eval()
    assert_close(made(U), down(activation(up(U))), rtol=1e-5, atol=1e-5)
    assert _is_exact_gelu(activation) == exact


@pytest.mark.parametrize("top", [1, 2])
def test_a_whole_layer_is_the_one_written_out(top):
    """Written out: the output, the balance loss, and the gradient of every parameter and of the input."""
    made, u = differing(top=top, inner=300, noise=0.0).train(), U.clone().requires_grad_()
    with tape() as side:
        found = made(u)
    flat, router = u.view(-1, 8), made.router
    query = router.project(flat)
    clean = router.log_scale.exp() * F.cosine_similarity(query[:, None], router.directions[None], dim=-1)
    share = clean.softmax(-1)
    best = share.topk(top, dim=-1)
    gates = best.values / best.values.sum(-1, keepdim=True) if top > 1 else best.values
    hidden = F.gelu(torch.einsum("td,ehd->teh", flat, made.up_proj) + made.up_proj_bias)
    each = torch.einsum("teh,edh->ted", hidden, made.down_proj) + made.down_proj_bias
    wanted = (gates[..., None] * each.gather(1, best.indices[..., None].expand(-1, -1, 8))).sum(1).view_as(u)
    threshold = clean.gather(1, best.indices[:, -1:])
    amounts = share.sum(0), torch.special.ndtr((clean - threshold) * 4).sum(0)
    loss = 0.005 * sum(a.var(unbiased=False) / a.mean() ** 2 for a in amounts)
    assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert_close(side["loss/experts"][0], loss, rtol=1e-4, atol=1e-7)
    assert torch.equal(side["experts/chosen"][0].view(-1, top), best.indices)
    assert_close(side["share/experts/importance"][0], share.mean(0).detach(), rtol=1e-4, atol=1e-6)
    counts = torch.bincount(best.indices.flatten(), minlength=4)
    assert_close(side["share/experts/load"][0], counts / counts.sum())
    learned = (u, *made.parameters())
    weights = torch.randn(U.shape, generator=torch.Generator().manual_seed(3))
    mine = torch.autograd.grad((found * weights).sum() + 100 * side["loss/experts"][0], learned)
    theirs = torch.autograd.grad((wanted * weights).sum() + 100 * loss, learned)
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("top", [1, 2])
def test_under_autocast_on_a_gpu_it_is_the_wide_layer_but_for_rounding(top):
    torch.manual_seed(0)
    made = SparseMoE(64, 128, nn.GELU(), inner=32, top=top, noise=0.0).train().cuda()
    u = torch.randn(4, 100, 64, generator=torch.Generator().manual_seed(0)).cuda()
    heard = []
    for narrow in (True, False):
        with tape() as side, torch.autocast("cuda", torch.bfloat16, enabled=narrow):
            out = made(u)
        grads = torch.autograd.grad(out.float().square().sum() + side["loss/experts"][0], tuple(made.parameters()))
        heard.append((out, side["loss/experts"][0], *grads))
        assert torch.equal(side["experts/chosen"][0], made.router(u).topk(top, dim=-1).indices)
    for a, b in zip(*heard, strict=True):
        assert bool((a.detach().float() - b.detach()).abs().max() <= 0.05 * b.detach().abs().max())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, of its compiler
def test_compiled_it_is_one_graph_and_tells_a_tape_the_same():
    made = SparseMoE.from_feed_forward(
        nn.Linear(8, 16), nn.Linear(16, 8), nn.GELU(), ExpertSettings(count=4, inner=5, noise=0.0)
    ).train()
    whole = torch.compile(made, backend="aot_eager", fullgraph=True)
    heard = []
    for layer in (made, whole):
        with tape() as side, torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(U)
        (side["loss/experts"][0] + out.float().sum()).backward()
        assert made.router.directions.grad is not None
        heard.append((out, side["loss/experts"][0], side["experts/chosen"][0], made.router.directions.grad.clone()))
        made.zero_grad()
    for a, b in zip(*heard, strict=True):
        assert_close(a, b, rtol=0.03, atol=0.03)
    assert torch.equal(heard[0][2], heard[1][2])
