"""Boosting grows trees on codes of categories, equals its saved form, and stops at a deadline."""

import numpy as np
import pytest
import torch

from holdfast.core.stopping import Deadline, TimeUp, until
from holdfast.data.synthetic import world
from holdfast.methods.boosting import columns_of_trees
from holdfast.nn.trees import Forest
from holdfast.run.settings import make_spec
from holdfast.run.train import train
from holdfast.run.workspace import Workspace

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
