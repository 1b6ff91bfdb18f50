"""Patches on the page: shares over training across phases and stages, sentences, pictures, and a page that has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.report.expert_pictures import sections, shares
from holdfast.report.page import write_report
from tests.unit.report.fake_records import record

IMAGE = "data:image/png;base64,AAAA"
ACROSS = {
    "experts": 2, "domains": ["a<i>", "c"], "images": 7, "pairs": [["a<i>", "c", 0.75]], "rate": 0.75, "shuffled": 0.5,
    "high": 0.6, "targets": ["c"],
    "maps": [{"name": "cat/1", "domain": "a<i>", "image": IMAGE, "experts": [[0, 1], [1, 1]]}],
}  # fmt: skip
PARTS = {
    "experts": 2, "images": 9, "parts": ["beak", "background"], "share": [[0.0, 1.0], [0.5, 0.5]], "bits": 0.3,
    "shuffled": 0.01, "high": 0.02, "targets": ["c"],
}  # fmt: skip
LOOKS = {
    "targets": ["c"],
    "maps": [
        {"name": name, "domain": "c", "image": IMAGE, "heads": [[[0.1, 0.2], [0.3, 0.1]]] * 2}
        for name in ("", "", "cat/1")
    ],
}


def trained(target: str = "c", seed: int = 0, *, capacity: bool = False):
    def entry(step: int, first: float) -> dict:
        told = {f"experts/{what}/0/{e}": v for what in ("load", "importance") for e, v in ((0, first), (1, 1 - first))}
        dropped = {"experts/dropped/0": first / 10} if capacity else {}
        return {"step": step, "risk": 1.0, **told, **dropped}

    plain = record("erm", seed, {target: 0.5})
    stage = {**plain.stages[0], "history": [entry(5, 0.5), entry(10, 0.6), entry(5, 0.7)]}
    return replace(plain, stages=[stage, {**stage, "history": [entry(5, 0.9)]}])


def test_shares_over_phases_and_stages_in_a_row():
    found = shares(trained())
    assert set(found) == {("load", 0), ("importance", 0)}
    assert found["load", 0][0] == [(5, 0.5), (10, 0.6), (15, 0.7), (20, 0.9)]
    assert shares(record("erm", 0, {"c": 0.5})) == {}


def test_the_first_seed_of_every_target_is_shown_over_training():
    runs = [trained(target, seed) for seed in (0, 1) for target in ("d10", "d9")]
    (over,) = sections({"erm + experts": runs, "coral + experts": [trained("d9")]})
    assert [(run["name"], run["seed"]) for run in over["runs"]] == [
        ("erm + experts, to-d9", 0), ("coral + experts, to-d9", 0), ("erm + experts, to-d10", 0),
    ]  # fmt: skip
    assert over["left"] == 2


def test_what_a_capacity_dropped_is_drawn_and_told():
    found = shares(trained(capacity=True))
    assert [value for _, value in found["dropped", 0][0]] == pytest.approx([0.05, 0.06, 0.07, 0.09])
    (over,) = sections({"erm + experts": [trained(capacity=True)]})
    (run,) = over["runs"]
    assert [title for title, _ in run["panels"]][-1] == "Dropped, by layer"
    assert "first layer with experts" in run["panels"][-1][1]
    assert run["told"].endswith("no room, at the last validated step, for 9.0% in the first layer with experts.")
    assert len(run["keys"]) == 2
    assert sections({"erm": [trained()]})[0]["runs"][0]["told"] == ""


def test_a_section_for_everything_that_records_tell():
    told = replace(record("erm", 0, {"c": 0.5}), analysis={"expert-agreement": ACROSS, "expert-parts": PARTS,
                                                           "attention-map": LOOKS})  # fmt: skip
    found = {section["title"]: section for section in sections({"erm": [told], "experts+erm": [trained()]})}
    assert list(found) == [
        "Experts over training", "One image in several domains", "Experts of the parts", "Where the class token looks",
    ]  # fmt: skip
    (over,) = found["Experts over training"]["runs"]
    assert [title for title, _ in over["panels"]] == [
        "Load, first layer with experts", "Importance, first layer with experts",
    ]  # fmt: skip
    (across,) = found["One image in several domains"]["runs"]
    assert "75% of the patches have the same expert" in across["told"]
    assert "other images at the same places 50%" in across["told"]
    assert "light is much, black is none" in found["Where the class token looks"]["words"]
    (parts,) = found["Experts of the parts"]["runs"]
    assert "0.3000 bits" in parts["told"]
    assert "beak" in parts["panels"][0][1]
    (looks,) = found["Where the class token looks"]["runs"]
    assert [title for title, _ in looks["panels"]] == [
        "image 1, c, head 1", "image 1, c, head 2", "image 2, c, head 1", "image 2, c, head 2",
        "cat/1, c, head 1", "cat/1, c, head 2",
    ]  # fmt: skip
    assert sections({"erm": [record("erm", 0, {"c": 0.5})]}) == []


def test_the_page_holds_them_escaped(tmp_path):
    told = replace(record("erm", 0, {"c": 0.5}), analysis={"expert-agreement": ACROSS})
    text = write_report([told], tmp_path / "report.html", title="A report", metric="accuracy").read_text()
    assert "One image in several domains" in text
    assert "cat/1, a&lt;i&gt;" in text
    assert "a<i>" not in text
