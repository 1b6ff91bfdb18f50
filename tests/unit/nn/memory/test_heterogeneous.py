"""HMA's neck: what an example sees in training and when it is predicted, what is constant, and what is learned."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.memory.heterogeneous import PIECE, HeterogeneousMemory
from holdfast.nn.memory.read import Writable
from holdfast.nn.model import Model
from holdfast.nn.necks import ParameterControl

WIDTH, CLASSES = 8, 3
SMALL = {"real": 10, "slots": 2, "label_width": 4, "heads": 2, "support": 6, "dropout": 0.0}
CHANCE = torch.Generator().manual_seed(3)
Z = torch.randn(7, WIDTH, generator=CHANCE)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
ALONE = ("support", "self", "none")


def neck(**options) -> HeterogeneousMemory:
    torch.manual_seed(0)
    return HeterogeneousMemory(WIDTH, CLASSES, **{**SMALL, **options})


def filled(**options) -> HeterogeneousMemory:
    made = neck(**options)
    made.write(torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1)), Y)
    made.set_support(made.read_queue(Z).detach() if made.across else Z)
    return made


def naive(made: HeterogeneousMemory, z, context):
    """Both reads example by example, each with a list of its own of all that it sees, as the paper's equations say."""
    table, recalled = made.labels.weight, []
    for one in z:
        query = torch.cat([one, table[CLASSES]])[None]
        if made.first is not None:
            seen = made.queue.seen
            rows = torch.cat([made.queue.features[seen], table[made.queue.labels[seen]]], dim=1)
            query, _ = made.first(query, made.first.keys_values(torch.cat([query, rows])), with_self=False)
        recalled.append(query)
    if made.second is None:
        return torch.cat(recalled)
    slots = query.new_zeros(0, query.shape[1])
    if made.slots is not None:
        slots = torch.cat([made.slots.values, table[made.slots.labels]], dim=1)
    others = {"batch": recalled, "support": [made.support.rows[made.support.seen]] if made.across else []}
    out = []
    for one in recalled:
        seen = [*others.get(context, []), slots, *([one] if context in ("self", "support") else [])]
        out.append(made.second(one, made.second.keys_values(torch.cat(seen)), with_self=False)[0])
    return torch.cat(out)


@pytest.mark.parametrize("options", [{}, {"slots": 0}, {"real": 0}, {"real": 0, "slots": 0}], ids=str)
@pytest.mark.parametrize("context", ["batch", *ALONE])
def test_it_is_the_naive_network(options, context):
    if context == "none" and "slots" in options:
        pytest.skip("there would be nothing to see")
    made = filled(**options, context=context).eval()
    assert_close(made(Z), naive(made, Z, context), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"slots": 0}, {"slots": 0, "across": False}, {"across": False}], ids=str)
