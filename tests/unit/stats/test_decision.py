"""Recommendation of a configuration and its reason."""

import pkgutil
from dataclasses import replace

import numpy as np
import pytest

from holdfast.report.explain import explain
from holdfast.stats.decision import decide, paired_over_seeds
from holdfast.stats.statistics import expected_gains, paired_t
from holdfast.stats.summary import summarise
from tests.unit.report.fake_records import record
from tests.unit.stats.test_significance import BASE, BETTER, ERM, HMA, MIL, grid, with_examples

LUCKY = {"films": [0.90, 0.55, 0.70], "books": [0.40, 0.75, 0.55]}  # large spread
GOOD = grid("vrex", {"films": [0.53, 0.61, 0.74], "books": [0.43, 0.51, 0.64]})  # better by .03 .01 .04 .03 .01 .04
WEAK = grid("vrex", {"films": [0.53, 0.605, 0.72], "books": [0.42, 0.495, 0.63]})  # one-sided p is 0.017
SOUP = [record("soup", None, {"films": 0.6}), record("soup", None, {"books": 0.5})]
LIKE_MIL = grid("logistic", {"films": [0.61, 0.69, 0.80], "books": [0.49, 0.62, 0.70]}, encoder="tfidf")
WORSE = grid("logistic", {"films": [0.4, 0.5, 0.6], "books": [0.3, 0.4, 0.5]}, encoder="tfidf")
ONE_SEED = [record("erm", 0, {"films": 0.5, "books": 0.4}), record("mil", 0, {"films": 0.9, "books": 0.9})]
CLEARLY = ("significantly better than erm", "+10.0", "p < 0.001, one-sided, after Holm's correction")
CHOICES = {
    "clearly better": ([*ERM, *HMA, *MIL], "mil", (*CLEARLY, "6 seed-target pairs", "60.0 (books)", "50.0 (books)")),
    "best average alone": (
        [*ERM, *grid("hma", LUCKY)], "erm", ("no other method or combination is significantly better",)
    ),
    "one seed": (ONE_SEED, "erm", ("1 of them could not be tested with so few pairs", "--seeds 3")),
    "better per example": ([with_examples("erm", BASE), with_examples("coral", BETTER)], "erm", ()),
    "nothing to compare": (ERM, "erm", ("no other configuration",)),
    "no baseline": ([*MIL, *HMA], "mil", ("not run",)),
    "one of two is better": ([*ERM, *GOOD, *HMA], "vrex", ()),
    "the largest expected gain": ([*ERM, *GOOD, *MIL], "mil", ()),
    "p below half of the level": ([*ERM, *WEAK], "vrex", ()),
    "p of two methods": ([*ERM, *WEAK, *HMA], "erm", ()),  # twice as much
    "combinations are corrected apart": ([*ERM, *WEAK, *SOUP], "vrex", ()),
    "a simple baseline is as good": (
        [*ERM, *LIKE_MIL, *MIL], "tfidf + logistic", ("65.2 against 55.0 of erm",)
    ),
    "plain training is better": ([*ERM, *WORSE, *HMA], "erm", ("55.0 against 45.0 of tfidf + logistic",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_choice_and_its_reason(case):
    records, label, words = CHOICES[case]
    decision = decide(records, "accuracy")
    assert (decision.label, [word for word in words if word not in decision.why]) == (label, [])


def test_no_records_and_mixed_data_sets_have_no_recommendation():
    assert decide([], "accuracy") is None
    assert decide([*ERM, *grid("mil", {"films": [0.5], "books": [0.5]}, data="other")], "accuracy") is None


def test_lower_losses_are_better():
    def losses(records):
        return [record(r.spec["method"], r.spec["seed"], {d: s["accuracy"] for d, s in r.stages[-1]["test"].items()},
                       metric="nll") for r in records]  # fmt: skip

    decision = decide([*losses(ERM), *losses(MIL)], "nll")  # MIL has .1 more loss
    assert decision.label == "erm"
    decision = decide(
        [*losses(grid("mil", {"films": [0.40, 0.49, 0.61], "books": [0.29, 0.40, 0.51]})), *losses(ERM)], "nll"
    )
    assert decision.label == "mil"


def test_networks_with_necks_are_compared_with_the_plain_one():
    better = grid("erm", {"films": [0.60, 0.71, 0.79], "books": [0.51, 0.60, 0.69]}, neck="experts")
    lucky = grid("erm", LUCKY, neck="memory")
    coral = grid("coral", {"films": [0.62, 0.72, 0.81], "books": [0.53, 0.61, 0.70]}, neck="memory")
    decision = decide([*lucky, *ERM], "accuracy")
    assert (decision.label, decision.spec["neck"]) == ("erm", None)
    assert "no other method or combination is significantly better" in decision.why
    decision = decide([*better, *ERM, *lucky], "accuracy")
    assert decision.spec["neck"] == "experts"
    assert "significantly better than erm, +10.0 compared with it (measured +10.0" in decision.why
    against = {entry.label: entry.rival for entry in summarise([*better, *ERM, *lucky, *coral], "accuracy").tests}
    assert against == {"coral + memory": "erm", "erm + experts": "erm", "erm + memory": "erm"}
    inside = grid("erm", {"films": [0.60, 0.71, 0.79], "books": [0.51, 0.60, 0.69]}, encoder_args={"experts": 6})
    (entry,) = summarise([*inside, *ERM], "accuracy").tests
    assert entry.rival != entry.label
    decision = decide([*inside, *ERM], "accuracy")
    assert decision.spec["encoder_args"] == {"experts": 6}
    alone = {entry.label: entry.rival for entry in summarise([*lucky, *coral], "accuracy").tests}
    assert alone == {"coral + memory": "erm + memory"}  # plain ERM was not run


def test_gains_are_shrunk_by_their_uncertainty():
    sure, unsure = paired_t([0.61, 0.60, 0.62], [0.5, 0.5, 0.5]), paired_t([0.9, 0.5, 0.52], [0.5, 0.5, 0.5])
    gains = expected_gains({"sure": sure, "unsure": unsure})
    assert unsure.difference > sure.difference
    assert gains["sure"] == pytest.approx(0.11, abs=0.002)
    assert gains["unsure"] < gains["sure"]
    noise = expected_gains({str(i): paired_t([0.5 + d, 0.5 - d, 0.5], [0.5] * 3) for i, d in enumerate((0.01, 0.02))})
    assert list(noise.values()) == [0.0, 0.0]
    assert expected_gains({"one": paired_t([0.6], [0.5])}) == {}


def test_a_combination_of_all_seeds_is_paired_with_the_mean_over_seeds():
    soup = [record("soup", None, {"films": 0.75}), record("soup", None, {"books": 0.65})]
    test = paired_over_seeds(soup, ERM, "accuracy")
    assert (test.n, test.difference) == (2, pytest.approx(0.15))


def test_extremely_small_p_values_belong_to_their_methods(monkeypatch):
    def smallest(a, b):
        return replace(paired_t(a, b), p=0.0) if min(a) > 0.5 else paired_t(a, b)

    monkeypatch.setattr("holdfast.stats.decision.paired_t", smallest)
    decision = decide([*ERM, *HMA, *MIL], "accuracy")
    assert decision.label == "mil"


def sampled(records, rows):
    """Return records of runs on a sample of the rows."""
    return [replace(each, spec={**each.spec, "rows": rows}) for each in records]


def shifted(records, difference):
    """Return records with other scores."""
    return [
        record(
            r.spec["method"], r.spec["seed"], {d: s["accuracy"] + difference for d, s in r.stages[0]["test"].items()}
        )
        for r in records
    ]


@pytest.mark.parametrize(("difference", "chosen"), [(-0.2, "erm"), (0.02, "mil")])
def test_the_choice_on_a_sample_counts_only_if_it_is_better_than_that_on_all_rows(difference, chosen):
    sample = [*sampled(ERM, 100), *sampled(shifted(MIL, difference), 100)]
    decision = decide([*shifted(ERM, 0.05), *sample], "accuracy")
    assert decision.spec["method"] == chosen
    assert decision.spec.get("rows") == (100 if chosen == "mil" else None)


@pytest.mark.parametrize(("difference", "chosen"), [(-0.05, "erm"), (0.15, "mil")])
def test_rows_of_an_easier_sample_do_not_win_by_the_sample(difference, chosen):
    constant = [record("majority", 0, dict.fromkeys(ERM[0].stages[0]["test"], 0.3))]
    sample = sampled([*shifted(MIL, 0.1 + difference), *shifted(constant, 0.2)], 100)
    decision = decide([*ERM, *constant, *sample], "accuracy")
    assert decision.spec["method"] == chosen
    alone = decide([*ERM, *constant, *sampled(shifted(constant, 0.4), 100)], "accuracy")
    assert alone.spec["method"] == "erm"


def test_a_configuration_that_was_also_trained_on_more_rows_is_not_chosen_on_a_sample():
    sample = sampled([*shifted(ERM, -0.02), *shifted(MIL, 0.2)], 100)
    lucky = [*ERM, *shifted(MIL, -0.2), *sample]
    decision = decide(lucky, "accuracy")
    assert (decision.label, decision.spec.get("rows")) == ("erm", None)


def test_rows_of_different_sizes_are_never_tested_against_each_other(monkeypatch):
    pairs = []

    def spy(a, b, metric):
        pairs.append(({r.spec.get("rows") for r in a}, {r.spec.get("rows") for r in b}))
        return paired_over_seeds(a, b, metric)

    monkeypatch.setattr("holdfast.stats.decision.paired_over_seeds", spy)
    decide([*ERM, *HMA, *sampled([*ERM, *MIL], 100), *sampled(MIL, 200)], "accuracy")
    assert pairs == [({None}, {None}), ({100}, {100})]
    against = summarise([*ERM, *sampled(MIL, 100)], "accuracy").tests
    assert against == []


METHODS = ("mil", "hma", "coral", "vrex", "group-dro", "mixup", "irm", "dann")
NOISE = 0.02  # standard deviation of a run


class Simulated:
    """Records of erm, of other methods and of the ensemble of erm, whose scores are drawn for every comparison."""

    def __init__(self, targets, seeds, methods=8):
        self.shape = (1 + methods, seeds, targets)
        names = [f"domain {number}" for number in range(targets)]
        runs = [
            record(method, seed, {name: 0.5})
            for method in ("erm", *METHODS[:methods])
            for seed in range(seeds)
            for name in names
        ]
        self.records = [*runs, *(record("ensemble", None, {name: 0.5}) for name in names)]

    def decide(self, rng, effect=0.0):
        """Return the method that is chosen; `effect` is the gain of the first method in standard deviations."""
        scores = rng.normal(0.7, 0.1, self.shape[-1]) + rng.normal(0, NOISE, self.shape)
        scores[1] += effect * NOISE * 2**0.5  # the standard deviation of a difference of two runs
        for each, score in zip(self.records, [*scores.ravel(), *scores[0].mean(axis=0)], strict=True):
            (values,) = each.stages[0]["test"].values()
            values["accuracy"] = float(score)
        decision = decide(self.records, "accuracy")
        return decision.spec["method"]


@pytest.fixture
def fast_keys(monkeypatch):
    """Serialise each spec once: simulated comparisons share them."""
    for path in ("holdfast.stats.labels.settings_key", "holdfast.record.run_id"):
        known, function = {}, pkgutil.resolve_name(path)

        def cached(spec, *names, known=known, function=function):
            key = (id(spec), *names)
            if key not in known:
                known[key] = function(spec, *names)
            return known[key]

        monkeypatch.setattr(path, cached)


@pytest.mark.usefixtures("fast_keys")
def test_without_a_real_difference_erm_is_replaced_in_at_most_5_percent_of_comparisons():
    rng = np.random.default_rng(0)
    designs = [Simulated(targets, seeds) for targets in (4, 6, 8) for seeds in (1, 3)]
    chosen = [design.decide(rng) for design in designs for _ in range(50)]
    assert sum(method != "erm" for method in chosen) <= 0.05 * len(chosen)


@pytest.mark.usefixtures("fast_keys")
@pytest.mark.parametrize(("methods", "effect"), [(1, 1.0), (8, 1.5)])
def test_large_effects_over_12_pairs_are_mostly_detected(methods, effect):
    rng, design = np.random.default_rng(0), Simulated(4, 3, methods)
    chosen = [design.decide(rng, effect) for _ in range(50)]
    assert chosen.count(METHODS[0]) >= 0.8 * len(chosen)


def test_the_choice_is_explained_in_plain_sentences_with_what_was_not_tried():
    text = explain(summarise([*ERM, *HMA, *MIL], "accuracy"))
    assert "expect mil to reach about 65.0% accuracy, 10.0 points better than plain training (erm)" in text
    assert "chosen among 3 candidates that were tested on 2 domains they had never seen" in text
    assert "its weakest was books with 60.0% accuracy" in text
    for fragment in ("--tune full", "other methods (--methods all), such as group-dro", "other than minilm"):
        assert fragment in text.split("Not tried: ")[1]
    assert "It is plain training, chosen among 1 candidates" in explain(summarise(ERM, "accuracy"))
