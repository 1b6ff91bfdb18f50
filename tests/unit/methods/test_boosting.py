"""Boosting grows trees on codes of categories, equals its saved form, and stops at a deadline."""

import numpy as np
import pytest
import torch

from holdfast.core.stopping import Deadline, TimeUp, until
from holdfast.data.readers.in_memory import as_dataset, as_numeric_dataset
from holdfast.data.synthetic import world
from holdfast.methods.boosting import columns_of_trees
from holdfast.nn.trees import Forest
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace

VECTORS = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
RNG = np.random.default_rng(0)


def test_categories_become_codes_and_features_without_splits_are_left_out():
    first, second = RNG.integers(0, 3, 200), RNG.integers(0, 4, 200)
    numbers = RNG.normal(size=(200, 1))
    rare = (np.arange(200) < 5).astype(float)[:, None]
    x = np.concatenate([numbers, np.eye(4)[second], np.eye(3)[first], np.full((200, 1), 0.5), rare], axis=1)
    columns = columns_of_trees(x, 20)
    assert columns.single.tolist() == [0]
    made = columns.of(x)
    assert made.shape == (200, 3)
    assert (made[:, 1] == second + 1).all()
    assert (made[:, 2] == first + 1).all()
    none = np.zeros(1)
    forest = Forest(np.array([1.0]), none, none, np.zeros((1, 2)), none, none, none, np.ones((1, 1)), none)
    assert columns.restored(forest).feature.tolist() == [x.shape[1]]


@pytest.mark.parametrize("engine", ["boosting", "lightgbm"])
def test_a_deadline_in_the_past_ends_a_fit(engine):
    if engine == "lightgbm":
        pytest.importorskip("lightgbm")
    workspace = Workspace(VECTORS)
    spec = make_spec(VECTORS, method=engine, settings={"encoder": "features"})
    episode = workspace.episodes(spec)[0]
    _, assembly = train(spec, episode, workspace)
    method = assembly.method
    batches = list(assembly.examples.one_pass(episode.stages[0].train, 100))
    with until(Deadline(0.0)), pytest.raises(TimeUp):
        method.solve(batches)
    before = torch.get_num_threads()
    method.solve(batches)
    assert torch.get_num_threads() == before


def scores_on(data, settings, target):
    """Return the scores of boosting on a domain that it has not seen."""
    workspace = Workspace(data)
    spec = make_spec(data, method="boosting", settings={"encoder": "features", **settings})
    record, _ = train(spec, next(e for e in workspace.episodes(spec) if e.name == f"to-{target}"), workspace)
    return record.stages[-1]["test"][target]


@pytest.mark.parametrize("task", ["classify", "regress"])
@pytest.mark.parametrize("rows", [2, 12, 30])
def test_few_rows_need_no_split(task, rows):
    x = np.random.default_rng(0).normal(size=(3 * rows, 2))
    y = x[:, 0] if task == "regress" else np.where(x[:, 0] > 0, "yes", "no")
    y[:2] = [0.5, 1.0] if task == "regress" else ["yes", "no"]
    read = as_numeric_dataset if task == "regress" else as_dataset
    data = read(x, y, np.repeat(["a", "b", "c"], rows))
    scores = scores_on(data, {"task": task}, "c")
    assert all(np.isfinite(scores[name]) for name in (["rmse"] if task == "regress" else ["accuracy", "nll"]))
    if rows == 30 and task == "classify":
        assert scores["accuracy"] > 0.8


def test_many_rare_classes_do_not_diverge():
    rng = np.random.default_rng(0)
    y = rng.choice(30, size=11_000, p=np.r_[[0.5, 0.3], np.full(28, 0.2 / 28)])
    y[:1] = 30  # one example of a class
    x = np.c_[y % 7 + 0.3 * rng.normal(size=len(y)), y % 5 + 0.3 * rng.normal(size=len(y))]
    domain = np.where(np.arange(len(y)) < 10_600, "a", "b")
    data = as_dataset(x, y.astype(str), np.where(np.arange(len(y)) < 10_300, domain, "b"))
    assert scores_on(data, {"method.iterations": 30}, "b")["accuracy"] > 0.85
