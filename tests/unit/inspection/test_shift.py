"""A planted shift is found where it is, and nowhere else."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast import catalog
from holdfast.audit.audit import audit
from holdfast.audit.shift import LEAST, Distance, _matched, label_shifts
from holdfast.audit.verdict import TRIALS, WITH_ONE, Verdict, headline, trials
from holdfast.data.synthetic import world
from holdfast.spec import Spec


def mixed(dataset, seed=0):
    """The same examples dealt to domains by chance: no shift of any kind."""
    order = np.random.default_rng(seed).permutation(len(dataset))
    moved = dataset.subset(order)
    return type(moved)(moved.name, moved.raw, moved.y, moved.classes, dataset.domain, dataset.domains)


def test_label_shifts_are_total_variations_with_a_test_behind_them():
    counts = np.array([[50, 50, 0], [90, 10, 0], [52, 48, 0], [0, 0, 0]])
    found = {(each.one, each.other): each for each in label_shifts(("a", "b", "c", "none"), counts)}
    assert set(found) == {("a", "b"), ("a", "c"), ("b", "c")}
    assert found["a", "b"].variation == pytest.approx(0.4)
    assert found["a", "b"].real
    assert not found["a", "c"].real


def test_labels_are_drawn_alike_on_both_sides():
    one, other = np.repeat([0, 1], [90, 10]), np.repeat([0, 1, 2], [5, 60, 9])
    left, right = _matched(one, other, np.random.default_rng(0))
    assert np.bincount(one[left]).tolist() == np.bincount(other[right]).tolist() == [5, 10]
    assert _matched(np.full(20, -1), other, np.random.default_rng(0)) is None


@pytest.mark.parametrize("kind", ["text", "vector", "image", "graph"])
def test_without_a_shift_none_is_found(kind):
    shift = "vocabulary" if kind == "text" else "size" if kind == "graph" else "rotation"
    found = audit(mixed(world(kind, shift, domains=3, size=100)), near=1.0)
    assert (found.verdict.inputs, found.verdict.labels, found.verdict.costly) == (0, 0, False), found.headline
    assert "no shift in the inputs and no shift in the labels" in found.headline
    assert "--methods 'erm,swad(erm)'" in found.advice[-1]
    assert bool(found.words) == (kind == "text")
    (apart,) = [grid for grid in found.grids if grid.title == "Inputs apart"]
    most = 3 * max(each.noise for each in found.distances)
    assert apart.about.endswith(
        f"Domains that are alike come out up to {most:.2f} apart by chance; * marks more than chance gives."
    )


def test_a_shift_of_inputs_is_one_of_inputs_alone():
    found = audit(world("text", "vocabulary", domains=3, size=200), near=1.0)
    assert (found.verdict.inputs > 0, found.verdict.labels) == (True, 0), found.headline
    assert found.verdict.where == "inputs"
    assert found.verdict.costly
    assert all(each.matched for each in found.distances)


def test_a_shift_of_labels_is_one_of_labels_alone():
    found = audit(world("vector", "label", domains=3, size=400), near=1.0)
    assert (found.verdict.inputs, found.verdict.labels) == (0, 3), found.headline
    assert found.verdict.where == "labels"
    assert any("mix up classes" in sentence for sentence in found.advice)


def test_where_only_the_link_of_inputs_and_labels_turns_it_is_said():
    found = audit(world("vector", "rotation", domains=3, size=400), near=1.0)
    assert (found.verdict.inputs, found.verdict.labels) == (0, 0), found.headline
    assert found.verdict.where == "meaning"
    assert any("how they go together differs" in sentence for sentence in found.advice)


@pytest.mark.parametrize("rows", [4, 9])
def test_too_few_rows_are_said_to_be_too_few_and_not_to_be_without_a_shift(rows):
    found = audit(world("text", "vocabulary", domains=3, size=rows), near=1.0)
    assert (found.verdict.inputs, found.verdict.labels) == (None, None)
    assert found.headline == (
        "Whether there is a shift in the inputs and the labels could not be measured: that needs 10 different rows or "
        "more in each of two domains."
    )
    assert not any("will most likely do" in sentence for sentence in found.advice)


def test_a_domain_that_is_too_small_among_larger_ones_is_named():
    dataset = world("text", "vocabulary", domains=3, size=40)
    small = dataset.subset(np.r_[dataset.rows_of(dataset.domains[0])[:7], 40 : len(dataset)])
    told = "How far inputs lie apart was not measured for domains of fewer than 10 different rows:"
    assert f"{told} {dataset.domains[0]}." in audit(small, near=1.0).advice
    assert not any(told in sentence for sentence in audit(dataset, near=1.0).advice)


def test_ten_rows_of_each_domain_can_be_told_from_chance():
    far = Distance("a", "b", 2.0, 2 / np.sqrt(LEAST), LEAST, matched=True)
    assert far.real
    assert not replace(far, noise=2 / np.sqrt(LEAST - 1)).real
    assert label_shifts(("a", "b"), np.array([[LEAST, 0], [0, LEAST]]))[0].real


def test_labels_may_be_measured_where_inputs_are_not():
    told = headline(Verdict(None, 0, None, None), 3, labelled=True)
    assert told.startswith("There is no shift in the labels. Whether there is a shift in the inputs could not")


def test_every_method_that_is_advised_is_in_the_catalog_and_serves():
    for task in catalog.TASKS:
        for where in TRIALS:
            for kind in ("text", "image", "vector", "graph"):
                encoder = {"text": "minilm", "image": "resnet18", "vector": "mlp", "graph": "gin"}[kind]
                spec = Spec(data="made", fingerprint="f", task=task, encoder=encoder, tune="full")
                for domains in (2, 3):
                    names = trials(spec, kind, where, domains)
                    assert names[0] == "erm"
                    for name in names:
                        assert all(task in layer.tasks for _, layer in catalog.unwrap("methods", name))
    alone = [layer.load() for name in WITH_ONE for _, layer in catalog.unwrap("methods", name)]
    assert all(method.min_domains == 1 for method in alone)


def test_methods_that_cannot_act_on_a_frozen_encoder_are_not_advised():
    frozen = Spec(data="made", fingerprint="f", encoder="minilm", tune="frozen")
    assert trials(frozen, "text", "inputs", 3) == ["erm", "mldg", "mil", "swad(erm)"]
    assert trials(replace(frozen, tune="full"), "text", "inputs", 3) == ["erm", "coral", "mldg", "mil", "swad(erm)"]
    assert "cdann" not in trials(frozen, "text", "both", 3)
    found = audit(world("text", "vocabulary", domains=3, size=200), near=1.0)  # a comparison would freeze its encoder
    assert not any("coral" in sentence for sentence in found.advice)


def test_the_headline_says_what_was_not_measured_by_leaving_it_out():
    assert "labels" not in headline(Verdict(2, 0, None, None), 3, labelled=False)
    assert headline(Verdict(0, 0, None, None), 1, labelled=True).startswith("There is one domain")
    one = audit(world("vector", "none", domains=1, size=40))
    assert one.advice[-1] == "To look for a shift, name another column with --column domain=NAME."
    assert "loses nothing" in headline(Verdict(1, 0, -0.02, 0.01), 3, labelled=True)
