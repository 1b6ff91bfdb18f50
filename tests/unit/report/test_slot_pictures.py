"""Pictures of HMA's memories: what plotly gets, which runs belong to one map of sizes, sections of the page."""

from __future__ import annotations

import pytest

from holdfast.report.labels import grouped
from holdfast.report.page import write_report
from holdfast.report.sections import pictured
from holdfast.report.slot_pictures import attention_map, likeness_bars, size_maps, slot_panels
from tests.unit.report.fake_records import record
from tests.unit.report.test_analyses import run
from tests.unit.report.test_page import written
from tests.unit.report.test_plots import figure

WILD = "<script>alert(1)</script>"


def plane(how: str = "pca") -> dict:
    def group(name: str, kind: str) -> dict:
        return {"class": name, "kind": kind, "x": [0.0, 1.0], "y": [0.5, 0.5]}

    variance = [0.75, 0.25] if how == "pca" else None
    alone = {"variance": variance, "groups": [group("cat", "slots"), group(WILD, "slots")]}
    beside = {"variance": variance, "groups": [group("cat", "slots"), group("cat", "rows"), group(WILD, "slots")]}
    return {"how": how, "targets": ["films"], "nearest": 0.5, "chance": 0.3333, "alone": alone, "beside": beside}


def attention(real: list[float] | None = None) -> dict:
    shares = {"cat": [0.1, 0.2, 0.3, 0.3, 0.1], WILD: [0.2, 0.0, 0.2, 0.5, 0.1]}
    return {
        "targets": ["films"], "classes": list(shares), "rows": [2, 1], "slots": [1, 1],
        "map": [[1000, 2000, 3000, 3000, 1000], [2000, 1000, 3000, 3000, 1000], [2000, 0, 2000, 1000, 5000]],
        "mass": {"real": real, "across": [0.1, 0.5, 0.0, 0.4]}, "shares": shares,
        "mean": [0.13, 0.13, 0.27, 0.37, 0.1], "even": [0.2, 0.13, 0.27, 0.2, 0.2],
    }  # fmt: skip


def diversity() -> dict:
    return {"targets": ["films"], "slots": 4, "mean": 0.6, "scatter": 0.1, "classes": {"cat": 1.0, WILD: 0.2}}


def shown(name: str, found: dict):
    (each,), _ = pictured(grouped([run("hma", **{name.replace("-", "_"): found})]), name)
    return each


def test_a_colour_a_class_slots_full_and_rows_open():
    (first, alone), (second, beside) = slot_panels(shown("slot-map", plane()))
    assert (first, second) == ("Slots alone", "Slots and training rows")
    traces, layout = figure(alone)
    assert [t["name"] for t in traces] == ["cat, slots", "&lt;script&gt;alert(1)&lt;/script&gt;, slots"]
    assert layout["xaxis"]["title"]["text"] == "first component, 75 %"
    both, _ = figure(beside)
    assert both[0]["marker"]["color"] == both[1]["marker"]["color"] != both[2]["marker"]["color"]
    assert [t["marker"]["symbol"].endswith("-open") for t in both] == [False, True, False]
    assert both[0]["marker"]["color"] == traces[0]["marker"]["color"]
    ((_, tsne), _) = slot_panels(shown("slot-map-tsne", plane("tsne")))
    assert figure(tsne)[1]["yaxis"]["title"]["text"] == ""


def test_the_map_of_attention_has_the_batch_on_the_left_and_classes_as_rows():
    (_, heat), (_, table) = attention_map(shown("slot-attention", attention()))
    (trace,), layout = figure(heat)
    assert trace["z"][2] == pytest.approx([0.2, 0.0, 0.2, 0.1, 0.5])
    assert trace["zmax"] == pytest.approx(0.5)
    assert trace["customdata"][0][1] == "cat: row of cat"
    assert trace["customdata"][2][3].endswith(": slot of cat")
    assert layout["yaxis"]["tickvals"] == [0.5, 2.0]
    upright, across = layout["shapes"]
    assert (upright["x0"], across["y0"]) == (2.5, 1.5)  # between batch and slots, between the classes
    (shares,), _ = figure(table)
    assert shares["x"] == ["itself", "own class", "other classes", "own slots", "other slots"]
    assert shares["y"][-2:] == ["all", "if even"]
    assert shares["z"][-1] == [0.2, 0.13, 0.27, 0.2, 0.2]


