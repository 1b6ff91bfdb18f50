import json
import shlex

import pytest

from holdfast.catalog.encoders import ENCODERS
from holdfast.catalog.protocols import TASKS
from holdfast.report.runs import BY_ENCODER, BY_TASK, OPTIONS, command, configurations, facts
from holdfast.spec import Spec
from holdfast.stats.labels import grouped
from holdfast.train.settings import parse_settings
from tests.unit.report.fake_records import leave_one_out


def spec(**other):
    return Spec(data="reviews", fingerprint="f0", **{"decay": "weights", **other}).json()


def parsed(text: str | None) -> tuple[dict[str, str], dict[str, object]]:
    """Return options by name, and the parsed values of --set."""
    assert text is not None
    words = shlex.split(text)
    assert words[:2] == ["holdfast", "compare"]
    assert words.pop() == "--no-baselines"
    pairs = [(words[i], words[i + 1]) for i in range(3, len(words), 2)]
    return {k: v for k, v in pairs if k != "--set"}, parse_settings(v for k, v in pairs if k == "--set")


def test_defaults_of_a_frozen_encoder_need_no_set():
    options, settings = parsed(command(spec(), [0, 1, 2]))
    assert options["--methods"] == "erm"
    assert options["--seeds"] == "3"
    assert {name: options[f"--{name}"] for name in OPTIONS} == {name: str(spec()[name]) for name in OPTIONS}
    assert settings == {}


def test_settings_that_older_specs_lack_are_set():
    _, settings = parsed(command(spec(decay="all", tune="full", neck="memory", lr_args={"memory": 10.0}), [0]))
    assert settings["decay"] == "all"
    assert settings["lr.head"] == 1  # the default is 10
    assert "decay" not in parsed(command(spec(decay="all", weight_decay=0.0), [0]))[1]


def test_other_settings_survive_a_round_trip():
    args = {"targets": ["1", "a,b"], "valid": 0.1}
    run = spec(
        method="swad(coral)", neck="memory", neck_args={"slots": 64, "frozen": True}, plan_args=args, steps=12, every=5,
        encoder_args={"layers": {"count": 6}, "template": "{text}, it is", "name": "7"}, tune="full", augment="flip",
        precision="bf16", method_args={"weight": 1e-05},
    )  # fmt: skip
    options, settings = parsed(command(run, [7], analyses=["a-distance", "projection"], source=["my file.csv"]))
    assert options["--methods"] == "swad(coral)"
    assert options["--seeds"] == "7,"
    assert options["--analyse"] == "a-distance,projection"
    assert settings == {
        "every": 5, "clip": 0.0, "schedule": "constant", "warmup": 0.0, "average": "none",
        "precision": "bf16", "augment": "flip", "neck": "memory",
        "method.weight": 1e-05, "encoder.layers": {"count": 6}, "encoder.template": "{text}, it is",
        "lr.head": 1.0, "lr.memory": 1.0,
        "encoder.name": "7", "neck.slots": 64, "neck.frozen": True, "plan.targets": ["1", "a,b"], "plan.valid": 0.1,
    }  # fmt: skip


def test_defaults_of_the_catalog_are_part_of_the_command():
    by_encoder = {key for entry in ENCODERS.values() for key in entry.defaults}
    assert {"lr", "clip"} <= by_encoder <= {*OPTIONS, *BY_ENCODER, "lr_args"}
    by_task = {key for entry in TASKS.values() for key in entry.defaults}
    assert {"head"} <= by_task <= {*OPTIONS, *BY_TASK}
    _, settings = parsed(command(spec(task="tag", tune="full"), [0]))
    assert settings["head"] == "linear"
    _, settings = parsed(command(spec(task="span", tune="full", task_args={"stride": 128}), [0]))
    assert settings["task.stride"] == 128


@pytest.mark.parametrize("change", [{"trials": 5}, {"plan": "all"}], ids=["a search", "a fit"])
def test_runs_of_other_commands_have_no_command(change):
    assert command({**spec(), **change}, [0]) is None


def test_incomplete_specs_have_no_command():
    assert command({k: v for k, v in spec().items() if k != "steps"}, [0]) is None


def test_runs_are_listed_by_configuration():
    records = leave_one_out()
    entries = configurations(grouped(records), ["reviews.csv"])
    assert [entry["label"] for entry in entries] == ["erm", "mil"]
    listed = [run_id for entry in entries for run_id, _ in entry["runs"]]
    assert sorted(listed) == sorted(r.id for r in records)
    assert entries[0]["runs"][0][1][:3] == [("to-books", None), ("0", 0), ("20", 20)]
    settings = json.loads(entries[1]["settings"])
    assert settings["method"] == "mil"
    assert "seed" not in settings


def test_facts_list_the_values_that_occur():
    values = dict(facts(leave_one_out()))
    assert values["Seeds"] == "0, 1"
    assert values["Runs"] == "8"
    assert values["Time, all runs"] == "80 s"
