"""Field trials on the data of scikit-learn: the default command ends in time, names a choice and trains the network."""

import json

import pytest

from studies import field
from studies.field_page import verdicts
from studies.field_sets import BUNDLED

LIMIT, START = 20.0, 1.0  # seconds; START is of the interpreter
FOLLOWED = "wine"
QUICK = "iris"  # every set takes the time of its limit, and the other commands as much


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return tmp_path_factory.mktemp("field")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in BUNDLED]
)
def test_default_command_keeps_its_limit_and_trains_the_network(name, results, monkeypatch):
    monkeypatch.setattr(field, "FOLLOWED", (FOLLOWED,))
    words = ["--sets", name, "--budgets", f"{LIMIT:.0f}s", "--out", str(results), "--cache", str(results / "data")]
    assert field.main(words) == 0
    (trial,) = (each for each in field.read_trials(results / field.TRIALS) if each["set"] == name)
    about = json.dumps(trial)
    assert trial["code"] == 0, about
    assert trial["choice"], about
    assert trial["erm_seconds"] is not None, about
    assert trial["methods"][trial["erm"]]["seeds"] >= 1
    assert trial["seconds"] <= LIMIT * 1.05 + START, about
    assert "failed" not in verdicts(trial, field.read_scores(results / field.SKLEARN))
    if name == FOLLOWED:
        assert {command: done["code"] for command, done in trial["after"].items()} == dict.fromkeys(
            ("audit", "predict", "watch", "serve"), 0
        )
        assert not any(done["error"] for done in trial["after"].values())
