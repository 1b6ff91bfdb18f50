"""Defaults: encoders that learn have a schedule, averaged weights and a length that depends on the data."""

import json
from dataclasses import replace

import pytest
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.defaults import FEWEST, LEARNING, MOST, PATIENCE, default_length, training_defaults
from holdfast.methods.averaging import SWAD, MovingAverage
from holdfast.methods.erm import ERM
from holdfast.record import run_id
from holdfast.spec import Spec
from holdfast.train.assemble import assemble
from holdfast.train.resolve import Request, resolve
from holdfast.train.run import train
from holdfast.train.settings import make_spec, spec_settings
from holdfast.train.workspace import Workspace
from tests.tiny import tiny_bert

VECTORS = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
TEXTS = world("text", "none", domains=3, size=12, classes=2, seed=0)
EARLIER = {"steps": 300, "every": 25, "patience": 0, "schedule": "constant", "warmup": 0.0, "average": "none"}
SMALL = {"encoder.hidden": [4], "steps": 6, "every": 3, "batch": 4}


def values(spec, names=EARLIER):
    return {name: getattr(spec, name) for name in names}


def test_an_encoder_that_learns_has_a_schedule_and_averaged_weights(tmp_path):
    scratch = make_spec(VECTORS)
    assert values(scratch, LEARNING) == {"lr": 3e-3, "schedule": "linear", "warmup": 0.1, "average": "moving"}
    bert = f"hf:{tiny_bert(tmp_path)}"
    tuned = make_spec(TEXTS, encoder=bert, tune="full")
    assert values(tuned, LEARNING) == {"lr": 1e-4, "schedule": "linear", "warmup": 0.1, "average": "moving"}
    assert tuned.decay == scratch.decay == "weights"
    assert values(make_spec(TEXTS, encoder=bert)) == EARLIER  # frozen
    assert values(make_spec(VECTORS, encoder="features")) == EARLIER
    assert make_spec(VECTORS, plan="stream").average == "none"
    devices = [torch.device(name) for name in ("cpu", "cuda")]
    assert [make_spec(TEXTS, encoder=bert, device=device).tune for device in devices] == ["frozen", "full"]


@pytest.mark.parametrize(("width", "rate"), [(128, 1e-4), (384, 6e-5), (768, 3e-5), (1024, 1e-5)])
def test_wide_encoders_learn_slowly(width, rate, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": width}))
    assert training_defaults(catalog.lookup("encoders", f"hf:{tmp_path}"), "full")["lr"] == rate
    (tmp_path / "config.json").write_text("{")
    assert training_defaults(catalog.lookup("encoders", f"hf:{tmp_path}"), "full")["lr"] == 3e-5
    assert training_defaults(catalog.lookup("encoders", "minilm"), "full")["lr"] == 6e-5
    assert training_defaults(catalog.lookup("encoders", "resnet50"), "full", weights=True)["lr"] == 5e-5


def test_a_given_setting_wins():
    given = {"lr": 0.01, "schedule": "cosine", "warmup": 0.0, "average": "none", "patience": 2, "every": 7}
    spec = make_spec(VECTORS, settings=given)
    assert values(spec, given) == given
    assert make_spec(VECTORS, steps=50).steps == 50
    assert make_spec(VECTORS, settings={"steps": 50}).patience == 0  # exactly this number of steps
    with pytest.raises(BadInput, match="average 'mean'"):
        make_spec(VECTORS, settings={"average": "mean"})


def test_the_length_depends_on_the_size_of_the_data():
    assert default_length(4 * 2500, 4, 32) == {"steps": 640, "every": 32, "patience": PATIENCE}
    assert default_length(30, 3, 32)["steps"] == FEWEST
    assert default_length(10**6, 2, 32)["steps"] == MOST
    assert values(make_spec(VECTORS, batch=1), ("steps", "every", "patience")) == default_length(120, 3, 1)
    with pytest.raises(BadInput, match="batch"):
        make_spec(VECTORS, batch=0)


def test_ids_of_specs_without_the_settings_do_not_change():
    old = {"data": "reviews", "fingerprint": "f0", "method": "erm", "encoder": "minilm", "tune": "full", "steps": 300}
    spec = Spec(**old)
    assert "average" not in spec.json()
    assert Spec(**spec.json()).json() == spec.json()
    assert run_id(spec.json(), "to-a") != run_id(replace(spec, average="moving").json(), "to-a")


@pytest.mark.parametrize("given", [{}, {"average": "none", "schedule": "constant"}, {"average": "swad"}])
def test_a_spec_is_built_again_from_its_record(given):
    spec = make_spec(VECTORS, settings=given)
    known = {"tune": spec.tune, "lr": spec.lr, "steps": spec.steps, "batch": spec.batch}
    assert make_spec(VECTORS, settings=spec_settings(spec.json()), **known).json() == spec.json()


@pytest.mark.parametrize(("average", "kind"), [("none", ERM), ("moving", MovingAverage), ("swad", SWAD)])
def test_any_method_is_averaged(average, kind):
    spec, workspace = make_spec(VECTORS, settings={**SMALL, "average": average}), Workspace(VECTORS)
    episode = workspace.episodes(spec)[0]
    assert type(assemble(spec, episode, workspace).make()) is kind
    record, assembly = train(spec, episode, workspace)
    assert record.spec.get("average", "none") == average
    assert (assembly.deploy() is assembly.method.model) == (average == "none")


def test_methods_that_average_weights_are_not_averaged_again():
    assert make_spec(VECTORS, method="moving-average(erm)").average == "none"
    assert make_spec(VECTORS, method="swad(coral)").average == "none"
    assert make_spec(VECTORS, method="logistic").average == "none"
    workspace = Workspace(VECTORS)
    jobs = resolve(Request(methods=("all",), settings={"encoder.hidden": [4]}, tested=True), workspace)
    assert "moving-average(erm)" not in {job.spec.method for job in jobs}
    assert any("moving-average(erm) left out" in note for note in workspace.notes)


def test_the_average_starts_after_a_third_of_the_steps():
    spec, workspace = make_spec(VECTORS, settings={**SMALL, "steps": 9}), Workspace(VECTORS)
    method = assemble(spec, workspace.episodes(spec)[0], workspace).make()
    assert isinstance(method, MovingAverage)
    assert method.first == 3
