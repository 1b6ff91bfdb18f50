"""Heterogeneous memory: attention in training and prediction, gradients, settings."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.memory.heterogeneous import PIECE, HeterogeneousMemory
from holdfast.nn.model import Model
from holdfast.nn.necks import MatchedControl, ParameterControl
from tests.gradients import assert_same

WIDTH, CLASSES = 8, 3
SMALL = {"real": 10, "slots": 2, "label_width": 4, "heads": 2, "support": 6, "dropout": 0.0}
RNG = torch.Generator().manual_seed(3)
Z = torch.randn(7, WIDTH, generator=RNG)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
ALONE = ("support", "self", "none")


def neck(**options) -> HeterogeneousMemory:
    torch.manual_seed(0)
    return HeterogeneousMemory(WIDTH, CLASSES, **{**SMALL, **options})


def filled(**options) -> HeterogeneousMemory:
    module = neck(**options)
    module.write(torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1)), Y)
    module.set_support(module.read_queue(Z).detach() if module.across else Z)
    return module


def naive(module: HeterogeneousMemory, z, context):
    """Compute both reads example by example, as in the paper's equations."""

    def scaled(rows):  # the same for features and label vectors
        if module.options.input_norm == "published":
            return rows
        return (rows - rows.mean(-1, keepdim=True)) / (rows.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()

    table, recalled = scaled(module.labels.weight), []
    for one in z:
        query = torch.cat([scaled(one), table[CLASSES]])[None]
        if module.first is not None:
            seen = module.queue.seen
            rows = torch.cat([scaled(module.queue.features[seen]), table[module.queue.labels[seen]]], dim=1)
            rows = torch.cat([query, rows]) if module.options.include_self or not bool(seen.any()) else rows
            query, _ = module.first(query, module.first.keys_values(rows), with_self=False)
        recalled.append(query)
    if module.second is None:
        return torch.cat(recalled)
    slots = query.new_zeros(0, query.shape[1])
    if module.slots is not None:
        slots = torch.cat([scaled(module.slots.values), table[module.slots.labels]], dim=1)
    others = {"batch": recalled, "support": [module.support.rows[module.support.seen]] if module.across else []}
    out = []
    for one in recalled:
        seen = [*others.get(context, []), slots, *([one] if context in ("self", "support") else [])]
        out.append(module.second(one, module.second.keys_values(torch.cat(seen)), with_self=False)[0])
    return torch.cat(out)


@pytest.mark.parametrize(
    "options",
    [{}, {"slots": 0}, {"real": 0}, {"real": 0, "slots": 0}, {"input_norm": "published"}, {"include_self": True}],
    ids=str,
)
@pytest.mark.parametrize("context", ["batch", *ALONE])
def test_memory_equals_a_naive_implementation(options, context):
    if context == "none" and "slots" in options:
        pytest.skip("there would be nothing to see")
    module = filled(**options, context=context).eval()
    assert_close(module(Z), naive(module, Z, context), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"slots": 0}, {"slots": 0, "across": False}, {"across": False}], ids=str)
def test_training_attends_to_the_batch(options):
    module = filled(**options).train()
    expected = naive(module, Z, "batch" if module.across else "self")
    # the naive version also trains the labels of the queue
    learned = [p for p in module.parameters() if p is not module.labels.weight]
    assert_same(module(Z), expected, learned, tolerance=1e-5, gradients=10)


@pytest.mark.parametrize("context", ALONE)
@pytest.mark.parametrize("width", [WIDTH, 124])
def test_predictions_are_independent_of_other_examples(context, width):
    torch.manual_seed(0)
    module = HeterogeneousMemory(width, CLASSES, **{**SMALL, "context": context})
    z = torch.randn(2 * PIECE + 9, width, generator=torch.Generator().manual_seed(2))
    module.write(z[:5], Y[:5])
    module.set_support(module.read_queue(z[:4]))
    module.eval()
    with torch.no_grad():
        whole, order = module(z), torch.randperm(len(z), generator=torch.Generator().manual_seed(4))
        assert torch.equal(module(z[order]), whole[order])
        for size in (1, 7, PIECE, PIECE + 1):
            assert torch.equal(torch.cat([module(part) for part in z.split(size)]), whole), size
    assert module(z[:0]).shape == (0, module.width)


