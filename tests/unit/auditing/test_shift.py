"""A planted shift is detected in the right place and nowhere else."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast import catalog
from holdfast.auditing.audit import audit
from holdfast.auditing.shift import MIN_ROWS, Distance, _matched, label_shifts
from holdfast.auditing.verdict import SINGLE_SOURCE, TRIALS, Verdict, headline, trials
from holdfast.data.synthetic import world
from holdfast.spec import Spec


def mixed(dataset, seed=0):
    """Assign examples to random domains, which removes every shift."""
    order = np.random.default_rng(seed).permutation(len(dataset))
    moved = dataset.subset(order)
    return type(moved)(moved.name, moved.raw, moved.y, moved.classes, dataset.domain, dataset.domains)


def test_label_shifts_are_total_variation_distances_with_a_significance_test():
    counts = np.array([[50, 50, 0], [90, 10, 0], [52, 48, 0], [0, 0, 0]])
    shifts = {(shift.one, shift.other): shift for shift in label_shifts(("a", "b", "c", "none"), counts)}
    assert set(shifts) == {("a", "b"), ("a", "c"), ("b", "c")}
    assert shifts["a", "b"].variation == pytest.approx(0.4)
    assert shifts["a", "b"].real
    assert not shifts["a", "c"].real


def test_matched_samples_have_equal_label_counts():
    one, other = np.repeat([0, 1], [90, 10]), np.repeat([0, 1, 2], [5, 60, 9])
    left, right = _matched(one, other, np.random.default_rng(0))
    assert np.bincount(one[left]).tolist() == np.bincount(other[right]).tolist() == [5, 10]
    assert _matched(np.full(20, -1), other, np.random.default_rng(0)) is None


@pytest.mark.parametrize("kind", ["text", "vector", "image", "graph"])
def test_no_shift_is_reported_without_a_shift(kind):
    shift = "vocabulary" if kind == "text" else "size" if kind == "graph" else "rotation"
    result = audit(mixed(world(kind, shift, domains=3, size=100)), near=1.0)
    assert (result.verdict.inputs, result.verdict.labels, result.verdict.costly) == (0, 0, False), result.headline
    assert "no shift in the inputs and no shift in the labels" in result.headline
    assert "methods='erm,swad(erm)'" in result.advice[-1]
    assert bool(result.words) == (kind == "text")
    (distances,) = [grid for grid in result.grids if grid.title == "Distance of inputs"]
    assert f"{3 * max(distance.noise for distance in result.distances):.2f}" in distances.about


def test_input_shift_is_not_reported_as_label_shift():
    """Methods without an effect on the encoder, which compare would freeze, are not advised."""
    result = audit(world("text", "vocabulary", domains=3, size=200), near=1.0)
    assert not any("coral" in sentence for sentence in result.advice)
    assert (result.verdict.inputs > 0, result.verdict.labels) == (True, 0), result.headline
    assert result.verdict.where == "inputs"
    assert result.verdict.costly
    assert all(each.matched for each in result.distances)


@pytest.mark.parametrize(
    ("shift", "labels", "where", "fragment"),
    [("label", 3, "labels", "cdann"), ("rotation", 0, "meaning", "relation differs")],
)
def test_shifts_of_labels_and_of_their_relation_are_not_reported_as_input_shift(shift, labels, where, fragment):
    result = audit(world("vector", shift, domains=3, size=400), near=1.0)
    assert (result.verdict.inputs, result.verdict.labels, result.verdict.where) == (0, labels, where), result.headline
    assert any(fragment in sentence for sentence in result.advice)


@pytest.mark.parametrize("rows", [4, 9])
def test_too_few_rows_are_reported_as_not_measured(rows):
    result = audit(world("text", "vocabulary", domains=3, size=rows), near=1.0)
    assert (result.verdict.inputs, result.verdict.labels) == (None, None)
    assert "the inputs and the labels could not be measured" in result.headline
    assert not any("suffice" in sentence for sentence in result.advice)


def test_domain_too_small_for_distances_is_named():
    dataset = world("vector", "rotation", domains=3, size=40)
    small = dataset.subset(np.r_[dataset.rows_of(dataset.domains[0])[:7], 40 : len(dataset)])
    unmeasured = [sentence for sentence in audit(small, near=1.0).advice if "not measured" in sentence]
    assert len(unmeasured) == 1
    assert dataset.domains[0] in unmeasured[0]
    assert not any("not measured" in sentence for sentence in audit(dataset, near=1.0).advice)


def test_ten_rows_per_domain_suffice_for_significance():
    far = Distance("a", "b", 2.0, 2 / np.sqrt(MIN_ROWS), MIN_ROWS, matched=True)
    assert far.real
    assert not replace(far, noise=2 / np.sqrt(MIN_ROWS - 1)).real
    assert label_shifts(("a", "b"), np.array([[MIN_ROWS, 0], [0, MIN_ROWS]]))[0].real


def test_labels_can_be_measured_without_inputs():
    text = headline(Verdict(None, 0, None, None), 3, labelled=True)
    assert "no shift in the labels" in text
    assert "in the inputs could not be measured" in text


def test_advised_methods_are_in_the_catalog_and_support_the_task():
    for task in catalog.TASKS:
        for where in TRIALS:
            for kind in ("text", "image", "vector", "graph"):
                encoder = {"text": "minilm", "image": "resnet18", "vector": "mlp", "graph": "gin"}[kind]
                spec = Spec(data="toy", fingerprint="f", task=task, encoder=encoder, tune="full")
                for domains in (2, 3):
                    names = trials(spec, kind, where, domains)
                    assert names[0] == "erm"
                    for name in names:
                        layers = catalog.unwrap("methods", name)
                        assert not any(layer.unsupported(task) for _, layer in layers)
    alone = [layer.load() for name in SINGLE_SOURCE for _, layer in catalog.unwrap("methods", name)]
    assert all(method.min_domains == 1 for method in alone)


def test_methods_without_effect_on_a_frozen_encoder_are_not_advised():
    frozen = Spec(data="toy", fingerprint="f", encoder="minilm", tune="frozen")
    assert trials(frozen, "text", "inputs", 3) == ["erm", "mldg", "mil", "swad(erm)"]
    assert trials(replace(frozen, tune="full"), "text", "inputs", 3) == ["erm", "coral", "mldg", "mil", "swad(erm)"]
    assert "cdann" not in trials(frozen, "text", "both", 3)


def test_headline_mentions_only_measured_shifts():
    assert "labels" not in headline(Verdict(2, 0, None, None), 3, labelled=False)
    assert headline(Verdict(0, 0, None, None), 1, labelled=True).startswith("There is only one domain")
    one = audit(world("vector", "none", domains=1, size=40))
    assert "--column domain=NAME" in one.advice[-1]
    room = {"low": -0.04, "high": 0.0, "inside": 0.7, "outside": 0.72}
    assert "no shift worth fighting" in headline(Verdict(1, 0, -0.02, 0.01, **room), 3, labelled=True)
    assert "more rows" in headline(Verdict(1, 0, 0.02, 0.03, **room | {"high": 0.08}), 3, labelled=True)
    assert "is a shift worth fighting" in headline(Verdict(1, 0, 0.02, 0.01, **room | {"low": 0.01}), 3, labelled=True)
