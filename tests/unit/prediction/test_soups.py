"""Soups of finished runs: seeds are averaged if rows that neither was trained on agree; the model is one network."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast import api
from holdfast.api import Comparison, compare, refit
from holdfast.core.checkpoint import load_tensors, save_tensors
from holdfast.data.synthetic import world
from holdfast.folders.format import load_model
from holdfast.prediction.combine import combine, final_members
from holdfast.prediction.soup import MIN_ROWS, average, choose_members
from holdfast.stats.labels import COMBINED, configuration
from holdfast.train.run import weights_path
from holdfast.train.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=400, classes=2, seed=0)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Comparison:
    out = tmp_path_factory.mktemp("runs")
    return compare(DATA, methods="erm", seeds=3, out=out, encoder="features", steps=40, lr=0.05, baselines=False)


def test_average_leaves_equal_and_integer_tensors_unchanged():
    states = [{"w": torch.tensor([v, 0.1]), "n": torch.tensor(n)} for v, n in ((1.0, 3), (3.0, 4), (5.0, 5))]
    mean = average(states)
    assert mean["w"][0] == 3
    assert mean["n"] == 3
    assert average([{"w": torch.tensor(0.1)}] * 3)["w"] == torch.tensor(0.1)


def greedy(weights: list[float], held_out: list[np.ndarray] | None = None) -> list[int]:
    """Return the soup of networks whose outputs for class 1 are weight ** 2 - 1, so that 1 and -1 do not connect."""
    rows = held_out or [np.arange(40)] * len(weights)

    def outputs(state, rows):
        return np.outer(np.ones(len(rows)), [0.0, float(state["w"]) ** 2 - 1])

    states = [{"w": torch.tensor(weight)} for weight in weights]
    return choose_members(states, rows, range(len(weights)), np.ones(100, dtype=np.int64), outputs)


def test_seeds_join_if_the_average_is_not_worse_than_each_member_on_enough_common_rows():
    assert greedy([2.0, 2.1, 2.2]) == [0, 1, 2]
    assert greedy([2.0, -2.0, 2.1]) == [0, 2]  # both predict well, their average does not
    held_out = [np.arange(40), np.arange(40 - MIN_ROWS + 1, 80), np.arange(40 - MIN_ROWS, 80)]
    assert greedy([2.0, 2.1, 2.2], held_out) == [0, 2]


def soups(records):
    return [record for record in records if record.spec["method"] == "soup"]


def test_soup_is_a_row_of_averaged_weights(done):
    (row,) = [entry for entry in done.table() if (entry["method"], entry["target"]) == ("soup", "average")]
    assert row["n"] == 1
    runs, out = {record.id: record for record in done.records}, done.report.parent
    assert any(len(record.stages[0]["members"]) > 1 for record in soups(done.records))
    for record in soups(done.records):
        members = [runs[member["id"]] for member in record.stages[0]["members"]]
        (target,) = record.stages[0]["test"]
        assert all(run.episode == record.episode and target not in run.stages[0]["train"] for run in members)
        assert record.cost["parameters"] == members[0].cost["parameters"]
        weights = average([load_tensors(weights_path(out, run.id))[0] for run in members])
        rows = DATA.rows_of(target)
        logits = DATA.raw.take(rows).float() @ weights["head.weight"].T + weights["head.bias"]
        accuracy = (logits.argmax(dim=1).numpy() == DATA.y[rows]).mean()
        assert record.stages[0]["test"][target]["accuracy"] == pytest.approx(accuracy)


def test_labels_of_the_target_cannot_change_the_members(done):
    """Null control: with random labels of the targets, a soup has the same members and other scores."""
    runs = [record for record in done.records if record.spec["method"] not in COMBINED]
    changed = 0
    for record in soups(done.records):
        y, (target,) = DATA.y.copy(), record.stages[0]["test"]
        y[DATA.rows_of(target)] = np.random.default_rng(0).permutation(y[DATA.rows_of(target)])
        workspace = Workspace(replace(DATA, y=y), out=done.report.parent)
        (other,) = [each for each in soups(combine(runs, workspace)) if each.episode == record.episode]
        assert other.stages[0]["members"] == record.stages[0]["members"]
        changed += other.stages[0]["test"] != record.stages[0]["test"]
    assert changed


def test_soup_is_trained_on_all_domains_and_saved_as_one_network(done, tmp_path):
    assert done.decision is not None
    decision = replace(done.decision, label="soup", spec=soups(done.records)[0].spec)
    chosen = replace(done, summary=replace(done.summary, decision=decision))
    folder = refit(chosen, tmp_path / "model", device="cpu")
    saved, config = load_model(folder), json.loads((folder / "config.json").read_text())
    assert not saved.members
    assert config["format"] == 1
    assert saved.record.analysis["soup"]["seeds"] == [0, 1, 2]
    assert saved.calibration is not None
    stamp = (folder / "config.json").stat().st_mtime_ns
    refit(chosen, folder, device="cpu")
    assert (folder / "config.json").stat().st_mtime_ns == stamp  # a finished model is not trained again


def test_weights_above_the_limit_are_not_stored(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "WEIGHT_BYTES", 8)
    small = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
    done = compare(small, methods="erm", seeds=2, out=tmp_path, encoder="features", steps=4, baselines=False)
    assert not soups(done.records)
    assert not (tmp_path / "weights").exists()


def test_damaged_weights_leave_the_soup_out(done, tmp_path):
    runs = [record for record in done.records if record.spec["method"] not in COMBINED]
    path = weights_path(done.report.parent, runs[0].id)
    tensors, _ = load_tensors(path)
    try:
        path.write_bytes(b"damaged")
        assert not soups(combine(runs, Workspace(DATA, out=done.report.parent)))
    finally:
        save_tensors(path, tensors)


def test_members_get_the_rate_for_all_domains_or_that_of_most_targets(done):
    """The targets of one configuration may have different rates after a search."""
    rates, members = iter((0.1, 0.3, 0.3)), {}
    for record in (each for each in done.records if each.spec["method"] == "erm" and each.spec["seed"] == 0):
        members[record.episode] = replace(
            record, spec={**record.spec, "lr": next(rates), "searched": {"lr": [0.1, 0.3]}}
        )
    combination = [
        replace(record, stages=[{**record.stages[0], "members": [{"id": members[record.episode].id, "weight": 1.0}]}])
        for record in soups(done.records)
    ]
    runs = list(members.values())
    assert final_members(runs, combination)[0][0]["lr"] == 0.3
    assert final_members(runs, combination, rates={configuration(runs[0]): 0.9})[0][0]["lr"] == 0.9
    assert final_members(runs, combination, rates={"another": 0.9})[0][0]["lr"] == 0.3