def test_support_set_and_empty_support_set():
    module = filled(context="support").eval()
    with_it = module(Z)
    module.context = "self"
    without = module(Z)
    assert not torch.allclose(with_it, without, atol=1e-4)
    module.context = "support"
    module.set_support(torch.zeros(0, WIDTH + 4))
    assert_close(module(Z), without)


def test_queue_labels_get_no_gradient():
    module = filled(slots=0).train()
    module(Z).square().sum().backward()
    assert not any(buffer.requires_grad for buffer in module.buffers())
    assert bool(module.labels.weight.grad[CLASSES].any())
    assert not module.labels.weight.grad[:CLASSES].any()
    module = filled().train()
    module(Z).square().sum().backward()
    assert all(bool(row.any()) for row in module.labels.weight.grad)  # the labels of slots are trained


def test_queue_labels_use_current_embeddings_unless_stale():
    for stale in (False, True):
        module = filled(stale_labels=stale, slots=0, across=False).eval()
        before = module(Z)
        with torch.no_grad():
            module.labels.weight[:CLASSES] += 1.0  # queries use the last row
        assert torch.equal(module(Z), before) == stale
    fresh, stale = filled(slots=0, across=False).eval(), filled(slots=0, across=False, stale_labels=True).eval()
    assert_close(fresh(Z), stale(Z))  # equal until an embedding changes


@pytest.mark.parametrize("context", ["batch", *ALONE])
def test_weights_and_masses_are_recorded(context):
    module = filled(context=context, include_self=context != "self").eval()
    plain = module(Z)
    with tape() as side:
        assert torch.equal(module(Z), plain)
    (real,), (across,) = side["heterogeneous/real"], side["heterogeneous/across"]
    assert real.shape == (7, 2, 11)
    assert across.shape == (7, 2, {"batch": 7, "support": 7, "self": 1, "none": 0}[context] + 6)
    for weights in (real, across):
        assert_close(weights.sum(-1), torch.ones(7, 2))
        assert not weights.requires_grad
    assert not real[..., 8:].any()  # empty rows of the queue
    (first,), (second,) = side["heterogeneous/real/mass"], side["heterogeneous/across/mass"]
    assert_close(first.sum(1), torch.ones(7))
    assert_close(second.sum(1), torch.ones(7))
    assert first.gt(0).tolist() == [[context != "self", False, True, False]] * 7
    themselves, others = context != "none", context in ("batch", "support")
    assert second.gt(1e-9).tolist() == [[themselves, others, False, True]] * 7
    if context == "batch":
        assert_close(second[2, 0], across[2, :, 2].mean())
    module.train()
    with tape() as side:
        module(Z)
    assert list(side) == ["heterogeneous/recalled"]  # training stores no weights
    assert_close(side["heterogeneous/recalled"][0], module.read_queue(Z))


def test_zero_slots_stay_equal():
    for start, alike in (("zeros", True), ("normal", False)):
        module = neck(start=start, slots=3)
        head, rng = nn.Linear(module.width, CLASSES), torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam([*module.parameters(), *head.parameters()], lr=0.01)
        for _ in range(20):
            z = torch.randn(9, WIDTH, generator=rng)
            y = torch.randint(CLASSES, (9,), generator=rng)
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(module(z)), y).backward()
            optimizer.step()
        groups = module.slots.values.detach().view(CLASSES, 3, WIDTH)
        assert bool(groups.any())  # they changed
        assert torch.equal(groups, groups[:, :1].expand_as(groups)) == alike


def test_frozen_slots_are_not_trained():
    module = neck(frozen=True)
    assert [name for name, p in module.named_parameters() if not p.requires_grad] == ["slots.values"]


def test_parameter_control_has_the_two_blocks():
    alone, full = ParameterControl(WIDTH + 4, heads=2), neck()
    blocks = [p.shape for block in (full.first, full.second) for p in block.parameters()]
    assert [p.shape for p in alone.parameters()] == blocks
    assert not list(alone.buffers())
    module = catalog.build_neck("param", WIDTH, CLASSES, options={"heads": 2})
    assert isinstance(module, ParameterControl)
    assert module(Z).shape == (7, WIDTH)
    assert_close(module.eval()(Z)[:1], module(Z[:1]))


