"""Outputs for left-out domains: taken from the runs of the chosen configuration, stored with its model."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.api import compare, refit
from holdfast.core.checkpoint import save_tree
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.models.left_out import MAX_ROWS, LeftOut, LeftOutDomain, _limited
from holdfast.models.saved import LEFT_OUT, load_model
from holdfast.report.labels import COMBINED, grouped


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return compare(world("vector", "rotation", domains=3, size=60), methods=["erm"], seeds=2, steps=8, out=folder)


def accuracy(domain: LeftOutDomain) -> float:
    return float((domain.outputs.argmax(axis=1) == domain.y).mean())


def test_outputs_reproduce_the_scores_of_the_chosen_runs(compared, tmp_path):
    assert compared.left_out.predicts == "classes"
    chosen = grouped(compared.records)[compared.decision.label]
    scores = {}
    for record in chosen:  # the first seed comes first
        for domain, values in record.stages[-1]["test"].items():
            scores.setdefault(domain, values["accuracy"])
    assert {each.name: accuracy(each) for each in compared.left_out.domains} == pytest.approx(scores)
    for each in compared.left_out.domains:
        np.testing.assert_allclose(each.probabilities.sum(axis=1), 1, atol=1e-5)
    model = refit(compared, tmp_path / "model")
    stored = load_model(model).left_out
    assert stored is not None
    for before, after in zip(compared.left_out.domains, stored.domains, strict=True):
        assert before.name == after.name
        np.testing.assert_array_equal(before.outputs, after.outputs)
        np.testing.assert_array_equal(before.y, after.y)


def test_combinations_store_their_outputs_too(compared):
    from holdfast.models.left_out import collect_left_out
    from holdfast.run.workspace import Workspace

    workspace = Workspace(compared.dataset, out=compared.report.parent)
    combined = [r for r in compared.records if r.spec["method"] in COMBINED]
    assert combined
    for label in {r.spec["method"] for r in combined}:
        chosen = [r for r in combined if r.spec["method"] == label]
        left_out = collect_left_out(chosen, compared.records, workspace)
        assert left_out is not None
        first = {d: s["accuracy"] for r in reversed(chosen) for d, s in r.stages[-1]["test"].items()}
        assert {each.name: accuracy(each) for each in left_out.domains} == pytest.approx(first)


def test_rows_are_limited_and_unlabelled_rows_left_out():
    y = np.r_[np.full(10, -1), np.zeros(3 * MAX_ROWS, dtype=np.int64)]
    outputs = np.log(np.full((len(y), 2), 0.5, dtype=np.float32))
    domain = _limited("x", outputs, y, seed=0)
    assert len(domain.y) == MAX_ROWS
    assert (domain.y == 0).all()


def test_a_damaged_file_is_one_error(compared, tmp_path):
    model = refit(compared, tmp_path / "model")
    save_tree(model / LEFT_OUT, {"format": 9})
    with pytest.raises(BadInput, match=r"leftout.safetensors has format 9, this version reads 1"):
        load_model(model)
    with pytest.raises(TypeError, match="'x' are not valid"):
        LeftOut("classes", (LeftOutDomain("x", np.zeros((2, 2)), np.zeros(3)),))
