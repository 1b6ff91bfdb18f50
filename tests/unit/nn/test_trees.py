"""Trees as tensors give the predictions of the libraries that fitted them."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.ensemble import HistGradientBoostingClassifier

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.methods.boosting import Boosting, _sklearn, class_mix, join_trees, lightgbm_tree, sklearn_tree
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.small import Features
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.nn.trees import Forest, Trees
from holdfast.tasks.classify import Classify


def data(classes: int, missing: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    y = np.digitize(x[:, 0] * x[:, 1] + x[:, 2], np.linspace(-0.5, 0.5, classes - 1))
    if missing:
        x[rng.random(x.shape) < 0.2] = np.nan
    return x, y


def trees_of(forest: Forest, width: int) -> Trees:
    head = Trees(width, forest.mix.shape[1])
    head.set(forest)
    return head


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("missing", [False, True])
def test_equal_to_scikit_learn(classes, missing):
    x, y = data(classes, missing)
    model = HistGradientBoostingClassifier(max_iter=20, early_stopping=False).fit(x, y)
    trees = [sklearn_tree(tree.nodes) for step in model._predictors for tree in step]
    baseline = np.asarray(model._baseline_prediction).reshape(-1)
    known = np.arange(classes)
    head = trees_of(join_trees([(trees, baseline)], class_mix(known, classes), np.zeros(classes)), 4)
    x[:5] = [[np.nan] * 4, [9] * 4, [-9] * 4, [0] * 4, [np.inf] * 4]
    outputs = head(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(softmax(outputs, axis=1), model.predict_proba(x), atol=1e-6)
    again = Trees(**head.settings)
    again.load_state_dict(head.state_dict())
    assert np.array_equal(again(torch.from_numpy(x)).detach().numpy(), outputs)


def test_many_classes_are_fitted_without_a_warning_of_scikit_learn():
    x = np.arange(30, dtype=np.float32)[:, None]
    trees, baseline = _sklearn(x, np.arange(30) // 2 + np.arange(30) % 2 * 15, 30, Boosting.Settings(iterations=1))
    assert len(trees) == len(baseline) == 30


def test_equal_to_lightgbm():
    lightgbm = pytest.importorskip("lightgbm", reason="needs LightGBM: pip install 'holdfast[lightgbm]'")
    x, y = data(3)
    options = {"objective": "multiclass", "num_class": 3, "verbosity": -1}
    booster = lightgbm.train(options, lightgbm.Dataset(x, y), num_boost_round=10)
    trees = [lightgbm_tree(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]]
    known = np.arange(3)
    head = trees_of(join_trees([(trees, np.zeros(3))], class_mix(known, 3), np.zeros(3)), 4)
    assert np.allclose(softmax(head(torch.from_numpy(x)).detach().numpy(), axis=1), booster.predict(x), atol=1e-6)


def method(classes: int, **settings) -> Boosting:
    model = Model(Features(inputs=4), NoNeck(4), Trees(4, classes))
    options = OptimizerSettings()
    return Boosting(model, task=Classify(), optimizer=lambda p, **k: Optimizer(options, p, **k), **settings)


def test_the_method_fits_and_restores():
    x, y = data(2)
    boosting = method(3, iterations=20)  # no example of the third class
    batch = DomainBatch(torch.from_numpy(x), torch.from_numpy(y), (0, 1), (200, 100))
    assert boosting.step(batch)["trees"] == 20
    outputs = boosting.predict(batch.x).detach().numpy()
    assert (outputs.argmax(1) == y).mean() > 0.9
    assert log_softmax(outputs, axis=1)[:, 2].max() < -3
    other = method(3)
    other.load_state_dict(boosting.state_dict())
    assert torch.equal(other.predict(batch.x), boosting.predict(batch.x))
    one = DomainBatch(batch.x, torch.zeros(300, dtype=torch.long), (0, 1), (200, 100))
    assert boosting.step(one)["trees"] == 0
    assert (boosting.predict(batch.x).argmax(1) == 0).all()


def test_damaged_trees_are_rejected():
    x, y = data(2)
    boosting = method(2, iterations=3)
    boosting.step(DomainBatch(torch.from_numpy(x), torch.from_numpy(y), (0,), (300,)))
    state = boosting.model.head.state_dict()
    cycle = state["branches"].clone()
    cycle[0], cycle[1] = 1, 0
    for name, value in (("feature", 4), ("branches", -1), ("branches", cycle)):
        changed = {key: tensor.clone() for key, tensor in state.items()}
        changed[name][:] = value
        with pytest.raises(BadInput, match="damaged"):
            Trees(4, 2).load_state_dict(changed)
    with pytest.raises(BadInput, match="format 3"):
        Trees(4, 2, version=3)


def test_codes_are_features_of_their_own_and_old_files_have_none():
    head = Trees(3, 1)
    one = np.ones((1, 1))
    head.set(Forest(
        feature=np.array([3, 0, 0]), threshold=np.array([1.5, 0, 0]), missing=np.zeros(3),
        branches=np.array([[1, 2], [1, 1], [2, 2]]), value=np.array([0.0, 1.0, 2.0]), roots=np.zeros(1),
        owner=np.zeros(1), mix=one, offset=np.zeros(1), codes=np.array([[0.0], [1.0], [2.0]]),
    ))  # fmt: skip
    x = torch.tensor([[9.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert head(x)[:, 0].tolist() == [1.0, 2.0]
    copy = Trees(**head.settings)
    copy.load_state_dict(head.state_dict())
    assert torch.equal(copy(x), head(x))
    old = {name: value for name, value in head.state_dict().items() if name != "codes"}
    old["feature"] = torch.zeros(3, dtype=torch.int64)
    settings = {name: value for name, value in head.settings.items() if name != "codes"} | {"version": 1}
    loaded = Trees(**settings)
    loaded.load_state_dict(old)
    assert loaded(x)[:, 0].tolist() == [2.0, 1.0]
