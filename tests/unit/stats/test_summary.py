"""The summary of a comparison: computed once, with in-domain runs as references."""

from dataclasses import replace

from holdfast.stats import summary
from holdfast.stats.summary import summarise
from tests.unit.report.fake_records import record
from tests.unit.stats.test_significance import ERM, HMA, MIL


def in_domain(method: str) -> list:
    plan = {"plan": "in-domain"}
    return [record(method, s, {d: 0.9}, episode=f"in-{d}", **plan) for s in range(3) for d in ("films", "books")]


def test_the_table_of_a_set_of_records_is_computed_once(monkeypatch):
    computed, tabulate = [], summary.tabulate
    monkeypatch.setattr(summary, "tabulate", lambda records, metric: computed.append(1) or tabulate(records, metric))
    result = summarise([*ERM, *HMA, *MIL], "accuracy")
    assert len(computed) == 1
    assert result.every is result.shown is result.competing
    assert result.decision.label == "mil"


def test_references_have_rows_and_tests_but_do_not_compete():
    result = summarise([*ERM, *MIL, *in_domain("erm"), *in_domain("mil")], "accuracy")
    assert [row.label for row in result.competing.rows] == ["erm", "mil"]
    assert len(result.shown.rows) == 4
    (difference,) = result.differences
    assert (difference.label, difference.significant) == ("mil (leave-one-out)", True)
    assert {label for label, _, _ in result.gaps} == {"erm (leave-one-out)", "mil (leave-one-out)"}


def test_records_can_be_replaced_by_those_with_more_results():
    result = summarise([*ERM, *MIL], "accuracy")
    changed = replace(MIL[0], stages=[MIL[0].stages[0] | {"sets": {"films": {}}}])
    other = result.with_records({changed.id: changed})
    assert other.records[len(ERM)] is changed
    assert changed in other.shown.groups["mil"]
    assert other.decision is result.decision


def test_the_choice_has_the_label_of_its_row_in_the_table():
    chosen, rejected = ([record("erm", seed, {"films": 0.8}, lr=lr) for seed in range(3)] for lr in (0.1, 0.2))
    rejected = [replace(run, stages=[run.stages[0] | {"adapted": {"collapsed": True}}]) for run in rejected]
    result = summarise([*chosen, *rejected], "accuracy")
    assert [row.label for row in result.competing.rows] == ["erm (lr=0.1)", "erm (lr=0.2)"]
    assert result.decision.label == "erm (lr=0.1)"
