"""Audits of numbers, sets of labels and levels: shift, headroom and erasure are measured with their own metric."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from holdfast.auditing.audit import audit
from holdfast.auditing.probe import LabelProbe, NumberProbe, target_groups
from holdfast.auditing.shift import set_difference
from holdfast.core.errors import BadInput
from holdfast.stats.two_sample import ks_test
from holdfast.train.training_data import training_data

DOMAINS = ("a", "b", "c")


def numbers(*, turned: bool = False, moved: bool = False, rows: int = 450) -> pd.DataFrame:
    """A price that depends on two columns; `turned` reverses the relation in c, and `moved` adds to its prices."""
    rng = np.random.default_rng(0)
    domain = np.asarray(DOMAINS)[np.arange(rows) % 3]
    x = rng.normal(size=(rows, 2))
    slope = np.where(turned & (domain == "c"), -3.0, 3.0)
    y = 20 + slope * x[:, 0] + 4.0 * (moved & (domain == "c")) + rng.normal(0, 0.5, rows)
    return pd.DataFrame({"size": x[:, 0], "age": x[:, 1], "label": y, "domain": domain})


def sets(*, turned: bool = False, rows: int = 450) -> pd.DataFrame:
    data = numbers(turned=turned, rows=rows)
    large, old = data["label"] > 20, data["age"] > 0
    pairs = zip(large, old, strict=True)
    return data.assign(label=["|".join([*(["large"] if a else []), *(["old"] if b else [])]) or None for a, b in pairs])


def test_headroom_of_numbers_is_an_rmse_in_standard_deviations():
    same, turned = audit(numbers(), near=1.0), audit(numbers(turned=True), near=1.0)
    assert [cost.metric for cost in same.baseline] == ["rmse"] * 3
    deviation = numbers()["label"].std(ddof=0)
    for cost in same.baseline:
        assert cost.inside == pytest.approx(0.5 / deviation, rel=0.2)  # the noise of the labels
        assert cost.majority == pytest.approx(1, abs=0.1)
        assert abs(cost.cost) < 0.02
    assert (same.verdict.labels, same.verdict.costly, turned.verdict.costly) == (0, False, True)
    worst = max(turned.baseline, key=lambda cost: cost.cost)
    assert worst.domain == "c"
    assert worst.outside > worst.inside + 1
    assert "percent of the standard deviation of the label" in turned.headline
    assert "changes the RMSE of a linear probe" in turned.headline
    assert turned.command is not None
    assert "'task': 'regress'" in turned.command


def test_numeric_labels_are_described_and_compared():
    result = audit(numbers(moved=True), near=1.0, task="regress")
    assert {(shift.one, shift.other) for shift in result.labels if shift.real} == {("a", "c"), ("b", "c")}
    facts: dict[str, Any] = {domain.domain: domain for domain in result.domains}
    assert facts["c"].numbers["mean"] == pytest.approx(24, abs=1)
    assert facts["c"].labels == {}
    (grid,) = [grid for grid in result.grids if grid.title == "Domains"]
    assert grid.names == ("domain", "rows", "mean", "sd", "min", "median", "max")
    assert result.json()["domains"][0]["numbers"]["median"] == pytest.approx(20, abs=1)


def test_numbers_are_matched_in_bins():
    dataset = training_data(numbers(moved=True))
    groups = target_groups(dataset)
    assert np.bincount(groups).tolist() == [45] * 10
    assert dataset.targets[groups == 0].max() <= dataset.targets[groups == 1].min()


def test_sets_of_labels_have_an_f1():
    same, turned = (audit(sets(turned=flag), task="multilabel", near=1.0) for flag in (False, True))
    assert same.baseline[0].metric == "micro_f1"
    assert min(cost.inside for cost in same.baseline) > 0.9
    assert (same.verdict.costly, turned.verdict.costly) == (False, True)
    assert "points of micro-averaged F1" in turned.headline
    assert {domain.domain: set(domain.labels) for domain in same.domains} == {
        name: {"large", "old"} for name in DOMAINS
    }
    (grid,) = [grid for grid in same.grids if grid.title == "Domains"]
    shares = [cells[-1][1] for _, cells in grid.lines]
    assert shares == pytest.approx([0.5] * 3, abs=0.1)


def test_a_shift_of_one_label_is_found():
    data = sets()
    data.loc[data["domain"] == "b", "label"] = "large|old"
    result = audit(data, task="multilabel", near=1.0)
    assert {(shift.one, shift.other) for shift in result.labels if shift.real} == {("a", "b"), ("b", "c")}
    assert max(shift.variation for shift in result.labels) == pytest.approx(0.5, abs=0.1)


def test_levels_are_classes_in_their_order():
    data = numbers(moved=True)
    data["label"] = np.select([data["label"] < 18, data["label"] < 22], ["low", "medium"], "high")
    settings = {"task.order": ["low", "medium", "high"]}
    result = audit(data, task="ordinal", near=1.0, settings=settings)
    assert list(result.domains[0].labels) == ["low", "medium", "high"]
    assert result.baseline[0].metric == "accuracy"
    assert result.verdict.labels
    assert result.command is not None
    assert "task.order" in result.command
    with pytest.raises(BadInput, match="an audit has no setting 'lr'"):
        audit(data, settings={"lr": 1})


def test_a_separator_is_part_of_the_recommended_command(tmp_path):
    path = tmp_path / "sets.csv"
    sets().assign(label=lambda data: data["label"].str.replace("|", "/")).dropna().to_csv(path, index=False)
    result = audit(path, task="multilabel", near=1.0, settings={"task.separator": "/"}, clean=tmp_path / "clean.csv")
    assert set(result.domains[0].labels) == {"large", "old"}
    assert result.command is not None
    assert "--task multilabel --set task.separator=/" in result.command


def test_a_clean_table_of_numbers_has_its_labels(tmp_path):
    data = pd.concat([numbers(rows=60), numbers(rows=60).head(6)])
    result = audit(data, near=1.0, clean=tmp_path / "clean.csv")
    clean = pd.read_csv(tmp_path / "clean.csv")
    assert len(clean) == 60
    assert clean["label"].tolist() == pytest.approx(data["label"].tolist()[:60])
    assert result.duplicates == 6
    assert result.shown[0].labels == (f"{data['label'].iloc[0]:g}",)


def test_equal_inputs_with_other_numbers_are_conflicts():
    data = numbers(rows=60)
    repeated = data.head(3).assign(label=99.5)
    result = audit(pd.concat([data, repeated]), near=1.0)
    assert sum(domain.conflicts for domain in result.domains) == 6


def test_statistics_of_the_tests_equal_those_of_scipy():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    one, other = rng.normal(size=400).round(1), rng.normal(0.3, 1, size=300).round(1)
    expected: Any = ks_2samp(one, other, method="asymp")
    distance, p = ks_test(one, other)
    assert distance == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue, rel=0.3)
    distance, p = set_difference(np.tile([1, 0], (50, 1)), np.tile([0, 0], (40, 1)))
    assert (distance, p < 1e-6) == (1, True)
    assert set_difference(np.zeros((5, 2)), np.zeros((4, 2))) == (0, 1)


def test_scores_of_constant_predictions():
    number = NumberProbe(np.asarray([1.0, 2, 3, 6]))
    assert number.score(number.constant(number.y), number.y) == pytest.approx(1)
    labels = LabelProbe(np.asarray([[1, 0], [1, 0], [0, 1]]))
    assert labels.score(labels.constant(labels.y), labels.y) == pytest.approx(2 * 2 / (3 + 3))
    assert labels.score(np.zeros((3, 2)), np.zeros((3, 2))) == 1
