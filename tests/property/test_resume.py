"""A run that is stopped at any step and resumed ends with bit-identical weights."""

from functools import cache, partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import catalog
from holdfast.data.synthetic import world
from holdfast.engines.work import launch
from holdfast.train.resume import Saver
from holdfast.train.run import record_path, train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.interrupted import Killed, killer

DATA = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
GRAPHS = world("graph", "size", domains=3, size=12, classes=2, seed=0)
STEPS = 12
SMALL = {"slots": 4, "real": 6, "support": 8, "key_width": 4}


def _neck_settings(method):
    """Return the settings of the neck that a method needs."""
    names = [neck for _, layer in catalog.unwrap("methods", method) for neck in layer.necks[:1]]
    return {key for name in names for key in catalog.lookup("necks", name).setting_names()}


def data_for(method):
    """Return vectors, or graphs for methods that need graphs."""
    return GRAPHS if catalog.incompatibility(method, "mlp") else DATA


def spec_for(method, plan):
    settings = {"encoder.dropout": 0.3, "schedule": "cosine", "accumulate": 2}
    if data_for(method) is GRAPHS:
        settings |= {"encoder": "gin-subgraph", "encoder.hidden": 8, "encoder.layers": 2}
    else:
        settings["encoder.hidden"] = [8]
    settings |= {f"neck.{key}": value for key, value in SMALL.items() if key in _neck_settings(method)}
    settings |= {"method.slots": 4} if method.startswith("progressive") else {}
    return make_spec(data_for(method), method=method, plan=plan, steps=STEPS, every=3, batch=4, settings=settings)


def ending(spec, folder, kills=()):
    workspace = Workspace(data_for(spec.method))
    episode = workspace.episodes(spec)[0]
    saver = partial(Saver, folder / "run.safetensors", seconds=0.0 if kills else 1000.0)
    for at in kills:
        with pytest.raises(Killed):
            train(spec, episode, workspace, saver=saver(), tick=killer(at))
    record, built = train(spec, episode, workspace, saver=saver())
    return record, {k: v for k, v in built.method.state_dict().items() if isinstance(v, torch.Tensor)}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Return a function that trains a run without interruption, once per method and plan."""
    return cache(lambda method, plan: ending(spec_for(method, plan), tmp_path_factory.mktemp("straight")))


METHODS = catalog.buildable_names("methods", "classify")
MARKS = {m: (pytest.mark.graph, pytest.mark.slow) for m in METHODS if data_for(m) is GRAPHS}


def _stream_is_quick(method):
    """Whether the stream of a method is tested without --all: only for methods made for streams."""
    return method in ("erm", "ewc", "si", "lwf", "replay", "agem") or method.startswith("progressive")


CASES = pytest.mark.parametrize(
    ("method", "plan"),
    [pytest.param(m, "leave-one-out", marks=MARKS.get(m, ())) for m in METHODS]
    + [pytest.param(m, "stream", marks=() if _stream_is_quick(m) else pytest.mark.slow) for m in METHODS],
)


@CASES
@given(data=st.data())
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_resume_is_exact(tmp_path_factory, straight, method, plan, data):
    spec = spec_for(method, plan)
    if spec.steps == 1:
        pytest.skip("a method that is solved in one step is not interrupted between steps")
    if plan == "stream" and max(e.load().min_domains for _, e in catalog.unwrap("methods", method)) > 1:
        pytest.skip("a stream trains on one domain at a time")
    last = 15 if plan == "stream" else STEPS // 2  # a stream has three stages
    kills = data.draw(st.lists(st.integers(2, last), min_size=1, max_size=2))
    assert_equal_ends(straight(method, plan), ending(spec, tmp_path_factory.mktemp("resumed"), kills))


def assert_equal_ends(complete, resumed):
    (record, weights), (other, again) = complete, resumed
    assert record.stages == other.stages
    assert list(weights) == list(again)
    for name, value in weights.items():
        assert torch.equal(value, again[name]), name


@pytest.mark.parametrize(
    "method", ["mil", *(pytest.param(f"{name}(mil)", marks=pytest.mark.slow) for name in ("swad", "moving-average"))]
)
@pytest.mark.parametrize("kills", [(5,), (STEPS,), (STEPS + 1,), (STEPS + 7,), (4, STEPS + 3)], ids=str)
def test_resume_is_exact_in_each_phase(tmp_path, straight, method, kills):
    complete = straight(method, "leave-one-out")
    assert [h["phase"] for h in complete[0].stages[0]["history"]] == ["meta"] * 4 + ["final"] * 4
    assert_equal_ends(complete, ending(spec_for(method, "leave-one-out"), tmp_path / "resumed", kills))


def test_a_second_run_reads_finished_records(tmp_path):
    spec = spec_for("erm", "leave-one-out")
    workspace = Workspace(DATA)
    first = list(launch(spec, workspace, tmp_path))
    assert len(first) == 3

    def never(metrics):
        raise AssertionError("a finished run was trained again")

    assert list(launch(spec, workspace, tmp_path, tick=never)) == first
    missing = record_path(spec, workspace.episodes(spec)[0], tmp_path)
    missing.unlink()
    again = list(launch(spec, workspace, tmp_path))
    assert [r.stages for r in again] == [r.stages for r in first]
    assert not list((tmp_path / "checkpoints").glob("*"))
