from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.report.labels import grouped
from holdfast.report.page import write_report
from holdfast.report.pictures import SOURCES, TARGET, distance_bars, feature_panels, segment_map, slot_bars
from holdfast.report.sections import PICTURED, Bar, distances, memories, noise, pictured
from tests.unit.report.fake_records import record
from tests.unit.report.test_page import written
from tests.unit.report.test_plots import figure

WILD = "<script>alert(1)</script>"


def distance(mean: float, std: float = 0.1) -> dict:
    return {"mean": mean, "std": std, "noise": 0.06, "values": [mean] * 5, "examples": 1000}


def plane(*names: str, how: str = "pca", targets: tuple[str, ...] = ("films",)) -> dict:
    side = {"x": [0.1, 0.2], "y": [0.3, 0.4], "density": [[0, 10], [20, 1000]]}
    panel = {"variance": [0.5, 0.25], "sources": side, "target": side | {"density": None}}
    names = names or ("features", "memory", "backbone")  # a record sorts them otherwise than a reader wants
    return {"how": how, "sources": ["a"], "targets": list(targets), "cells": 2, "panels": dict.fromkeys(names, panel)}


def memory(effective: float) -> dict:
    domain = {"effective": effective, "used": 0.5, "usage": [0.6, 0.4]}
    found = {"slots": 4, "shown": [3, 1], "effective": effective, "weight": 0.5, "moved": None}
    other = {"effective": effective + 2, "used": 1.0, "usage": [0.2, 0.0]}
    return found | {"sources": {"a": domain, "b": other}, "targets": {"films": domain}}


def segments() -> dict:
    def domain(*mass: float) -> dict:
        return {"mass": list(mass), "effective": 7.4, "entropy": 2.0, "evenness": 0.8}

    found = {"sizes": [1, 3], "owners": [0, 1], "sources": {"gov": domain(0.25, 0.75)}}
    return found | {"targets": {"fic": domain(0.9, 0.1)}}


def run(method: str, seed: int = 0, target: str = "films", **analysis):
    made = record(method, seed, {target: 0.5})
    return replace(made, analysis={name.replace("_", "-"): found for name, found in analysis.items()})


def targets(**found: dict) -> dict:
    return {"targets": found, "most": 1000}


def test_distances_are_means_over_seeds_with_their_error():
    runs = [run("erm", s, a_distance=targets(films=distance(d))) for s, d in ((0, 1.0), (1, 1.2))]
    runs += [run("mil", 0, a_distance=targets(films=distance(0.5, 0.2))), run("coral")]
    found = distances(grouped(runs))
    assert list(found) == ["erm", "mil"]  # coral has none
    assert found["erm"]["films"] == Bar(pytest.approx(1.1), pytest.approx(0.1), 2)
    assert found["mil"]["films"] == Bar(0.5, 0.2, 1)  # one seed: the spread over repeats
    assert noise(grouped(runs)) == 0.06
    assert noise(grouped([run("erm")])) is None


def test_one_target_of_several_episodes_is_not_mixed():
    runs = [
        replace(run("erm", a_distance=targets(t=distance(d))), episode=episode)
        for episode, d in (("from-a", 0.5), ("from-b", 1.5))
    ]
    found = distances(grouped(runs))["erm"]
    assert {target: bar.mean for target, bar in found.items()} == {"from-a>t": 0.5, "from-b>t": 1.5}


def test_bars_have_the_colours_of_the_page():
    runs = [run("erm"), run("mil", a_distance=targets(films=distance(0.5, 0.2), books=distance(1.5)))]
    groups = grouped(runs)
    traces, layout = figure(distance_bars(distances(groups), {label: i for i, label in enumerate(groups)}))
    (bar,) = traces
    assert (bar["name"], bar["x"], bar["y"]) == ("mil", ["books", "films"], [1.5, 0.5])
    assert bar["error_y"]["array"] == [0.1, 0.2]
    assert bar["marker"]["color"] == TARGET  # the second colour, as in the chart of scores
    assert layout["yaxis"]["range"] == [0, 2.05]


def test_the_first_seed_of_each_method_is_pictured_target_by_target():
    runs = [run(m, s, t, projection=plane(targets=(t,))) for m in ("mil", "erm") for s in (1, 0) for t in ("y", "x")]
    shown, left = pictured(grouped([*runs, run("coral", projection=None)]), "projection")
    assert [(each.target, each.label, each.seed) for each in shown] == [
        ("x", "erm", 0), ("x", "mil", 0), ("y", "erm", 0), ("y", "mil", 0),
    ]  # fmt: skip
    assert left == 4
    many = [run(f"m{i}", projection=plane()) for i in range(PICTURED + 3)]
    shown, left = pictured(grouped(many), "projection")
    assert (len(shown), left) == (PICTURED, 3)