@pytest.mark.parametrize(("width", "classes"), [(32, 2), (60, 7), (768, 47)])
@pytest.mark.parametrize(
    "options",
    [{}, {"slots": 32}, {"real": 0}, {"slots": 0, "across": False}],
    ids=str,
)
def test_matched_control_has_the_parameters_of_the_memory(width, classes, options):
    with torch.device("meta"):
        memory = catalog.build_neck("heterogeneous", width, classes, options=options)
        control = catalog.build_neck("param-matched", width, classes, options=options)
    counts = [sum(p.numel() for p in module.parameters()) for module in (memory, control)]
    assert counts[1] == pytest.approx(counts[0], rel=0.02)
    assert control.width == memory.width
    assert not list(control.buffers())


def test_matched_control_uses_every_parameter_on_single_examples():
    torch.manual_seed(0)
    module = MatchedControl(WIDTH, CLASSES, **SMALL).eval()
    assert_close(module(Z)[:1], module(Z[:1]))
    module(Z).square().sum().backward()
    assert all(bool(p.grad.any()) for p in module.parameters())


def test_queue_statistics():
    module = filled(slots=0, across=False).eval()
    with tape(labels=Y) as side:
        module(Z)
    (weights,), (ratio,), (mass,) = (side[name] for name in ("heterogeneous/real", "stat/queue/same_class",
                                                             "stat/queue/mass"))  # fmt: skip
    seen = module.queue.seen
    rows, labels = weights.mean(1)[:, 1:][:, seen], module.queue.labels[seen]
    own = labels[None] == Y[:, None]
    assert_close(ratio, (rows * own).sum() / (rows.sum(1) * own.float().mean(1)).sum())
    assert_close(mass, rows.sum(1).mean())
    assert 1 <= float(side["stat/queue/effective_rows"][0]) <= len(labels)
    with tape() as side:
        module(Z)
    assert not side["stat/queue/same_class"]  # without labels


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
def test_ablations_have_the_expected_modules(name, parts):
    module = catalog.build_neck(name, 60, CLASSES, options={})
    assert {part for part, _ in module.named_children()} == parts
    assert module.width == 124


def test_published_sizes():
    with torch.device("meta"):
        module = catalog.build_neck("heterogeneous", 768, 47, options={"slots": 8})
    blocks = sum(p.numel() for part in (module.first, module.second) for p in part.parameters())
    assert blocks == pytest.approx(15.25e6, rel=1e-3)
    assert sum(p.numel() for p in module.parameters()) == blocks + 47 * 8 * 768 + 48 * 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, r"neck.heads=5 .* 12 .*neck.label_width=7"),
        ({"real": 0, "slots": 0, "across": False}, "neck.real"),
        ({"context": "none", "slots": 0}, "neck.context=none.*slots"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(BadInput, match=message):
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
    module = filled().train(training)
    exact, half = (Model(nn.Identity(), module, nn.Linear(module.width, 2), precision=p) for p in ("fp32", "bf16"))
    assert half.features(Z).dtype == torch.float32
    assert_close(half.features(Z), exact.features(Z), rtol=0.1, atol=0.05)
    half.features(Z).square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters())


def test_a_neck_without_classes_is_made_as_before_and_settings_hide_the_classes():
    assert "classes" not in catalog.lookup("necks", "heterogeneous").setting_names()
    assert catalog.build_neck("projection", 8, 3, options={"hidden": 5}).width == 5
    with pytest.raises(BadInput, match="setting of neck 'rma'"):
        catalog.check_settings("necks", "rma", {"slots": 3})


def test_prediction_batch():
    for options, expected in (({}, None), ({"context": "batch", "shuffle": 5}, (6, 5))):
        memory = neck(**options)
        assert Model(nn.Identity(), memory, nn.Linear(memory.width, CLASSES)).prediction_batch == expected
    assert Model(nn.Identity(), nn.Identity(), nn.Linear(1, 1)).prediction_batch is None
