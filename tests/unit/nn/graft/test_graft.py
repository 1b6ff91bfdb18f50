"""Parts in a network of a user: a plain loop trains them, the network's own weights stay, and it comes back."""

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
    kind, asked = copy.deepcopy(GRAFTS[name])
    if "general" in asked:
        asked["general"]["network"] = make(kind, folder)
    torch.manual_seed(0)
    return kind, holdfast.graft(make(kind, folder), **asked, freeze=freeze)


def train(kind, net, *, steps=3, parameters=None):
    """A loop as anyone writes it."""
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
def test_a_plain_loop_trains_what_was_added_and_the_network_comes_back_bit_for_bit(name, folder):
    kind, net = grafted(name, folder)
    plain = make(kind, folder)
    own, wanted = plain.state_dict(), run(kind, plain)
    added = [p.detach().clone() for p in holdfast.grafted_parameters(net)]
    assert added
    train(kind, net)
    assert any(not torch.equal(a, b) for a, b in zip(added, holdfast.grafted_parameters(net), strict=True))
    assert not torch.equal(run(kind, net), wanted)
    state = holdfast.plain_state(net)
    assert list(state) == list(own)
    assert all(torch.equal(state[key], own[key]) for key in own)
    make(kind, folder).load_state_dict(state)  # strictly
    assert holdfast.ungraft(net) is net
    assert [str(part) for part in net.modules()] == [str(part) for part in plain.modules()]
    assert torch.equal(run(kind, net), wanted)
    assert all(p.requires_grad for p in net.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
    with pytest.raises(BadInput, match="is not grafted"):
        holdfast.ungraft(net)


def test_experts_begin_as_the_network_they_were_made_of(folder):
    for name in ("experts-bert", "experts-vit", "experts-own"):
        kind, net = grafted(name, folder)
        torch.testing.assert_close(run(kind, net), run(kind, make(kind, folder)), rtol=1e-4, atol=1e-5)


def test_a_memory_without_a_share_changes_nothing_and_is_after_the_layer_it_names(folder):
    plain = make("own", folder)
    none = holdfast.graft(make("own", folder), memory={"at": "one", "width": 8, "share": 0.0})
    assert torch.equal(run("own", none), run("own", plain))
    net = holdfast.graft(make("own", folder), memory={"at": "one", "width": 8, "share": 1.0})
    x = torch.rand(4, 8)
    content = net.get_submodule(NAME).parts[0].memory.read(plain.one(x)[0]).content
    torch.testing.assert_close(net(x), plain.head(plain.two(content)[0]))


def test_balance_losses_are_on_the_tape_in_training_alone_and_padding_does_not_count(folder):
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
    with tape() as side:  # nothing of a forward pass is left behind, by one that fails neither
        with pytest.raises(RuntimeError):
            net(torch.rand(2, 3), attention_mask=MASK)
        net.eval()(torch.tensor([[0, 5, 2]] * 4))
    assert not side["experts/real"]


def test_without_freezing_all_learns_but_what_stands_aside(folder):
    kind, net = grafted("experts-own", folder, freeze=False)
    frozen = [name for name, p in net.named_parameters() if not p.requires_grad]
    assert sorted(frozen) == ["two.act.weight", "two.down.bias", "two.down.weight", "two.up.bias", "two.up.weight"]
    before = {name: value.clone() for name, value in holdfast.plain_state(net).items()}
    train(kind, net, parameters=[p for p in net.parameters() if p.requires_grad])
    moved = {name for name, value in holdfast.plain_state(net).items() if not torch.equal(value, before[name])}
    assert moved == set(before) - set(frozen)


def test_parameters_that_did_not_learn_before_do_not_learn_after(folder):
    net = make("own", folder)
    net.one.requires_grad_(False)
    holdfast.graft(net, experts={**EXPERTS, "at": ["one", "two"], "feed": ("up", "act", "down")}, freeze=True)
    holdfast.ungraft(net)
    assert {name for name, p in net.named_parameters() if not p.requires_grad} == {
        f"one.{name}" for name, _ in net.one.named_parameters()
    }


@pytest.mark.parametrize("name", ["both", "memory-own", "general"])
def test_copies_are_their_own_and_can_be_ungrafted(name, folder):
    kind, net = grafted(name, folder)
    wanted = run(kind, net)
    other = copy.deepcopy(net)
    assert torch.equal(run(kind, other), wanted)
    train(kind, other)
    assert torch.equal(run(kind, net), wanted)
    assert not torch.equal(run(kind, other), wanted)
    plain = run(kind, make(kind, folder))
    assert torch.equal(run(kind, holdfast.ungraft(other)), plain)
    assert torch.equal(run(kind, net), wanted)
    if name == "memory-own":
        again = pickle.loads(pickle.dumps(net))
        assert torch.equal(run(kind, again), wanted)
        assert torch.equal(run(kind, holdfast.ungraft(again)), plain)


def test_a_general_network_is_read_and_stays_as_it_is(folder):
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
    ("kind", "asked", "said"),
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
def test_what_cannot_be_grafted_is_told_and_the_network_left_alone(kind, asked, said, folder):
    net = make(kind, folder)
    with pytest.raises(BadInput, match=said):
        holdfast.graft(net, **asked)
    assert NAME not in dict(net.named_children())
    assert all(p.requires_grad for p in net.parameters())


def test_faults_in_use_are_told(folder):
    net = holdfast.graft(make("own", folder), memory={"at": "one", "width": 5})
    with pytest.raises(BadInput, match=r"'one' .* 5.*\(4, 8\).*width=8"):
        run("own", net)
    with pytest.raises(BadInput, match="is grafted already"):
        holdfast.graft(net, memory={"at": "two", "width": 8})
    whole = holdfast.graft(make("bert", folder), memory={"at": "", "width": 32})
    with pytest.raises(BadInput, match="the network itself"):
        run("bert", whole)
