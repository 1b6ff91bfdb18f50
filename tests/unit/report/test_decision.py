"""The choice of a comparison, and its reason."""

from __future__ import annotations

import pytest

from holdfast.report.decision import decide
from holdfast.report.significance import against_baseline
from tests.unit.report.fake_records import record
from tests.unit.report.test_by_example import BASE, BETTER, made
from tests.unit.report.test_significance import ERM, HMA, MIL, grid


def test_a_method_that_is_better_by_more_than_chance_is_taken():
    found = decide([*ERM, *HMA, *MIL], "accuracy")
    assert found is not None
    assert (found.label, found.spec["method"]) == ("mil", "mil")
    assert found.why.startswith("it is better than erm, +10.0 on average (p < 0.001, paired t over 6 seed-target pairs")
    assert "at its worst 60.0 (books) against 50.0 (books)" in found.why


def test_the_best_average_alone_is_no_reason():
    lucky = grid("hma", {"films": [0.90, 0.55, 0.70], "books": [0.40, 0.75, 0.55]})  # higher, and all over the place
    found = decide([*ERM, *lucky], "accuracy")
    assert found is not None
    assert found.label == "erm"
    assert found.why == "no method is distinguishable from erm to the better, so the simplest is taken, erm"


def test_a_method_that_is_significantly_worse_is_not_taken():
    worse = grid("mil", {"films": [0.40, 0.49, 0.61], "books": [0.29, 0.40, 0.51]})
    found = decide([*ERM, *worse], "accuracy")
    assert found is not None
    assert found.label == "erm"


def test_where_less_is_better():
    def losses(records):
        return [record(r.spec["method"], r.spec["seed"], {d: s["accuracy"] for d, s in r.stages[-1]["test"].items()},
                       metric="nll") for r in records]  # fmt: skip

    found = decide([*losses(ERM), *losses(MIL)], "nll")  # by .1 more loss
    assert found is not None
    assert found.label == "erm"
    found = decide(
        [*losses(grid("mil", {"films": [0.40, 0.49, 0.61], "books": [0.29, 0.40, 0.51]})), *losses(ERM)], "nll"
    )
    assert found is not None
    assert found.label == "mil"


def test_what_is_added_to_the_network_is_compared_with_the_plain_one():
    better = grid("erm", {"films": [0.60, 0.71, 0.79], "books": [0.51, 0.60, 0.69]}, neck="experts")
    lucky = grid("erm", {"films": [0.90, 0.55, 0.70], "books": [0.40, 0.75, 0.55]}, neck="memory")
    coral = grid("coral", {"films": [0.62, 0.72, 0.81], "books": [0.53, 0.61, 0.70]}, neck="memory")
    found = decide([*lucky, *ERM], "accuracy")
    assert found is not None
    assert (found.label, found.spec["neck"]) == ("erm", None)
    assert found.why == "no method is distinguishable from erm to the better, so the simplest is taken, erm"
    found = decide([*better, *ERM, *lucky], "accuracy")
    assert found is not None
    assert found.spec["neck"] == "experts"
    assert found.why.startswith("it is better than erm, +10.0 on average")
    against = {entry.label: entry.rival for entry in against_baseline([*better, *ERM, *lucky, *coral], "accuracy")}
    assert against == {"coral + memory": "erm", "erm + experts": "erm", "erm + memory": "erm"}
    inside = grid("erm", {"films": [0.60, 0.71, 0.79], "books": [0.51, 0.60, 0.69]}, encoder_args={"experts": 6})
    (entry,) = against_baseline([*inside, *ERM], "accuracy")
    assert entry.rival != entry.label
    found = decide([*inside, *ERM], "accuracy")
    assert found is not None
    assert found.spec["encoder_args"] == {"experts": 6}
    alone = {entry.label: entry.rival for entry in against_baseline([*lucky, *coral], "accuracy")}
    assert alone == {"coral + memory": "erm + memory"}  # the plain one was not run: its network stands for it


def test_too_few_seeds_say_so_and_take_the_simplest():
    one = [record("erm", 0, {"films": 0.5, "books": 0.4}), record("mil", 0, {"films": 0.9, "books": 0.9})]
    found = decide(one, "accuracy")
    assert found is not None
    assert found.label == "erm"
    assert found.why.startswith("fewer than three seeds cannot show a method to be better than erm, ")
    assert found.why.endswith("--seeds 3 can tell more")


def test_one_seed_claims_no_winner_by_the_examples_of_its_runs():
    found = decide([made("erm", BASE), made("coral", BETTER)], "accuracy")
    assert found is not None
    assert found.label == "erm"
    assert found.why.startswith("fewer than three seeds cannot show a method to be better than erm, so the simplest is")
    assert "in these very runs coral is right on more of the same examples than erm (p < 0.001, McNemar" in found.why


@pytest.mark.parametrize(
    ("records", "label", "words"), [(ERM, "erm", "the only one"), ([*MIL, *HMA], "mil", "not run")]
)
def test_without_anything_to_compare_with(records, label, words):
    found = decide(records, "accuracy")
    assert found is not None
    assert found.label == label
    assert words in found.why


def test_nothing_is_chosen_from_nothing_or_from_several_data_sets():
    assert decide([], "accuracy") is None
    assert decide([*ERM, *grid("mil", {"films": [0.5], "books": [0.5]}, data="other")], "accuracy") is None