def test_in_training_an_example_sees_its_batch_whatever_the_context(options):
    made = filled(**options).train()
    expected = naive(made, Z, "batch" if made.across else "self")
    assert_close(made(Z), expected, rtol=1e-5, atol=1e-5)
    target = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    table = made.labels.weight
    for (name, p), a, b in zip(
        made.named_parameters(),
        torch.autograd.grad((made(Z) * target).sum(), list(made.parameters()), allow_unused=True),
        torch.autograd.grad((expected * target).sum(), list(made.parameters()), allow_unused=True),
        strict=True,
    ):
        if p is not table:  # in the naive one the labels of the queue learn too
            assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def test_in_batch_context_an_order_of_the_batch_is_an_order_of_the_outputs():
    made, order = filled(context="batch").eval(), torch.tensor([3, 0, 6, 2, 5, 1, 4])
    assert_close(made(Z[order]), made(Z)[order], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(made(Z[:3]), made(Z)[:3], atol=1e-4)


@pytest.mark.parametrize("context", ALONE)
@pytest.mark.parametrize("width", [WIDTH, 124])
def test_alone_no_other_example_changes_a_bit(context, width):
    torch.manual_seed(0)
    made = HeterogeneousMemory(width, CLASSES, **{**SMALL, "context": context})
    z = torch.randn(2 * PIECE + 9, width, generator=torch.Generator().manual_seed(2))
    made.write(z[:5], Y[:5])
    made.set_support(made.read_queue(z[:4]))
    made.eval()
    with torch.no_grad():
        whole, order = made(z), torch.randperm(len(z), generator=torch.Generator().manual_seed(4))
        assert torch.equal(made(z[order]), whole[order])
        for size in (1, 7, PIECE, PIECE + 1):
            assert torch.equal(torch.cat([made(part) for part in z.split(size)]), whole), size
    assert made(z[:0]).shape == (0, made.width)


def test_the_support_set_counts_and_an_empty_one_is_none():
    made = filled(context="support").eval()
    with_it = made(Z)
    made.context = "self"
    without = made(Z)
    assert not torch.allclose(with_it, without, atol=1e-4)
    made.context = "support"
    made.set_support(torch.zeros(0, WIDTH + 4))
    assert_close(made(Z), without)


def test_an_empty_queue_is_not_seen():
    made = neck().eval()
    before = made(Z)
    with torch.no_grad():
        made.queue.features.fill_(5.0)  # rows that nobody wrote
    assert torch.equal(made(Z), before)
    made.write(Z, Y)
    assert not torch.allclose(made(Z), before, atol=1e-4)


def test_the_forward_pass_writes_nothing():
    made = filled()
    for mode in (True, False):
        made.train(mode)
        before = copy.deepcopy(made.state_dict())
        made(Z)
        made.read_queue(Z)
        for name, value in made.state_dict().items():
            assert torch.equal(value, before[name]), name
    assert isinstance(made, Writable)


def test_the_queue_is_constant_and_gives_its_labels_no_gradient():
    made = filled(slots=0).train()
    made(Z).square().sum().backward()
    assert not any(buffer.requires_grad for buffer in made.buffers())
    assert bool(made.labels.weight.grad[CLASSES].any())
    assert not made.labels.weight.grad[:CLASSES].any()
    made = filled().train()
    made(Z).square().sum().backward()
    assert all(bool(row.any()) for row in made.labels.weight.grad)  # the slots' labels learn


def test_labels_of_the_queue_follow_the_table_unless_they_are_stale():
    for stale in (False, True):
        made = filled(stale_labels=stale, slots=0, across=False).eval()
        before = made(Z)
        with torch.no_grad():
            made.labels.weight[:CLASSES] += 1.0  # a query has the last row
        assert torch.equal(made(Z), before) == stale
    fresh, stale = filled(slots=0, across=False).eval(), filled(slots=0, across=False, stale_labels=True).eval()
    assert_close(fresh(Z), stale(Z))  # until a label moves they are the same


def test_noise_instead_of_a_queue_is_read_and_stays():
    made = neck(written=False).eval()
    assert bool(made.queue.seen.all())
    before = made(Z)
    made.write(Z, Y)
    assert torch.equal(made(Z), before)
    empty = neck().eval()
    assert not torch.allclose(before, empty(Z), atol=1e-4)


@pytest.mark.parametrize("context", ["batch", *ALONE])
def test_a_tape_hears_the_weights_and_whose_they_are(context):
    made = filled(context=context).eval()
    plain = made(Z)
    with tape() as side:
        assert torch.equal(made(Z), plain)
    (real,), (across,) = side["heterogeneous/real"], side["heterogeneous/across"]
    assert real.shape == (7, 2, 11)
    assert across.shape == (7, 2, {"batch": 7, "support": 7, "self": 1, "none": 0}[context] + 6)
    for weights in (real, across):
        assert_close(weights.sum(-1), torch.ones(7, 2))
        assert not weights.requires_grad
    assert not real[..., 8:].any()  # rows of the queue that nobody wrote
    (first,), (second,) = side["heterogeneous/real/mass"], side["heterogeneous/across/mass"]
    assert_close(first.sum(1), torch.ones(7))
    assert_close(second.sum(1), torch.ones(7))
    assert first.gt(0).tolist() == [[True, False, True, False]] * 7
    themselves, others = context != "none", context in ("batch", "support")
    assert second.gt(1e-9).tolist() == [[themselves, others, False, True]] * 7
    if context == "batch":
        assert_close(second[2, 0], across[2, :, 2].mean())
    made.train()
    with tape() as side:
        made(Z)
    assert list(side) == ["heterogeneous/recalled"]  # in training, where every rule listens, no weights are held
    assert_close(side["heterogeneous/recalled"][0], made.read_queue(Z))


@pytest.mark.parametrize("part", ["all", "label", "feature"])
def test_the_head_gets_all_or_a_part(part):
    made, whole = filled(part=part).eval(), filled().eval()(Z)
    cut = {"all": slice(None), "label": slice(WIDTH, None), "feature": slice(WIDTH)}[part]
    assert made(Z).shape == (7, made.width)
    assert torch.equal(made(Z), whole[:, cut])


def test_slots_that_begin_at_zero_stay_alike_for_ever():
    for start, alike in (("zeros", True), ("normal", False)):
        made = neck(start=start, slots=3)
        head, chance = nn.Linear(made.width, CLASSES), torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam([*made.parameters(), *head.parameters()], lr=0.01)
        for _ in range(20):
            z = torch.randn(9, WIDTH, generator=chance)
            y = torch.randint(CLASSES, (9,), generator=chance)
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(made(z)), y).backward()
            optimizer.step()
        groups = made.slots.values.detach().view(CLASSES, 3, WIDTH)
        assert bool(groups.any())  # they moved
        assert torch.equal(groups, groups[:, :1].expand_as(groups)) == alike
        assert bool((made.slots.slot_similarity() > 0.9999).all()) == alike


