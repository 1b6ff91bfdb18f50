from __future__ import annotations

import shlex

import pytest

from holdfast.catalog.encoders import ENCODERS
from holdfast.catalog.protocols import TASKS
from holdfast.report.runs import BY_ENCODER, BY_TASK, OPTIONS, command
from holdfast.run.settings import parse_settings
from holdfast.spec import Spec


def spec(**other):
    return Spec(data="reviews", fingerprint="f0", **other).json()


def told(made: str | None) -> tuple[dict[str, str], dict[str, object]]:
    """Options by name, and what --set says as the settings read it."""
    assert made is not None
    words = shlex.split(made)
    assert words[:2] == ["holdfast", "compare"]
    pairs = [(words[i], words[i + 1]) for i in range(3, len(words), 2)]
    return {k: v for k, v in pairs if k != "--set"}, parse_settings(v for k, v in pairs if k == "--set")


def test_defaults_of_a_frozen_encoder_need_options_alone():
    options, settings = told(command(spec(), [0, 1, 2]))
    assert options["--methods"] == "erm"
    assert options["--seeds"] == "3"
    assert {name: options[f"--{name}"] for name in OPTIONS} == {name: str(spec()[name]) for name in OPTIONS}
    assert settings == {}


def test_every_other_setting_is_read_back_as_it_was():
    args = {"targets": ["1", "a,b"], "valid": 0.1}
    made = spec(
        method="swad(coral)", neck="memory", neck_args={"slots": 64, "frozen": True}, plan_args=args, steps=12, every=5,
        encoder_args={"experts": {"count": 6}, "template": "{text}, it is", "name": "7"}, tune="full", augment="flip",
        precision="bf16", method_args={"weight": 1e-05},
    )  # fmt: skip
    options, settings = told(command(made, [7], analyses=["a-distance", "projection"], source=["my file.csv"]))
    assert options["--methods"] == "swad(coral)"
    assert options["--seeds"] == "7,"
    assert options["--analyse"] == "a-distance,projection"
    assert settings == {
        "every": 5, "clip": 0.0, "warmup": 0.0, "precision": "bf16", "augment": "flip", "neck": "memory",
        "method.weight": 1e-05, "encoder.experts": {"count": 6}, "encoder.template": "{text}, it is",
        "encoder.name": "7", "neck.slots": 64, "neck.frozen": True, "plan.targets": ["1", "a,b"], "plan.valid": 0.1,
    }  # fmt: skip


def test_what_the_catalog_brings_by_itself_is_told():
    by_encoder = {key for entry in ENCODERS.values() for key in entry.defaults}
    assert {"lr", "clip"} <= by_encoder <= {*OPTIONS, *BY_ENCODER}
    by_task = {key for entry in TASKS.values() for key in entry.defaults}
    assert {"head"} <= by_task <= {*OPTIONS, *BY_TASK}
    _, settings = told(command(spec(task="tag", tune="full"), [0]))
    assert settings["head"] == "linear"
    _, settings = told(command(spec(task="span", tune="full", task_args={"stride": 128}), [0]))
    assert settings["task.stride"] == 128


@pytest.mark.parametrize("change", [{"trials": 5}, {"plan": "all"}], ids=["a search", "a fit"])
def test_what_compare_did_not_run_has_no_command(change):
    assert command({**spec(), **change}, [0]) is None


def test_a_spec_that_lacks_a_setting_has_no_command():
    assert command({k: v for k, v in spec().items() if k != "steps"}, [0]) is None
