"""Recommendation of a configuration and its reason."""

from __future__ import annotations

import pytest

from holdfast.report.expected import expected_gains
from holdfast.report.explain import explain
from holdfast.report.significance import against_baseline, decide
from holdfast.report.statistics import paired_t
from tests.unit.report.fake_records import record
from tests.unit.report.test_significance import BASE, BETTER, ERM, HMA, MIL, grid, with_examples


def test_methods_that_are_clearly_better_are_recommended():
    decision = decide([*ERM, *HMA, *MIL], "accuracy")
    assert decision is not None
    assert (decision.label, decision.spec["method"]) == ("mil", "mil")
    for text in (
        "compared with erm",
        "+10.0",
        "more than 99%",
        "p < 0.001",
        "6 seed-target pairs",
        "60.0 (books)",
        "50.0 (books)",
    ):
        assert text in decision.why


def test_the_best_average_alone_is_not_sufficient():
    lucky = grid("hma", {"films": [0.90, 0.55, 0.70], "books": [0.40, 0.75, 0.55]})  # large spread
    decision = decide([*ERM, *lucky], "accuracy")
    assert decision is not None
    assert decision.label == "erm"
    assert "no method is better than erm with a probability of 80%" in decision.why


def test_significantly_worse_methods_are_not_recommended():
    worse = grid("mil", {"films": [0.40, 0.49, 0.61], "books": [0.29, 0.40, 0.51]})
    decision = decide([*ERM, *worse], "accuracy")
    assert decision is not None
    assert decision.label == "erm"


def test_lower_losses_are_better():
    def losses(records):
        return [record(r.spec["method"], r.spec["seed"], {d: s["accuracy"] for d, s in r.stages[-1]["test"].items()},
                       metric="nll") for r in records]  # fmt: skip

    decision = decide([*losses(ERM), *losses(MIL)], "nll")  # MIL has .1 more loss
    assert decision is not None
    assert decision.label == "erm"
    decision = decide(
        [*losses(grid("mil", {"films": [0.40, 0.49, 0.61], "books": [0.29, 0.40, 0.51]})), *losses(ERM)], "nll"
    )
    assert decision is not None
    assert decision.label == "mil"


def test_networks_with_necks_are_compared_with_the_plain_one():
    better = grid("erm", {"films": [0.60, 0.71, 0.79], "books": [0.51, 0.60, 0.69]}, neck="experts")
    lucky = grid("erm", {"films": [0.90, 0.55, 0.70], "books": [0.40, 0.75, 0.55]}, neck="memory")
    coral = grid("coral", {"films": [0.62, 0.72, 0.81], "books": [0.53, 0.61, 0.70]}, neck="memory")
    decision = decide([*lucky, *ERM], "accuracy")
    assert decision is not None
    assert (decision.label, decision.spec["neck"]) == ("erm", None)
    assert "no method is better than erm with a probability of 80%" in decision.why
    decision = decide([*better, *ERM, *lucky], "accuracy")
    assert decision is not None
    assert decision.spec["neck"] == "experts"
    assert "+10.0 compared with erm" in decision.why
    against = {entry.label: entry.rival for entry in against_baseline([*better, *ERM, *lucky, *coral], "accuracy")}
    assert against == {"coral + memory": "erm", "erm + experts": "erm", "erm + memory": "erm"}
    inside = grid("erm", {"films": [0.60, 0.71, 0.79], "books": [0.51, 0.60, 0.69]}, encoder_args={"experts": 6})
    (entry,) = against_baseline([*inside, *ERM], "accuracy")
    assert entry.rival != entry.label
    decision = decide([*inside, *ERM], "accuracy")
    assert decision is not None
    assert decision.spec["encoder_args"] == {"experts": 6}
    alone = {entry.label: entry.rival for entry in against_baseline([*lucky, *coral], "accuracy")}
    assert alone == {"coral + memory": "erm + memory"}  # plain ERM was not run


def test_too_few_seeds_recommend_the_baseline():
    one = [record("erm", 0, {"films": 0.5, "books": 0.4}), record("mil", 0, {"films": 0.9, "books": 0.9})]
    decision = decide(one, "accuracy")
    assert decision is not None
    assert decision.label == "erm"
    assert "fewer than three seeds" in decision.why
    assert "--seeds 3" in decision.why


def test_tests_per_example_do_not_change_the_recommendation():
    decision = decide([with_examples("erm", BASE), with_examples("coral", BETTER)], "accuracy")
    assert decision is not None
    assert decision.label == "erm"
    assert "coral is correct on more examples than erm (p < 0.001, McNemar" in decision.why


@pytest.mark.parametrize(
    ("records", "label", "words"), [(ERM, "erm", "only configuration"), ([*MIL, *HMA], "mil", "not run")]
)
def test_without_a_comparison_the_best_or_only_method_is_recommended(records, label, words):
    decision = decide(records, "accuracy")
    assert decision is not None
    assert decision.label == label
    assert words in decision.why


def test_no_records_and_mixed_data_sets_have_no_recommendation():
    assert decide([], "accuracy") is None
    assert decide([*ERM, *grid("mil", {"films": [0.5], "books": [0.5]}, data="other")], "accuracy") is None


def test_gains_are_shrunk_by_their_uncertainty():
    sure, unsure = paired_t([0.61, 0.60, 0.62], [0.5, 0.5, 0.5]), paired_t([0.9, 0.5, 0.52], [0.5, 0.5, 0.5])
    gains = expected_gains({"sure": sure, "unsure": unsure})
    assert unsure.difference > sure.difference
    assert gains["sure"].mean == pytest.approx(0.11, abs=0.002)
    assert gains["unsure"].mean < gains["sure"].mean
    assert gains["unsure"].probability < gains["sure"].probability
    noise = expected_gains({str(i): paired_t([0.5 + d, 0.5 - d, 0.5], [0.5] * 3) for i, d in enumerate((0.01, 0.02))})
    assert all((gain.mean, gain.probability) == (0.0, 0.5) for gain in noise.values())
    worse = expected_gains({"sure": sure}, lower_is_better=True)
    assert worse["sure"].probability < 0.01
    assert expected_gains({"one": paired_t([0.6], [0.5])}) == {}


def test_a_probable_gain_suffices_and_the_largest_expected_score_is_chosen():
    good = grid("vrex", {"films": [0.53, 0.61, 0.74], "books": [0.43, 0.51, 0.64]})  # by .03 .01 .04 .03 .01 .04
    decision = decide([*ERM, *good, *HMA], "accuracy")
    assert decision is not None
    assert decision.label == "vrex"
    both = decide([*ERM, *good, *MIL], "accuracy")
    assert both is not None
    assert both.label == "mil"


def test_the_choice_is_explained_in_plain_sentences_with_what_was_not_tried():
    records = [*ERM, *HMA, *MIL]
    decision = decide(records, "accuracy")
    assert decision is not None
    text = explain(records, "accuracy", decision)
    assert "expect mil to reach about 65.0% accuracy, 10.0 points better than plain training (erm)" in text
    assert "chosen among 3 candidates that were tested on 2 domains they had never seen" in text
    assert "its weakest was books with 60.0% accuracy" in text
    for fragment in ("--tune full", "other methods (--methods all), such as group-dro", "other than minilm"):
        assert fragment in text.split("Not tried: ")[1]
    alone = decide(ERM, "accuracy")
    assert alone is not None
    assert "no alternative" in explain(ERM, "accuracy", alone)
