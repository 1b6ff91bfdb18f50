import pytest

from holdfast.report.words import headroom_text
from holdfast.stats.gap import gaps
from holdfast.stats.labels import grouped
from holdfast.stats.summary import summarise
from tests.unit.report.fake_records import record

HELD_OUT = [
    record("erm", s, {d: v}) for d, values in {"a": [0.5, 0.7], "b": [0.8, 0.8]}.items() for s, v in enumerate(values)
]


def in_domain(scores, **other):
    return [
        record("erm", s, {d: v}, train=[d], plan="in-domain", episode=f"in-{d}", **other)
        for d, values in scores.items()
        for s, v in enumerate(values)
    ]


def test_gap_and_its_standard_error():
    ((_, _, entries),) = gaps(
        grouped([*HELD_OUT, *in_domain({"a": [0.9, 0.9], "b": [0.7, 0.8], "c": [1.0, 1.0]})]), "accuracy"
    )
    assert set(entries) == {"a", "b"}
    assert entries["a"].gap == pytest.approx(0.3)
    assert entries["a"].stderr == pytest.approx(0.1)  # of .5 and .7; the other is 0
    assert entries["b"].gap == pytest.approx(-0.05)
    assert entries["b"].stderr == pytest.approx(0.05)
    assert gaps(grouped([*HELD_OUT, *in_domain({"c": [0.9]})]), "accuracy") == []
    assert gaps(grouped([*HELD_OUT, *in_domain({"a": [0.9]}, fingerprint="other")]), "accuracy") == []


def test_gap_of_losses_has_the_opposite_sign():
    left = [record("erm", 0, {"a": 0.9}, metric="nll")]
    own = [record("erm", 0, {"a": 0.4}, metric="nll", episode="in-a", plan="in-domain")]
    ((_, _, entries),) = gaps(grouped([*left, *own]), "nll")
    assert entries["a"].gap == pytest.approx(0.5)


def test_reference_is_the_same_configuration_or_else_the_baseline():
    def held_out(method, score):
        return record(method, 0, {"films": score}, method_args={"w": 1} if method == "mil" else {})

    scores = {"erm": 0.9, "fish": 0.8}
    within = [record(m, 0, {"films": v}, plan="in-domain", episode="in-films") for m, v in scores.items()]
    entries = gaps(grouped([held_out("erm", 0.6), held_out("fish", 0.7), held_out("mil", 0.75), *within]), "accuracy")
    by_label = {label: (reference, round(by["films"].gap, 9)) for label, reference, by in entries}
    assert by_label == {
        "erm (leave-one-out)": ("erm (in-domain)", 0.3),
        "fish (leave-one-out)": ("fish (in-domain)", 0.1),
        "mil": ("erm (in-domain)", 0.15),
    }
    assert gaps(grouped([held_out("erm", 0.6)]), "accuracy") == []
    other = record("erm", 0, {"films": 0.9}, plan="in-domain", episode="in-films", steps=99)
    assert gaps(grouped([held_out("erm", 0.6), other]), "accuracy") == []


def headroom_records(tested):
    runs = [record("erm", seed, {domain: score}) for seed in range(2) for domain, score in tested.items()]
    for run in runs:
        run.stages[-1]["valid"] = {"other": {"accuracy": 0.9}}
    return runs


def test_headroom_compares_validation_rows_with_held_out_domains():
    text = headroom_text(summarise(headroom_records({"a": 0.6, "b": 0.7}), "accuracy").headroom, "accuracy")
    assert text.startswith("erm reaches 90.0 % on validation rows of its training domains and loses 25.0 ± ")
    assert text.endswith("there is room for methods that resist the shift.")
    flat = headroom_text(summarise(headroom_records({"a": 0.89, "b": 0.91}), "accuracy").headroom, "accuracy")
    assert "little to gain" in flat
    assert "gains 5.0" in headroom_text(
        summarise(headroom_records({"a": 0.95, "b": 0.95}), "accuracy").headroom, "accuracy"
    )
    assert headroom_text(summarise([record("mil", 0, {"a": 0.5})], "accuracy").headroom, "accuracy") == ""


def test_headroom_prefers_runs_in_the_domain():
    runs = headroom_records({"a": 0.6, "b": 0.7})
    runs += [record("erm", 0, {d: 0.95}, plan="in-domain", episode=f"in-{d}") for d in ("a", "b")]
    assert "95.0 % on a domain that it was trained on and loses 30.0 ± 5.0 points" in headroom_text(
        summarise(runs, "accuracy").headroom, "accuracy"
    )