def test_panels_in_the_order_of_the_network():
    (each,), _ = pictured(grouped([run("mil", projection=plane())]), "projection")
    made = feature_panels(each)
    assert [title for title, _ in made] == ["Backbone, z", "Memory, m(z)", "Fused, g(z)"]
    contour, sources, target = figure(made[0][1])[0]  # the target has points and no density
    assert (contour["type"], contour["z"], contour["line"]["color"]) == ("contour", [[0, 10], [20, 1000]], SOURCES)
    assert (sources["x"], sources["marker"]["color"], target["marker"]["color"]) == ([0.1, 0.2], SOURCES, TARGET)
    plain, _ = pictured(grouped([run("erm", projection=plane("backbone"))]), "projection")
    assert [title for title, _ in feature_panels(plain[0])] == ["Features"]
    neck, _ = pictured(grouped([run("erm", projection=plane("features", "backbone"))]), "projection")
    assert [title for title, _ in feature_panels(neck[0])] == ["Backbone, z", "After the neck"]


def test_slots_are_means_over_domains():
    (each,), _ = pictured(grouped([run("mil", memory_use=memory(2.0))]), "memory-use")
    sources, target = figure(slot_bars(each))[0]
    assert sources["y"] == pytest.approx([0.4, 0.2])
    assert target["y"] == [0.6, 0.4]
    assert sources["customdata"] == [3, 1]


def test_segments_are_domains_by_segments():
    (each,), left = pictured(grouped([run("mil", segment_mass=segments())]), "segment-mass")
    assert (each.target, left) == ("fic", 0)
    (heat,), layout = figure(segment_map(each))
    assert (heat["x"], heat["y"]) == (["1: 1 slot", "2: 3 slots"], ["gov (7)", "fic (7)"])
    assert heat["z"] == [[0.25, 0.75], [0.9, 0.1]]
    assert heat["text"] == [["0.25", "0.75"], ["0.90", "0.10"]]
    assert heat["customdata"][0] == [[0.25, 2.0, 0.8], [0.75, 2.0, 0.8]]  # even shares by the sizes
    assert (heat["zmin"], heat["zmax"], layout["yaxis"]["autorange"]) == (0, 1, "reversed")


def test_memories_are_means_over_seeds():
    runs = [run("mil", s, memory_use=memory(e)) for s, e in ((0, 2.0), (1, 4.0))]
    (line,) = memories(grouped([*runs, run("erm", memory_use=None)]))
    assert line == {
        "label": "mil to films", "slots": 4, "weight": 0.5, "moved": None,
        "effective sources": 4.0, "effective targets": 3.0, "used sources": 0.75, "used targets": 0.5,
    }  # fmt: skip


def test_a_run_that_left_nothing_out_is_named_by_its_method():
    found = memory(2.0) | {"targets": {}}
    (line,) = memories(grouped([run("mil", memory_use=found)]))
    assert (line["label"], line["effective sources"], line["effective targets"]) == ("mil", 3.0, None)
    (each,), _ = pictured(grouped([run("mil", memory_use=found)]), "memory-use")
    assert each.name == "mil"
    assert figure(slot_bars(each))[0][1]["y"] == []


HEADINGS = (
    "How far the target lies",
    "Features in the plane, by PCA",
    "by t-SNE",
    "Use of the memory",
    "What each domain reads",
)


@pytest.mark.parametrize(
    ("analysis", "there"),
    [
        ({}, ()),
        ({"a_distance": None, "projection": None, "memory_use": None, "segment_mass": None}, ()),
        ({"a_distance": targets(films=distance(0.5))}, HEADINGS[:1]),
        ({"projection": plane()}, HEADINGS[1:2]),
        ({"projection_tsne": plane(how="tsne")}, HEADINGS[2:3]),
        ({"memory_use": memory(2.0)}, HEADINGS[3:4]),
        ({"segment_mass": segments()}, HEADINGS[4:]),
    ],
)
def test_a_section_is_there_where_records_have_it(tmp_path, analysis, there):
    text = written(tmp_path, [run("erm"), run("mil", **analysis)])
    assert tuple(heading for heading in HEADINGS if heading in text) == there


def test_the_page_says_what_its_errors_are_and_what_it_leaves_out(tmp_path):
    runs = [run("erm", s, a_distance=targets(films=distance(1.0)), projection=plane()) for s in (0, 1, 2)]
    text = " ".join(written(tmp_path, runs).split())
    assert "Lines are one standard error over seeds" in text
    assert "one repeat scatters by 0.06" in text
    assert "2 more runs are in the records" in text
    one = " ".join(written(tmp_path, runs[:1]).split())
    assert "Lines are the spread over five repeats" in one
    assert "in the records" not in one


def test_names_are_text_and_pictures_have_names_of_their_own(tmp_path):
    found = {"a_distance": targets(**{WILD: distance(1.0)}), "memory_use": memory(2.0)}
    found |= {"projection": plane(targets=(WILD,)), "projection_tsne": plane(how="tsne")}
    found |= {"segment_mass": segments() | {"targets": {WILD: segments()["targets"]["fic"]}}}
    path = write_report([run(WILD, **found), run("erm", **found)], tmp_path / "p.html", title="x", metric="accuracy")
    text = path.read_text(encoding="utf-8")
    assert WILD not in text
    ids = [part.split('"')[0] for part in text.split('<div id="')[1:]]
    assert len(ids) == len(set(ids)) >= 17