def test_likeness_of_each_class():
    (trace,), layout = figure(likeness_bars(shown("slot-diversity", diversity())))
    assert trace["y"] == [1.0, 0.2]
    assert layout["yaxis"]["range"] == [-0.1, 1.05]


def sized(real: int, slots: int, score: float | None, *, seed: int = 0, **other):
    args = {"real": real, "slots": slots, "context": "batch"}
    return record("hma", seed, {"t": score}, neck="heterogeneous", neck_args=args, **other)


def test_scores_by_the_sizes_of_the_memories():
    runs = [sized(0, 0, 0.5), sized(0, 8, 0.6), sized(128, 0, 0.7), sized(128, 8, 0.8), sized(128, 8, 0.9, seed=1)]
    runs += [sized(64, 8, None), record("erm", 0, {"t": 0.1})]
    ((data, picture),) = size_maps(runs, "accuracy")
    assert data == "reviews"
    (trace,), _ = figure(picture)
    assert (trace["x"], trace["y"]) == (["0", "8"], ["0", "128"])
    assert trace["z"] == [pytest.approx([50.0, 60.0]), pytest.approx([70.0, 85.0])]
    assert trace["text"] == [["50.0", "60.0"], ["70.0", "85.0"]]


def test_runs_that_differ_in_more_share_no_map_and_a_line_is_none():
    line = [sized(0, slots, 0.5) for slots in (0, 8, 16)]
    assert size_maps(line, "accuracy") == []
    whole = [sized(real, slots, 0.5) for real in (0, 8) for slots in (0, 8)]
    other = [sized(real, slots, 0.5, data="films") for real in (0, 8) for slots in (0, 8)]
    assert [data for data, _ in size_maps([*whole, *other], "accuracy")] == ["reviews", "films"]
    gap, _ = figure(size_maps(whole[:3], "accuracy")[0][1])
    assert gap[0]["z"][1][1] is None  # never run, so never filled in


HEADINGS = (
    "Slots of the classes in the plane, by PCA",
    "Slots of the classes in the plane, by t-SNE",
    "Who looks at whom",
    "How alike the slots of a class are",
    "Sizes of the memories",
)


@pytest.mark.parametrize(
    ("analysis", "there"),
    [
        ({"slot_map": None, "slot_attention": None, "slot_diversity": None}, ()),
        ({"slot_map": plane()}, HEADINGS[:1]),
        ({"slot_map_tsne": plane("tsne")}, HEADINGS[1:2]),
        ({"slot_attention": attention([0.25, 0.0, 0.75, 0.0])}, HEADINGS[2:3]),
        ({"slot_diversity": diversity()}, HEADINGS[3:4]),
    ],
)
def test_a_section_is_there_where_records_have_it(tmp_path, analysis, there):
    text = written(tmp_path, [run("erm"), run("hma", **analysis)])
    assert tuple(heading for heading in HEADINGS if heading in text) == there
    assert ("0.75 on the queue" in " ".join(text.split())) == ("slot_attention" in analysis and bool(there))


def test_sizes_are_on_the_page_and_names_are_text(tmp_path):
    runs = [sized(real, slots, 0.5) for real in (0, 8) for slots in (0, 8)]
    assert HEADINGS[4] in written(tmp_path, runs)
    found = {"slot_map": plane(), "slot_map_tsne": plane("tsne"), "slot_attention": attention()}
    path = write_report(
        [run("hma", **found, slot_diversity=diversity()), *runs], tmp_path / "p.html", title="x", metric="accuracy"
    )
    text = path.read_text(encoding="utf-8")
    assert WILD not in text
    ids = [part.split('"')[0] for part in text.split('<div id="')[1:]]
    assert len(ids) == len(set(ids)) >= 8
