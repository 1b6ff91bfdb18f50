"""Gradient boosting of decision trees on fixed features, with scikit-learn or LightGBM.

The trees are copied to the head of the network, so that they are saved, served and exported like any other model.

Shapes: n examples, d features, c classes or labels, s sums of trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import BadInput, quiet_fit
from holdfast.core.settings import checked_settings, choice, log, setting, whole
from holdfast.core.stopping import stop_if_requested
from holdfast.methods.linear import SolvedAtOnce, best_constant, quantile_levels
from holdfast.methods.linear_fit import Design
from holdfast.nn.trees import Forest, Trees
from holdfast.tasks.regress import Regress

FEWEST_L2 = 1.0  # of three or more classes: without a penalty, leaves of rare classes grow without limit
Tree = dict[str, np.ndarray]  # arrays `feature`, `threshold`, `missing`, `branches`, `value` of one tree
Fit = tuple[list[Tree], np.ndarray]  # trees and the baselines of the sums to which they belong in turn


@dataclass(frozen=True)
class ForestFit:
    """Trees and metrics of the fit."""

    forest: Forest
    metrics: dict[str, float]


class Boosting(SolvedAtOnce):
    """Gradient-boosted trees on the features of a frozen encoder; the examples of all domains have the same weight.

    For tables the features are those of the encoder `columns`, which linear models read as well.
    """

    head_type, head_name = Trees, "trees"

    @checked_settings
    class Settings:
        engine: str = setting(
            "sklearn", choices=("sklearn", "lightgbm"), help="sklearn (HistGradientBoosting) or lightgbm"
        )
        iterations: int = setting(100, least=1, search=whole(50, 500), help="trees per class, at most")
        rate: float = setting(0.1, above=0, search=log(0.02, 0.3), help="shrinkage of every tree")
        leaves: int = setting(31, least=2, search=choice(7, 15, 31, 63), help="most leaves of a tree")
        min_leaf: int = setting(
            20, least=1, search=choice(5, 10, 20, 50), help="fewest examples of a leaf, or a tenth of all"
        )
        l2: float = setting(
            0.0,
            least=0,
            search=choice(0.0, 1.0, 10.0),
            help="L2 penalty of leaf values; of 3 or more classes at least 1",
        )

    def fit(self, designs: Sequence[Design]) -> ForestFit:
        design = Design.join(designs)
        forest = self._forest(np.asarray(design.x), design.y)
        return ForestFit(forest, {"trees": float(len(forest.roots))})

    def _forest(self, x: np.ndarray, y: np.ndarray) -> Forest:
        """Return one sum of trees per class, label or number; outputs that do not vary get their best constant.

        Two classes share one sum. Quantiles of numbers are the prediction plus the quantiles of the training errors.
        """
        outputs = int(self.head.outputs)
        best = best_constant(y, outputs, self.task)
        columns = columns_of_trees(x, self._min_leaf(len(y)))
        if isinstance(self.task, Regress):
            problems, mix = [(y.astype(np.float64), 0)], np.ones((1, outputs))
        elif y.ndim == 2:
            varying = np.flatnonzero((y > 0.5).any(axis=0) & (y < 0.5).any(axis=0))
            problems, mix = [((y[:, label] > 0.5).astype(np.int64), 2) for label in varying], np.eye(outputs)[varying]
        else:
            known, codes = np.unique(y, return_inverse=True)
            problems, mix = [(codes, len(known))] if len(known) > 1 else [], class_mix(known, outputs)
        if not columns.width or not problems:
            return Forest.constant(best)
        values = columns.of(x)
        fits = [self._grow(values, targets, classes) for targets, classes in problems]
        forest = columns.restored(join_trees(fits, mix, best))
        if levels := quantile_levels(self.task):
            self.head.set(forest)
            errors = y.astype(np.float64) - self.head(torch.from_numpy(x)).detach().numpy()[:, 0]
            forest = replace(forest, offset=forest.offset + np.quantile(errors, levels))
        return forest

    def _min_leaf(self, examples: int) -> int:
        """Return the fewest examples of a leaf: on few examples, a tenth of them."""
        return max(1, min(self.settings.min_leaf, examples // 10))

    def _grow(self, x: np.ndarray, y: np.ndarray, classes: int) -> Fit:
        """Return trees in the order of the iterations, and the baseline per sum; without classes, y are numbers."""
        grow = _lightgbm if self.settings.engine == "lightgbm" else _sklearn
        least = FEWEST_L2 if classes > 2 else 0.0
        options = replace(self.settings, min_leaf=self._min_leaf(len(y)), l2=max(self.settings.l2, least))
        return grow(x, y, classes, options)

    def write(self, solution: ForestFit) -> None:
        self.head.set(solution.forest)


@dataclass(frozen=True)
class TreeColumns:
    """Columns that trees are grown on: features that can be split, and codes of features that exclude one another."""

    single: np.ndarray  # features that are columns of their own
    codes: np.ndarray  # (d, e)

    def of(self, x: np.ndarray) -> np.ndarray:
        """Return the columns of the features (n, d)."""
        return np.concatenate([x[:, self.single], np.nan_to_num(x) @ self.codes], axis=1, dtype=np.float64)

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.single) + self.codes.shape[1]

    def restored(self, forest: Forest) -> Forest:
        """Return trees of the features and their codes."""
        features, codes = self.codes.shape
        columns = np.concatenate([self.single, features + np.arange(codes)])
        return replace(forest, feature=columns[forest.feature.astype(np.int64)], codes=self.codes)


def columns_of_trees(x: np.ndarray, min_leaf: int) -> TreeColumns:
    """Return the columns for features (n, d).

    Neighbouring features of 0 and 1, of which no example has two, become one column of codes, the first feature 1, so
    that a histogram replaces one per category. Features with fewer than `min_leaf` examples on one side
    of every threshold cannot be split.
    """
    binary = ((x == 0) | (x == 1)).all(axis=0)
    different = (x != x[:1]).sum(axis=0)  # (d,) examples
    varying = np.where(binary, np.minimum(different, len(x) - different), different) >= min_leaf
    groups: list[list[int]] = []
    taken = np.zeros(len(x), dtype=bool)
    for i in np.flatnonzero(binary):
        ones = x[:, i] == 1
        if not groups or groups[-1][-1] != i - 1 or (taken & ones).any():
            groups.append([])
            taken = np.zeros(len(x), dtype=bool)
        groups[-1].append(int(i))
        taken |= ones
    groups = [group for group in groups if len(group) > 1]
    codes = np.zeros((x.shape[1], len(groups)))
    for column, group in enumerate(groups):
        codes[group, column] = np.arange(1, len(group) + 1)
    coded = codes.any(axis=1)
    return TreeColumns(np.flatnonzero(varying & ~coded), codes)


def class_mix(known: np.ndarray, classes: int) -> np.ndarray:
    """(s, c) from sums to outputs: two classes share one sum, which is the difference of their outputs."""
    if len(known) == 2:
        mix = np.zeros((1, classes))
        mix[0, known] = -0.5, 0.5
        return mix
    return np.eye(classes)[known]


def join_trees(fits: Sequence[Fit], mix: np.ndarray, offset: np.ndarray) -> Forest:
    """Concatenate trees, which belong to the sums of their fit in turn; outputs without trees are their `offset`."""
    trees = [tree for some, _ in fits for tree in some]
    sizes = np.asarray([len(tree["feature"]) for tree in trees])
    starts = np.cumsum(sizes) - sizes
    arrays: dict[str, Any] = {name: np.concatenate([tree[name] for tree in trees]) for name in trees[0]}
    arrays["branches"] = arrays["branches"] + np.repeat(starts, sizes)[:, None]
    owners, sums = [], 0
    for some, baseline in fits:
        owners.append(sums + np.arange(len(some)) % len(baseline))
        sums += len(baseline)
    constant = np.where(mix.any(axis=0), np.concatenate([baseline for _, baseline in fits]) @ mix, offset)
    return Forest(**arrays, roots=starts, owner=np.concatenate(owners), mix=mix, offset=constant)


def _sklearn(x: np.ndarray, y: np.ndarray, classes: int, options: Boosting.Settings) -> Fit:
    """Fit scikit-learn's trees; with more than 10,000 examples they end when a tenth of them does not gain any more.

    This tenth has all classes, so that no class may have a single example.
    """
    from sklearn import ensemble  # its import takes a second

    early = "auto" if not classes or np.bincount(y).min() > 1 else False

    family: Any = ensemble.HistGradientBoostingClassifier if classes else ensemble.HistGradientBoostingRegressor

    class Interruptible(family):
        def _get_loss(self, *arguments: Any, **options: Any) -> Any:
            loss = super()._get_loss(*arguments, **options)
            gradients = loss.gradient_hessian

            def checked(*arguments: Any, **options: Any) -> Any:
                stop_if_requested()
                return gradients(*arguments, **options)

            loss.gradient_hessian = checked  # is called once per iteration
            return loss

    model: Any = Interruptible(
        max_iter=options.iterations, learning_rate=options.rate, max_leaf_nodes=options.leaves,
        min_samples_leaf=options.min_leaf, l2_regularization=options.l2, early_stopping=early, random_state=0,
    )  # fmt: skip
    with quiet_fit():
        model.fit(x, y)
    trees = [sklearn_tree(tree.nodes) for iteration in model._predictors for tree in iteration]
    return trees, np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)


def sklearn_tree(nodes: np.ndarray) -> Tree:
    """Convert the nodes of a scikit-learn tree without native categories."""
    assert not nodes["is_categorical"].any()
    leaf, own = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
    left, right = (np.where(leaf, own, nodes[side].astype(np.int64)) for side in ("left", "right"))
    return {
        "feature": nodes["feature_idx"].astype(np.int64),
        "threshold": np.where(leaf, 0.0, nodes["num_threshold"]),
        "missing": nodes["missing_go_to_left"].astype(np.int64),
        "branches": np.stack([left, right], axis=1),
        "value": np.where(leaf, nodes["value"], 0.0),
    }


def _lightgbm(x: np.ndarray, y: np.ndarray, classes: int, options: Boosting.Settings) -> Fit:
    """Fit LightGBM's trees; its first trees contain the baseline."""
    try:
        import lightgbm
    except ImportError as error:
        raise BadInput("the method lightgbm needs LightGBM: pip install 'holdfast[lightgbm]'") from error
    several = {"objective": "multiclass", "num_class": classes} if classes > 2 else {"objective": "binary"}
    several = several if classes else {"objective": "regression"}
    parameters = {
        **several, "learning_rate": options.rate, "num_leaves": options.leaves, "min_data_in_leaf": options.min_leaf,
        "lambda_l2": options.l2, "verbosity": -1, "deterministic": True, "force_row_wise": True, "seed": 0,
        "num_threads": torch.get_num_threads(),
    }  # fmt: skip
    booster: Any = lightgbm.train(
        parameters,
        lightgbm.Dataset(x, y),
        num_boost_round=options.iterations,
        callbacks=[lambda _: stop_if_requested()],
    )
    trees = [lightgbm_tree(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]]
    return trees, np.zeros(classes if classes > 2 else 1)


def lightgbm_tree(root: dict[str, Any]) -> Tree:
    """Convert the nested nodes of a LightGBM tree with numeric splits."""
    nodes: list[tuple[int, float, int, int, int, float]] = []

    def add(node: dict[str, Any]) -> int:
        own = len(nodes)
        if "leaf_value" in node:
            nodes.append((0, 0.0, 0, own, own, float(node["leaf_value"])))
            return own
        assert node["decision_type"] == "<=", node["decision_type"]
        nodes.append((0, 0.0, 0, own, own, 0.0))
        left, right = add(node["left_child"]), add(node["right_child"])
        goes_left = int(bool(node["default_left"]) and node["missing_type"] == "NaN")
        nodes[own] = (int(node["split_feature"]), float(node["threshold"]), goes_left, left, right, 0.0)
        return own

    add(root)
    feature, threshold, missing, left, right, value = (np.asarray(column) for column in zip(*nodes, strict=True))
    branches = np.stack([left, right], axis=1)
    return {"feature": feature, "threshold": threshold, "missing": missing, "branches": branches, "value": value}
