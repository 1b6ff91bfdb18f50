"""A general memory on the page: numbers of a line by hand, a picture for every gate, and a page that holds them."""

from __future__ import annotations

from dataclasses import replace

from holdfast.report.general import lines, panels
from holdfast.report.page import write_report
from holdfast.report.sections import pictured
from tests.unit.report.fake_records import record


def domain(mass: float, moved: float | None = 0.25, **scores):
    heads = [mass - 0.1, mass + 0.1]
    found = {"mass": [heads, heads], "gates": [[0.5, 0.5], None], "depths": [1.5, None], "moved": moved}
    return {**found, "scores": scores} if scores else found


FOUND = {
    "layers": [6, 12],
    "read": [[1, 2], [12]],
    "sources": {"a": domain(0.4), "b<i>": domain(0.6)},
    "targets": {"c": domain(0.3, read=0.8, hidden=0.75)},
}


def records():
    other = {**FOUND, "targets": {"c": domain(0.5, None)}}
    return [
        replace(record("erm", 0, {"c": 0.5}), analysis={"general-memory": FOUND}),
        replace(record("erm", 1, {"c": 0.6}), analysis={"general-memory": other}),
    ]


def test_a_line_for_every_layer_with_means():
    first, second = lines({"erm": records()})
    assert first["label"] == "erm to c, layer 6"
    assert [text for text, _ in first["cells"]] == [
        "0.50", "0.40", "0.30", "0.50", "1.5", "1.5", "0.25", "0.800", "0.750",
    ]  # fmt: skip
    assert [text for text, _ in second["cells"]][4:6] == ["–", "–"]  # one layer needs no gate
    assert lines({"erm": [record("erm", 0, {"c": 0.5})]}) == []


def test_pictures_of_heads_domains_and_gates():
    (shown,), left = pictured({"erm": records()}, "general-memory")
    assert left == 1
    titles, drawn = zip(*panels(shown), strict=True)
    assert titles == ("Attention by head, on the target", "Attention by domain", "Gate of layer 6")
    assert all("<div" in each for each in drawn)
    assert "c, target" in drawn[1]


def test_the_page_holds_them(tmp_path):
    text = write_report(records(), tmp_path / "report.html", title="A report", metric="accuracy").read_text()
    assert "What is read of the general model" in text
    assert "erm to c, layer 12" in text
    assert "Gate of layer 6" in text
    assert ">0.750<" in text
    assert "1 more run is in the records" in text
    assert "b<i>" not in text
    plain = write_report([record("erm", 0, {"c": 0.5})], tmp_path / "plain.html", title="A report", metric="accuracy")
    assert "What is read of the general model" not in plain.read_text()
