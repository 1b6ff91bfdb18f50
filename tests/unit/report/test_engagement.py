"""Engagement in tables, notes, decisions and the report."""

import re
from dataclasses import replace

import pytest

from holdfast.record import RunRecord
from holdfast.report.page import write_report
from holdfast.report.words import baseline_note, by_example_note, inactive_notes
from holdfast.stats.decision import by_example, decide
from holdfast.stats.engagement import ENGAGED, engagement_table, engagements, is_idle
from holdfast.stats.labels import grouped
from holdfast.stats.summary import summarise
from tests.unit.report.fake_records import record


def measured(share: float, **statistics: float | None) -> dict:
    return {"share": share, "predictions": 200, "null": "mean of the values", "statistics": statistics}


def runs(method: str, scores: list[float], **engagement: list[float]) -> list[RunRecord]:
    """Return one run per score, with the share of each mechanism per run."""
    return [
        replace(
            record(method, seed, {"films": score}, neck="memory" if engagement else "none"),
            engagement={
                name: measured(shares[seed], effective_slots=8.0 + seed) for name, shares in engagement.items()
            },
        )
        for seed, score in enumerate(scores)
    ]


ERM = runs("erm", [0.60, 0.62, 0.64])
IDLE = runs("mil", [0.61, 0.61, 0.64], memory=[0.0, 0.002, 0.004])
BUSY = runs("hma", [0.61, 0.62, 0.64], queue=[0.2, 0.3, 0.1], slots=[0.0, 0.0, 0.01])


def test_means_ranges_and_states():
    (memory,) = engagements(grouped([*ERM, *IDLE]))
    assert (memory.label, memory.mechanism, memory.runs, memory.predictions) == ("mil + memory", "memory", 3, 600)
    assert memory.share == pytest.approx(0.002)
    assert (memory.low, memory.high, memory.state) == (0.0, 0.004, "inactive")
    assert memory.statistics == {"effective_slots": 9.0}
    queue, slots = engagement_table(grouped([*ERM, *BUSY]))
    assert queue["state"] == "engaged"
    assert slots["state"] == "inactive"
    assert queue["share"] == pytest.approx(0.2)
    at_threshold = runs("mil", [0.5], memory=[ENGAGED])
    assert engagements(grouped(at_threshold))[0].is_engaged


def test_notes_have_one_line_per_row_with_an_inactive_mechanism():
    assert inactive_notes(engagements(grouped(ERM))) == []
    assert inactive_notes(summarise([*ERM, *IDLE], "accuracy").engagements) == [
        "mil + memory: memory inactive, 0.2% of predictions depend on it"
    ]
    both = runs("hma", [0.5], queue=[0.01], support=[0.0])
    assert inactive_notes(engagements(grouped(both))) == [
        "hma + memory: queue inactive, 1.0% of predictions depend on it; support set inactive, 0.0% of predictions "
        "depend on it"
    ]


def test_a_method_is_idle_only_if_no_mechanism_is_engaged():
    assert is_idle(IDLE)
    assert not is_idle(BUSY)
    assert not is_idle(ERM)


def test_differences_of_idle_methods_are_not_engaged():
    note = baseline_note(summarise([*ERM, *IDLE], "accuracy").tests, "accuracy")
    assert note == "not engaged: mil + memory"
    note = str(baseline_note(summarise([*ERM, *IDLE, *BUSY], "accuracy").tests, "accuracy"))
    assert note.startswith("not engaged: mil + memory; no other method differs significantly from erm")
    better = runs("coral", [0.80, 0.82, 0.841])
    note = str(baseline_note(summarise([*ERM, *IDLE, *better], "accuracy").tests, "accuracy"))
    assert note.startswith("significantly different from erm")
    assert note.endswith("; not engaged: mil + memory")
    decision = decide([*ERM, *IDLE], "accuracy")
    assert "no other method or combination is significantly better" in decision.why
    assert decision.why.endswith(" (not engaged: mil + memory)")
    significant = runs("mil", [0.80, 0.82, 0.841], memory=[0.0, 0.0, 0.0])
    note = str(baseline_note(summarise([*ERM, *significant], "accuracy").tests, "accuracy"))
    assert note.startswith("significantly different from erm")
    assert "not engaged" not in note


def test_tests_by_example_report_idle_methods():
    def with_right(group: list[RunRecord], text: str) -> list[RunRecord]:
        return [replace(r, stages=[{**r.stages[0], "right": {"films": text}}]) for r in group[:1]]

    records = [*with_right(ERM, "1f0"), *with_right(IDLE, "1e1")]
    assert by_example_note(by_example(grouped(records))) == "not engaged: mil + memory"
    records += with_right(BUSY, "1e2")
    text = str(by_example_note(by_example(grouped(records))))
    assert "no other method differs" in text
    assert text.endswith("not engaged: mil + memory")


def test_report_shows_engagement(tmp_path):
    page = write_report(summarise([*ERM, *IDLE, *BUSY], "accuracy"), tmp_path / "r.html", title="t").read_text()
    text = " ".join(re.sub(r"<[^>]+>", " ", page.partition("<h2>Engagement</h2>")[2]).split())
    assert "mil + memory memory 0.2% 0.0% to 0.4% inactive 3 effective slots 9 mean of the values" in text
    assert "queue 20.0% 10.0% to 30.0% engaged" in text
    assert "(not engaged: mil + memory)" in page
    assert "mil + memory (not engaged)" in page
    plain = write_report(summarise(ERM, "accuracy"), tmp_path / "p.html", title="t").read_text()
    assert "Engagement" not in plain
