"""Demonstrations: paired effects, the command, and the effect of each system over its null control."""

import json

import pytest

from lab.demos import gmoe
from lab.demos.catalog import DEMOS
from lab.demos.demo import Demo, run
from tests.calls import run_cli

FAKE = Demo(
    name="demo/fake", about="numbers", metric="error", rows={"plain": "", "null": "", "system": ""},
    score=lambda row, seed: {"plain": 3.0, "null": 2.5, "system": 1.0}[row] + 0.01 * seed**2 * (row == "system"),
    system="system", null="null", baseline="plain", lower_is_better=True,
)  # fmt: skip


def test_effects_are_paired_differences_in_the_direction_of_the_metric():
    seen = []
    result = run(FAKE, [0, 1, 2], lambda *score: seen.append(score))
    values = result.json()
    assert len(seen) == 9
    assert values["effect"] == pytest.approx(2 - 0.05 / 3)
    assert values["null"] == pytest.approx(0.5)
    assert values["difference"] == pytest.approx(1.5 - 0.05 / 3)
    assert values["p"] < 1e-3
    assert "better than its null control null" in result.sentence()
    assert "worse than its null control" in run(Demo(**{**vars(FAKE), "lower_is_better": False}), [0, 1]).sentence()


def test_the_command_prints_rows_and_effect(monkeypatch):
    monkeypatch.setattr(gmoe, "STEPS", 2)
    monkeypatch.setattr(gmoe, "TEST", 50)
    text = run_cli("reproduce", "demo/gmoe", "--seeds", 2)
    text = text.out + text.err
    assert all(row in text for row in gmoe.DEMO.rows)
    assert "null control random routing" in text
    values = json.loads(run_cli("reproduce", "demo/gmoe", "--seeds", "1,4", "--json").out)
    assert {row: len(scores) for row, scores in values["scores"].items()} == dict.fromkeys(gmoe.DEMO.rows, 2)


def test_experts_learn_rare_cases_that_random_routing_does_not(monkeypatch):
    monkeypatch.setattr(gmoe, "STEPS", 300)
    assert gmoe.score("routed experts", 0) < 0.6 * gmoe.score("random routing", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEMOS)
def test_each_system_is_better_than_its_null_control(name):
    values = run(DEMOS[name].load()).json()
    assert values["seeds"] == 10
    assert values["difference"] > 0
    assert values["p"] < 0.01
