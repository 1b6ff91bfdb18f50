"""Analyses of a run: made from the trained network, of the right rows, and without a trace in its numbers."""

from __future__ import annotations

import itertools
import json

import pytest
from PIL import Image

from holdfast import catalog
from holdfast.api import compare
from holdfast.core.errors import BadInput
from holdfast.data.readers.images import read_images
from holdfast.data.synthetic import world
from holdfast.run.analyses import choose_analyses
from holdfast.run.settings import make_spec
from holdfast.run.train import train
from holdfast.run.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
QUICK = {"encoder.hidden": [8], "neck": "memory", "neck.slots": 16, "neck.key_width": 4, "neck.heads": 2}
ALL = ("a-distance", "projection", "memory-use")


def spec(plan: str = "leave-one-out"):
    return make_spec(DATA, plan=plan, steps=6, every=3, batch=4, settings=QUICK)


def first(asked, analyse=ALL):
    """The record of the first episode."""
    workspace = Workspace(DATA)
    return train(asked, workspace.episodes(asked)[0], workspace, analyse=analyse)[0]


def test_analyses_change_no_number_of_the_run():
    workspace = Workspace(DATA)
    episode = workspace.episodes(spec())[0]
    plain, built = train(spec(), episode, workspace)
    analysed, again = train(spec(), episode, workspace, analyse=ALL)
    assert (plain.id, plain.stages, plain.spec) == (analysed.id, analysed.stages, analysed.spec)
    assert plain.analysis == {}
    assert built.method is not None
    assert again.method is not None
    for name, value in built.method.deployed.state_dict().items():
        assert value.equal(again.method.deployed.state_dict()[name]), name


def test_the_target_is_set_against_the_rows_of_the_sources():
    found = first(spec()).analysis
    assert list(found) == list(ALL)
    assert list(found["a-distance"]["targets"]) == ["domain-0"]
    assert found["a-distance"]["targets"]["domain-0"]["examples"] == 60  # all of the target
    assert (found["projection"]["sources"], found["projection"]["targets"]) == (["domain-1", "domain-2"], ["domain-0"])
    assert list(found["projection"]["panels"]) == ["backbone", "memory", "features"]
    assert found["memory-use"]["slots"] == 16
    assert found["memory-use"]["weight"] == pytest.approx(0.5)
    assert len(json.dumps(found)) < 100_000


def test_a_wrong_table_of_parts_is_told_before_anything_is_trained(tmp_path):
    for domain, label, i in itertools.product(("photo", "sketch", "paint"), ("cat", "dog"), range(5)):
        place = tmp_path / domain / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(place / f"{i}.png")
    (tmp_path / "parts.csv").write_text("image,part,x,y\ncat/0,tail,far,0.5\n")
    data, ticks = read_images(tmp_path), []
    workspace, asked = Workspace(data), make_spec(data, steps=1, every=1, batch=2, settings={"encoder": "cnn"})
    episode = workspace.episodes(asked)[0]
    with pytest.raises(BadInput, match="x and y of row 1 are no numbers"):
        train(asked, episode, workspace, tick=ticks.append, analyse=("expert-parts",))
    assert not ticks
    assert train(asked, episode, workspace, tick=ticks.append)[0].stages
    assert ticks


def test_what_does_not_apply_is_none():
    plain = first(make_spec(DATA, steps=6, every=3, batch=4, settings={"encoder.hidden": [8]}))
    assert plain.analysis["memory-use"] is None
    assert list(plain.analysis["projection"]["panels"]) == ["backbone"]
    found = first(spec("all")).analysis  # nothing is left to be a target
    assert found["a-distance"] is found["projection"] is None
    assert (len(found["memory-use"]["sources"]), found["memory-use"]["targets"]) == (3, {})


def test_of_a_stream_the_domains_not_trained_last():
    record = first(spec("stream"), analyse=("a-distance",))
    assert set(record.analysis["a-distance"]["targets"]) == {"domain-0", "domain-1"}


def test_inside_a_domain_its_own_test_rows():
    record = first(spec("in-domain"), analyse=("a-distance",))
    (told,) = record.analysis["a-distance"]["targets"].values()
    assert told["mean"] <= 4 * told["noise"]  # the null control: one domain against itself


def test_a_run_done_before_without_it_is_told_and_not_run_again(tmp_path):
    def again(**more):
        return compare(DATA, methods=["erm"], seeds=1, steps=4, out=tmp_path, device="cpu", settings=QUICK, **more)

    assert again().notes == ()
    records = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()}
    next(iter(records)).unlink()
    done = again(analyse=["a-distance"])
    (note,) = done.notes
    assert note.startswith("a-distance: 2 of 3 runs were done before without it")
    assert sum("a-distance" in record.analysis for record in done.records) == 1
    assert note in done.report.read_text(encoding="utf-8")


def test_an_analysis_that_finds_nothing_to_look_at_says_why(tmp_path):
    asked = ["slot-map", "a-distance", "routing", "slot-diversity"]
    done = compare(
        DATA, methods=["erm"], seeds=1, steps=4, out=tmp_path, device="cpu", settings={"encoder.hidden": [8]},
        analyse=asked,
    )  # fmt: skip
    assert done.notes == (
        "slot-map, slot-diversity: nothing to show, since no run has slots of the classes (method=hma)",
        "routing: nothing to show, since no run has experts (neck=experts)",
    )
    page = done.report.read_text(encoding="utf-8")
    assert all(note in page for note in done.notes)
    assert all(each.needs for each in catalog.ANALYSES.values())


def test_parts_of_other_images_are_told(tmp_path):
    for domain, label, i in itertools.product(("photo", "sketch"), ("cat", "dog"), range(5)):
        place = tmp_path / "set" / domain / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(place / f"{i}.png")
    (tmp_path / "set" / "parts.csv").write_text("image,part,x,y\nphoto/cat/0.png,tail,0.5,0.5\n")
    more = {"seeds": 1, "steps": 1, "batch": 2, "encoder": "cnn", "cache": False}
    done = compare(tmp_path / "set", methods=["erm"], out=tmp_path / "out", analyse=["expert-parts"], **more)
    nothing, others = done.notes
    assert nothing.startswith("expert-parts: nothing to show, since no run has experts and training images whose parts")
    assert others == (
        "parts.csv names none of these images (its first is 'photo/cat/0.png'): its column image holds CLASS/NAME "
        "without an ending, such as 'cat/0'"
    )
    assert "parts.csv names none of these images" in done.report.read_text(encoding="utf-8")


def test_names_of_analyses():
    assert choose_analyses(["all"]) == list(catalog.ANALYSES)
    assert len(catalog.ANALYSES) >= 9
    assert choose_analyses(["a-distance", "all"]) == choose_analyses(["all"])
    assert choose_analyses([]) == []
    with pytest.raises(BadInput, match="unknown analysis 'a-distanse': did you mean 'a-distance'"):
        choose_analyses(["a-distanse"])
