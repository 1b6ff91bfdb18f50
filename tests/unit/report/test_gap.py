from __future__ import annotations

import pytest

from holdfast.core.errors import BadInput
from holdfast.report.gap import gaps, in_domain_gap, worst_domain
from tests.unit.report.fake_records import record

LEFT = [
    record("erm", s, {d: v}) for d, values in {"a": [0.5, 0.7], "b": [0.8, 0.8]}.items() for s, v in enumerate(values)
]


def inside(scores, **other):
    return [
        record("erm", s, {d: v}, train=[d], plan="in-domain", episode=f"in-{d}", **other)
        for d, values in scores.items()
        for s, v in enumerate(values)
    ]


def test_gap_by_hand():
    found = in_domain_gap(LEFT, inside({"a": [0.9, 0.9], "b": [0.7, 0.8], "c": [1.0, 1.0]}), "accuracy")
    assert set(found) == {"a", "b"}
    assert found["a"].gap == pytest.approx(0.3)
    assert found["a"].stderr == pytest.approx(0.1)  # of .5 and .7; the other has none
    assert found["b"].gap == pytest.approx(-0.05)
    assert found["b"].stderr == pytest.approx(0.05)


def test_a_lower_loss_inside_is_a_gap_too():
    left = [record("erm", 0, {"a": 0.9}, metric="nll")]
    own = [record("erm", 0, {"a": 0.4}, metric="nll", episode="in-a")]
    assert in_domain_gap(left, own, "nll")["a"].gap == pytest.approx(0.5)


def test_what_cannot_be_compared_is_said():
    with pytest.raises(BadInput, match="same data"):
        in_domain_gap(LEFT, inside({"a": [0.9]}, fingerprint="other"), "accuracy")
    with pytest.raises(BadInput, match="of one method, here are 0"):
        in_domain_gap(LEFT, [], "accuracy")
    with pytest.raises(BadInput, match="of one method, here are 2"):
        in_domain_gap([*LEFT, record("mil", 0, {"a": 0.1})], inside({"a": [0.9]}), "accuracy")
    with pytest.raises(BadInput, match="both left out and inside"):
        in_domain_gap(LEFT, inside({"c": [0.9]}), "accuracy")


def test_worst_domain():
    assert worst_domain({"a": 0.5, "b": 0.4}, "accuracy") == ("b", 0.4)
    assert worst_domain({"a": 0.5, "b": 0.4}, "nll") == ("a", 0.5)


def test_gaps_take_the_same_rule_inside_or_else_the_baseline():
    def both(method, left):
        return record(method, 0, {"films": left}, method_args={"w": 1} if method == "mil" else {})

    scores = {"erm": 0.9, "fish": 0.8}
    within = [record(m, 0, {"films": v}, plan="in-domain", episode="in-films") for m, v in scores.items()]
    found = gaps([both("erm", 0.6), both("fish", 0.7), both("mil", 0.75), *within], "accuracy")
    told = {label: (reference, round(by["films"].gap, 9)) for label, reference, by in found}
    assert told == {
        "erm (leave-one-out)": ("erm (in-domain)", 0.3),
        "fish (leave-one-out)": ("fish (in-domain)", 0.1),
        "mil": ("erm (in-domain)", 0.15),
    }
    assert gaps([both("erm", 0.6)], "accuracy") == []
    other = record("erm", 0, {"films": 0.9}, plan="in-domain", episode="in-films", steps=99)
    assert gaps([both("erm", 0.6), other], "accuracy") == []