def test_frozen_slots_do_not_learn():
    made = neck(frozen=True)
    assert [name for name, p in made.named_parameters() if not p.requires_grad] == ["slots.values"]


def test_parameters_alone_are_the_two_blocks():
    alone, full = ParameterControl(WIDTH + 4, heads=2), neck()
    blocks = [p.shape for block in (full.first, full.second) for p in block.parameters()]
    assert [p.shape for p in alone.parameters()] == blocks
    assert not list(alone.buffers())
    made = catalog.build_neck("param", WIDTH, CLASSES, options={"heads": 2})
    assert isinstance(made, ParameterControl)
    assert made(Z).shape == (7, WIDTH)
    assert_close(made.eval()(Z)[:1], made(Z[:1]))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("heterogeneous", {"first", "queue", "second", "slots", "support", "labels"}),
        ("rma", {"first", "queue", "labels"}),
        ("abd", {"second", "support", "labels"}),
        ("abd-rma", {"first", "queue", "second", "support", "labels"}),
        ("abd-syn", {"second", "slots", "support", "labels"}),
    ],
)
def test_the_ablations_have_what_they_are_named_for(name, parts):
    made = catalog.build_neck(name, 60, CLASSES, options={})
    assert {part for part, _ in made.named_children()} == parts
    assert made.width == 124


def test_sizes_are_those_of_the_published_cost():
    with torch.device("meta"):
        made = catalog.build_neck("heterogeneous", 768, 47, options={"slots": 8})
    blocks = sum(p.numel() for part in (made.first, made.second) for p in part.parameters())
    assert blocks == pytest.approx(15.25e6, rel=1e-3)
    assert sum(p.numel() for p in made.parameters()) == blocks + 47 * 8 * 768 + 48 * 64


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heads": 5}, r"neck.heads=5 .* 12 .*neck.label_width=7"),
        ({"heads": 0}, "neck.heads.*got 0"),
        ({"context": "all"}, "unknown context 'all'"),
        ({"part": "half"}, "unknown part 'half'"),
        ({"real": 0, "slots": 0, "across": False}, "neck.real"),
        ({"context": "none", "slots": 0}, "neck.context=none.*slots"),
        ({"real": -1}, "neck.real.*-1"),
        ({"label_width": 0}, "at least 1"),
    ],
)
def test_wrong_options_get_one_sentence(options, told):
    with pytest.raises(BadInput, match=told):
        neck(**options)


@pytest.mark.parametrize("name", ["rma", "abd", "abd-rma", "abd-syn", "heterogeneous"])
def test_the_hint_for_context_none_can_be_followed(name):
    without = {"slots": 0} if "slots" in catalog.lookup("necks", name).setting_names() else {}
    with pytest.raises(BadInput, match=r"neck\.context=self.*neck=abd-syn"):
        catalog.build_neck(name, 60, CLASSES, options={**without, "context": "none"})
    catalog.build_neck(name, 60, CLASSES, options={**without, "context": "self"})
    for other in ("heterogeneous", "abd-syn"):
        catalog.build_neck(other, 60, CLASSES, options={"slots": 1, "context": "none"})


def test_by_default_the_label_is_as_wide_as_published_or_as_the_heads_need():
    for width, label in ((768, 64), (10, 66), (11, 65)):
        assert HeterogeneousMemory(width, CLASSES, real=2, slots=1).labels.embedding_dim == label


@pytest.mark.parametrize("training", [True, False])
def test_in_half_precision_it_is_nearly_the_same(training):
    made = filled().train(training)
    exact, half = (Model(nn.Identity(), made, nn.Linear(made.width, 2), precision=p) for p in ("fp32", "bf16"))
    assert half.features(Z).dtype == torch.float32
    assert_close(half.features(Z), exact.features(Z), rtol=0.1, atol=0.05)
    half.features(Z).square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in made.parameters())


def test_a_neck_without_classes_is_made_as_before_and_settings_hide_the_classes():
    assert "classes" not in catalog.lookup("necks", "heterogeneous").setting_names()
    assert catalog.build_neck("projection", 8, 3, options={"hidden": 5}).width == 5
    with pytest.raises(BadInput, match="setting of neck 'rma'"):
        catalog.check_settings("necks", "rma", {"slots": 3})


def test_a_model_says_where_others_change_a_prediction():
    for options, expected in (({}, None), ({"context": "batch", "shuffle": 5}, (6, 5))):
        memory = neck(**options)
        assert Model(nn.Identity(), memory, nn.Linear(memory.width, CLASSES)).prediction_batch == expected
    assert Model(nn.Identity(), nn.Identity(), nn.Linear(1, 1)).prediction_batch is None
