"""Grafting into user networks: training, freezing, removal, error messages."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import holdfast
from holdfast import BadInput
from holdfast.core.tape import tape
from holdfast.nn.graft.holder import NAME
from tests.unit.nn.graft.networks import LABELS, MASK, make, run

EXPERTS = {"count": 3, "inner": 8}
GRAFTS = {
    "memory-bert": ("bert", {"memory": {"slots": 5, "at": [0, -1], "key_width": 8}}),
    "memory-vit": ("vit", {"memory": {"slots": 5, "at": "all", "key_width": 8}}),
    "memory-features": ("plain", {"memory": {"slots": 5, "at": "1", "width": 8, "key_width": 4}}),
    "memory-end": ("plain", {"memory": 5}),
    "memory-own": ("own", {"memory": {"slots": 5, "at": ["one", "two"], "width": 8}}),
    "experts-bert": ("bert", {"experts": EXPERTS}),
    "experts-vit": ("vit", {"experts": {**EXPERTS, "at": [0, 2]}}),
    "experts-own": ("own", {"experts": {**EXPERTS, "at": "two", "feed": ("up", "act", "down")}}),
    "both": ("bert", {"experts": EXPERTS, "memory": {"slots": 5, "key_width": 8}}),
    "general": ("bert", {"general": {"strategy": "gated"}}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


def grafted(name, folder, *, freeze=True):
    kind, requested = copy.deepcopy(GRAFTS[name])
    if "general" in requested:
        requested["general"]["network"] = make(kind, folder)
    torch.manual_seed(0)
    return kind, holdfast.graft(make(kind, folder), **requested, freeze=freeze)


def train(kind, net, *, steps=3, parameters=None):
    """Train with a plain loop."""
    optimizer = torch.optim.AdamW(parameters or holdfast.grafted_parameters(net), lr=0.05)
    net.train()
    losses = []
    for _ in range(steps):
        with holdfast.tape() as side:
            out = run(kind, net)
        loss = F.cross_entropy(out.flatten(1), LABELS) + holdfast.auxiliary_loss(side)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    net.eval()
    return losses


@pytest.mark.parametrize("name", GRAFTS)
def test_training_loop_and_ungraft_restore_the_network(name, folder):
    kind, net = grafted(name, folder)
    plain = make(kind, folder)
    own, expected = plain.state_dict(), run(kind, plain)
    added = [p.detach().clone() for p in holdfast.grafted_parameters(net)]
    assert added
    train(kind, net)
    assert any(not torch.equal(a, b) for a, b in zip(added, holdfast.grafted_parameters(net), strict=True))
    assert not torch.equal(run(kind, net), expected)
    state = holdfast.plain_state(net)
    assert list(state) == list(own)
    assert all(torch.equal(state[key], own[key]) for key in own)
    make(kind, folder).load_state_dict(state)  # strict
    assert holdfast.ungraft(net) is net
    assert [str(part) for part in net.modules()] == [str(part) for part in plain.modules()]
    assert torch.equal(run(kind, net), expected)
    assert all(p.requires_grad for p in net.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
    with pytest.raises(BadInput, match="is not grafted"):
        holdfast.ungraft(net)


def test_experts_start_as_the_plain_network(folder):
    for name in ("experts-bert", "experts-vit", "experts-own"):
        kind, net = grafted(name, folder)
        torch.testing.assert_close(run(kind, net), run(kind, make(kind, folder)), rtol=1e-4, atol=1e-5)


def test_zero_share_and_position_of_a_memory(folder):
    plain = make("own", folder)
    none = holdfast.graft(make("own", folder), memory={"at": "one", "width": 8, "share": 0.0})
    assert torch.equal(run("own", none), run("own", plain))
    net = holdfast.graft(make("own", folder), memory={"at": "one", "width": 8, "share": 1.0})
    x = torch.rand(4, 8)
    content = net.get_submodule(NAME).parts[0].memory.read(plain.one(x)[0]).content
    torch.testing.assert_close(net(x), plain.head(plain.two(content)[0]))


def test_balance_losses_and_padding(folder):
    kind, net = grafted("experts-bert", folder)
    with tape() as side:
        run(kind, net)
    assert holdfast.auxiliary_loss(side) == 0.0
    assert all(torch.equal(real, MASK.bool()) for real in side["experts/real"])
    assert len(side["experts/real"]) == len(net.get_submodule(NAME).parts)
    with tape() as side:
        run(kind, net.train())
    loss = holdfast.auxiliary_loss(side)
    assert float(loss.detach()) > 0
    loss.backward()
    assert any(p.grad is not None for p in holdfast.grafted_parameters(net))
    with tape() as side:  # no state remains after a forward pass, also after a failed one
        with pytest.raises(RuntimeError):
            net(torch.rand(2, 3), attention_mask=MASK)
        net.eval()(torch.tensor([[0, 5, 2]] * 4))
    assert not side["experts/real"]


def test_without_freeze_only_replaced_modules_are_frozen(folder):
    kind, net = grafted("experts-own", folder, freeze=False)
    frozen = [name for name, p in net.named_parameters() if not p.requires_grad]
    assert sorted(frozen) == ["two.act.weight", "two.down.bias", "two.down.weight", "two.up.bias", "two.up.weight"]
    before = {name: value.clone() for name, value in holdfast.plain_state(net).items()}
    train(kind, net, parameters=[p for p in net.parameters() if p.requires_grad])
    moved = {name for name, value in holdfast.plain_state(net).items() if not torch.equal(value, before[name])}
    assert moved == set(before) - set(frozen)


def test_ungraft_restores_requires_grad(folder):
    net = make("own", folder)
    net.one.requires_grad_(False)
    holdfast.graft(net, experts={**EXPERTS, "at": ["one", "two"], "feed": ("up", "act", "down")}, freeze=True)
    holdfast.ungraft(net)
    assert {name for name, p in net.named_parameters() if not p.requires_grad} == {
        f"one.{name}" for name, _ in net.one.named_parameters()
    }


@pytest.mark.parametrize("name", ["both", "memory-own", "general"])
def test_copies_are_independent(name, folder):
    kind, net = grafted(name, folder)
    expected = run(kind, net)
    other = copy.deepcopy(net)
    assert torch.equal(run(kind, other), expected)
    train(kind, other)
    assert torch.equal(run(kind, net), expected)
    assert not torch.equal(run(kind, other), expected)
    plain = run(kind, make(kind, folder))
    assert torch.equal(run(kind, holdfast.ungraft(other)), plain)
    assert torch.equal(run(kind, net), expected)
    if name == "memory-own":
        again = pickle.loads(pickle.dumps(net))
        assert torch.equal(run(kind, again), expected)
        assert torch.equal(run(kind, holdfast.ungraft(again)), plain)


def test_general_network_is_read_and_not_changed(folder):
    general = make("bert", folder)
    with torch.no_grad():
        general.encoder.layer[1].output.dense.weight.add_(0.3)
    before = copy.deepcopy(general.state_dict())
    net = holdfast.graft(make("bert", folder), general={"network": general, "strategy": "multi", "layers": [2]})
    first = run("bert", net)
    assert not holdfast.grafted_parameters(net)
    assert not torch.allclose(first, run("bert", make("bert", folder)), atol=1e-3)
    train("bert", net, parameters=list(net.parameters()))
    assert all(torch.equal(value, before[name]) for name, value in general.state_dict().items())
    with pytest.raises(BadInput, match="called with input_ids"):
        net(inputs_embeds=torch.rand(2, 3, 32))


@pytest.mark.parametrize(
    ("kind", "requested", "message"),
    [
        ("own", {}, "nothing to graft"),
        ("own", {"memory": 4}, r"memory=\{'width'"),
        ("own", {"memory": {"slot": 4}}, "did you mean 'slots'"),
        ("own", {"memory": {"at": "onee"}}, "did you mean 'one'"),
        ("own", {"memory": {"at": [0]}}, "Own has no list of layers"),
        ("own", {"memory": {"share": 2.0}}, "share.*2.0"),
        ("own", {"experts": {"at": "one"}}, "Block has no feed-forward network"),
        ("own", {"experts": {"at": "one", "feed": ("up", "down")}}, "feed.*three"),
        ("own", {"experts": {"at": "one", "feed": ("up", "act", "act")}}, "up and act of 'one'"),
        ("own", {"general": nn.Linear(2, 2)}, "transformers.*(Own|Linear)"),
        ("own", {"experts": 0}, "experts.*0"),
        ("bert", {"memory": {"at": 3}}, "at.* 0 to 2.*3"),
        ("bert", {"memory": {"at": [2, -1]}}, "at.*duplicates"),
        ("bert", {"general": {"strategy": "single"}}, "general.*network"),
        ("bert", {"experts": {"cuont": 3}}, "did you mean 'count'"),
    ],
)
def test_invalid_grafts_raise_and_leave_the_network_unchanged(kind, requested, message, folder):
    net = make(kind, folder)
    with pytest.raises(BadInput, match=message):
        holdfast.graft(net, **requested)
    assert NAME not in dict(net.named_children())
    assert all(p.requires_grad for p in net.parameters())


def test_invalid_use_raises(folder):
    net = holdfast.graft(make("own", folder), memory={"at": "one", "width": 5})
    with pytest.raises(BadInput, match=r"'one' .* 5.*\(4, 8\).*width=8"):
        run("own", net)
    with pytest.raises(BadInput, match="is grafted already"):
        holdfast.graft(net, memory={"at": "two", "width": 8})
    whole = holdfast.graft(make("bert", folder), memory={"at": "", "width": 32})
    with pytest.raises(BadInput, match="the network itself"):
        run("bert", whole)
