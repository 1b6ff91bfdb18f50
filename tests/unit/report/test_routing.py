"""Experts on the page: numbers of a line by hand, pictures of every layer and image, and a page that holds them."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import pytest
from PIL import Image

from holdfast.report.page import write_report
from holdfast.report.routing import colour, draw_map, grey, lines, panels
from holdfast.report.sections import pictured
from tests.unit.report.fake_records import record

FOUND = {
    "experts": 2,
    "blocks": [8, 10],
    "sources": {
        "a": {"load": [[0.5, 0.5], [1.0, 0.0]], "importance": [[0.5, 0.5], [0.9, 0.1]], "entropy": [0.6, 0.2]},
        "b<i>": {"load": [[0.5, 0.5], [0.5, 0.5]], "importance": [[0.5, 0.5], [0.9, 0.1]], "entropy": [0.4, 0.2]},
    },
    "targets": {"c": {"load": [[1.0, 0.0], [1.0, 0.0]], "importance": [[1.0, 0.0]] * 2, "entropy": [0.1, 0.3]}},
    "information": [{"bits": 0.25, "shuffled": 0.01, "high": 0.02}, {"bits": 0.5, "shuffled": 0.03, "high": 0.04}],
    "maps": [{"domain": "b<i>", "image": "data:image/png;base64,AAAA", "experts": [[0, 1], [1, 1]]}],
}


def records():
    first = replace(record("erm", 0, {"c": 0.5}), analysis={"routing": FOUND})
    other = {**FOUND, "information": [{"bits": 0.35, "shuffled": 0.01, "high": 0.02}] * 2}
    return [first, replace(record("erm", 1, {"c": 0.6}), analysis={"routing": other})]


def test_a_line_for_every_layer_with_means():
    first, second = lines({"erm": records()})
    assert first["label"] == "erm to c, layer 8"
    assert [text for text, _ in first["cells"]] == ["2", "2.00", "1.00", "0.50", "0.10", "0.3000", "0.0100", "0.0200"]
    assert second["cells"][1][1] == pytest.approx(1.5)  # one expert in a, both in b
    assert lines({"erm": [record("erm", 0, {"c": 0.5})]}) == []


def test_pictures_of_layers_and_images():
    (shown,), left = pictured({"erm": records()}, "routing")
    assert left == 1
    titles, drawn = zip(*panels(shown), strict=True)
    assert titles[:2] == ("Layer 8", "Layer 10")
    assert titles[2] == "b<i>"  # the page escapes it
    assert all("<div" in each for each in drawn)
    assert colour(0) in drawn[2]
    assert colour(1) in drawn[2]
    assert "base64,AAAA" in drawn[2]


def test_beneath_the_colours_of_experts_the_picture_is_grey():
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (200, 30, 30)).save(file, format="PNG")
    coloured = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    drawn = grey(coloured)
    with Image.open(io.BytesIO(base64.b64decode(drawn.removeprefix("data:image/png;base64,")))) as picture:
        assert (picture.mode, picture.size) == ("L", (4, 4))
    shown = draw_map({"image": coloured, "experts": [[0, 1], [1, 1]]}, 2, "some-map").replace("\\u002f", "/")
    assert coloured not in shown
    assert drawn in shown
    assert grey("data:image/png;base64,AAAA") == "data:image/png;base64,AAAA"  # no picture at all


def test_experts_have_colours_of_their_own():
    assert len({colour(e) for e in range(12)}) == 12


def test_the_page_holds_them(tmp_path):
    text = write_report(records(), tmp_path / "report.html", title="A report", metric="accuracy").read_text()
    assert "Which experts are chosen" in text
    assert "erm to c, layer 10" in text
    assert "1 more run is in the records" in text
    assert "b<i>" not in text
    assert "b&lt;i&gt;" in text
    plain = write_report([record("erm", 0, {"c": 0.5})], tmp_path / "plain.html", title="A report", metric="accuracy")
    assert "Which experts are chosen" not in plain.read_text()
