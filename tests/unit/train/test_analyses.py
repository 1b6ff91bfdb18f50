"""Analyses of a run use the trained network and the right rows, and change no number of the record."""

import json

import pytest

from holdfast import catalog
from holdfast.api import compare
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.train.analyses import choose_analyses
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
QUICK = {"encoder.hidden": [8], "neck": "memory", "neck.slots": 16, "neck.key_width": 4, "neck.heads": 2}
ALL = ("a-distance", "projection", "memory-use")


def spec(plan: str = "leave-one-out", **settings):
    return make_spec(DATA, plan=plan, steps=6, every=3, batch=4, settings=QUICK | settings)


def first_record(chosen, analyse=ALL):
    """The record of the first episode."""
    workspace = Workspace(DATA)
    return train(chosen, workspace.episodes(chosen)[0], workspace, analyse=analyse)[0]


def test_analyses_change_no_number_of_the_run():
    workspace = Workspace(DATA)
    episode = workspace.episodes(spec())[0]
    plain, assembly = train(spec(), episode, workspace)
    analysed, again = train(spec(), episode, workspace, analyse=ALL)
    assert (plain.id, plain.stages, plain.spec) == (analysed.id, analysed.stages, analysed.spec)
    assert plain.analysis == {}
    for name, value in assembly.method.deployed.state_dict().items():
        assert value.equal(again.method.deployed.state_dict()[name]), name


def test_target_is_compared_with_the_sources():
    analysis = first_record(spec(**{"neck.fusion": "interpolate"})).analysis
    assert list(analysis) == list(ALL)
    assert list(analysis["a-distance"]["targets"]) == ["domain-0"]
    assert analysis["a-distance"]["targets"]["domain-0"]["examples"] == 60  # all of the target
    assert (analysis["projection"]["sources"], analysis["projection"]["targets"]) == (
        ["domain-1", "domain-2"],
        ["domain-0"],
    )
    assert list(analysis["projection"]["panels"]) == ["backbone", "memory", "features"]
    assert analysis["memory-use"]["slots"] == 16
    assert analysis["memory-use"]["weight"] == pytest.approx(0.5)
    assert len(json.dumps(analysis)) < 100_000


def test_analyses_that_do_not_apply_are_none():
    plain = first_record(make_spec(DATA, steps=6, every=3, batch=4, settings={"encoder.hidden": [8]}))
    assert plain.analysis["memory-use"] is None
    assert list(plain.analysis["projection"]["panels"]) == ["backbone"]
    analysis = first_record(spec("all")).analysis  # there is no target
    assert analysis["a-distance"] is analysis["projection"] is None
    assert (len(analysis["memory-use"]["sources"]), analysis["memory-use"]["targets"]) == (3, {})


def test_targets_of_a_stream_are_the_earlier_domains():
    record = first_record(spec("stream"), analyse=("a-distance",))
    assert set(record.analysis["a-distance"]["targets"]) == {"domain-0", "domain-1"}


def test_in_domain_targets_are_its_test_rows():
    record = first_record(spec("in-domain"), analyse=("a-distance",))
    (target,) = record.analysis["a-distance"]["targets"].values()
    assert target["mean"] <= 4 * target["noise"]  # the null control: one domain against itself


def test_finished_runs_without_the_analysis_are_noted_and_kept(tmp_path):
    def run(**more):
        return compare(
            DATA, baselines=False, methods=["erm"], seeds=1, steps=4, out=tmp_path, device="cpu", settings=QUICK, **more
        )

    assert run().notes == ()
    records = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()}
    next(iter(records)).unlink()
    done = run(analyse=["a-distance"])
    (note,) = done.notes
    assert note.startswith("a-distance: 2 of 3 runs")
    assert sum("a-distance" in record.analysis for record in done.records) == 1
    assert note in done.report.read_text(encoding="utf-8")


def test_analysis_without_anything_to_show_is_explained(tmp_path):
    chosen = ["memory-use", "a-distance", "routing", "segment-mass"]
    done = compare(
        DATA, methods=["erm"], seeds=1, steps=4, out=tmp_path, device="cpu", settings={"encoder.hidden": [8]},
        analyse=chosen, baselines=False,
    )  # fmt: skip
    memory, routing, grown = done.notes
    assert memory.startswith("memory-use: ")
    assert "neck=memory" in memory
    assert grown.startswith("segment-mass: ")
    assert routing.startswith("routing: ")
    assert "neck=experts" in routing
    page = done.report.read_text(encoding="utf-8")
    assert all(note in page for note in done.notes)
    assert all(each.needs for each in catalog.ANALYSES.values())


def test_names_of_analyses():
    assert choose_analyses(["all"]) == list(catalog.ANALYSES)
    assert len(catalog.ANALYSES) >= 6
    assert choose_analyses(["a-distance", "all"]) == choose_analyses(["all"])
    assert choose_analyses([]) == []
    with pytest.raises(BadInput, match=r"'a-distanse'.*'a-distance'"):
        choose_analyses(["a-distanse"])


def test_token_tasks_have_fewer_analyses():
    assert choose_analyses(["all"], ["tag", "classify"]) == choose_analyses(
        ["general-memory"], ["span", "tag", "masked"]
    )
    with pytest.raises(BadInput, match=r"'projection'.*span, tag"):
        choose_analyses(["general-memory", "projection"], ["tag", "classify", "span"])
