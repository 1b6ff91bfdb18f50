"""The solver finds the optimum of scikit-learn for dense and sparse features, many problems at once, and stops."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge

from holdfast.core.stopping import Deadline, TimeUp, until
from holdfast.methods.linear_fit import Design, fit_labels, fit_linear, ridge
from holdfast.methods.solver import Dual, Primal, solve, space_of
from holdfast.methods.strength import best_strength, domain_folds, loss_of, stratified_sample

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 12)).astype(np.float32) @ RNG.normal(size=(12, 12)).astype(np.float32)
SCORES = X @ RNG.normal(size=(12, 3)) / 4 + RNG.gumbel(size=(300, 3))
WIDE = sparse.csr_matrix(RNG.normal(size=(80, 500)) * (RNG.random((80, 500)) < 0.05))


def solved(x, y, classes, strength):
    y = np.asarray(y)
    bias = torch.zeros(1, 1 if classes == 2 else classes)
    tolerance = 1e-9
    return solve(space_of(x), loss_of(y, classes), torch.tensor([strength]), bias, tolerance=tolerance)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("x", "space"), [(X, Primal), (WIDE, Dual), (WIDE.toarray(), Dual)])
@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_equals_scikit_learn(x, space, classes, strength):
    y = SCORES[: x.shape[0], :classes].argmax(1)
    assert isinstance(space_of(x), space)
    solution = solved(x, y, classes, strength)
    reference = LogisticRegression(C=strength, max_iter=5000, tol=1e-8).fit(x, y)
    np.testing.assert_allclose(solution.weight[0], reference.coef_, atol=4e-3)
    outputs = solution.outputs[:, 0].numpy()
    expected = reference.decision_function(x).reshape(len(y), -1)
    np.testing.assert_allclose(outputs - outputs[:, :1] * (classes > 2), expected - expected[:, :1] * (classes > 2),
                               atol=2e-2)  # fmt: skip


def test_problems_solved_together_equal_those_solved_alone():
    y = SCORES.argmax(1)
    strengths, rows = torch.tensor([0.1, 1.0, 100.0, 1.0]), torch.ones(300, 4)
    rows[:100, 3] = 0
    together = solve(space_of(X), loss_of(y, 3), strengths, torch.zeros(4, 3), rows=rows, tolerance=1e-8)
    alone = solved(X, y, 3, 1.0)
    torch.testing.assert_close(together.weight[1], alone.weight[0], atol=2e-3, rtol=1e-2)
    fewer = LogisticRegression(C=1.0, max_iter=5000, tol=1e-8).fit(X[100:], y[100:])
    np.testing.assert_allclose(together.weight[3], fewer.coef_, atol=5e-3)


def test_ridge_equals_scikit_learn():
    y = X[:, 0] * 3 + RNG.normal(size=300) + 50
    design = Design(X, y)
    fit = ridge(design, 10.0)
    scaled = (X - X.mean(0)) / (X.std(0) * np.sqrt(12))
    expected = Ridge(alpha=0.1).fit(scaled, y).predict(scaled)
    np.testing.assert_allclose(X @ fit.weight[0] + fit.bias, expected, atol=5e-2)


def test_labels_without_both_values_have_a_bias_alone():
    y = np.stack([X[:, 0] > 0, np.ones(300), np.zeros(300)], axis=1).astype(np.float32)
    fit = fit_labels(Design(X, y), [Design(X[:150], y[:150]), Design(X[150:], y[150:])])
    assert not fit.weight[1:].any()
    assert fit.bias[1] > 5
    assert fit.bias[2] < -5
    assert ((X @ fit.weight[0] + fit.bias[0] > 0) == (y[:, 0] > 0)).mean() > 0.95


def test_a_deadline_in_the_past_ends_a_fit():
    with until(Deadline(0.0)), pytest.raises(TimeUp):
        fit_linear(Design(X, SCORES.argmax(1)), 3, 1.0)


def test_constant_features_and_equal_rows_are_harmless():
    x = np.concatenate([np.ones((20, 3)), np.zeros((20, 3))]).astype(np.float32)
    x[:, 2] = 7.0
    fit = fit_linear(Design(x, np.arange(40) % 2), 2, 100.0)
    assert np.isfinite(fit.weight).all()
    assert np.isfinite(fit.bias).all()


def test_folds_group_many_domains_and_contain_every_class():
    domain = np.repeat(np.arange(51), RNG.integers(5, 60, 51))
    y = RNG.integers(0, 3, len(domain))
    fold = domain_folds(domain, y)
    sizes = np.bincount(fold)
    assert len(sizes) == 5
    assert sizes.max() < 1.2 * sizes.min()
    assert all(len(np.unique(fold[domain == d])) == 1 for d in range(51))


def test_domains_of_one_class_are_merged_or_mixed():
    y = np.repeat([0, 1, 0, 1], 50)
    fold = domain_folds(np.repeat(np.arange(4), 50), y)
    assert len(np.unique(fold)) == 2
    assert all(len(np.unique(y[fold == i])) == 2 for i in range(2))
    mixed = domain_folds(np.repeat(np.arange(2), 60), np.repeat([0, 1], 60))
    assert all(np.bincount(np.repeat([0, 1], 60)[mixed == i]).tolist() == [20, 20] for i in range(3))


def test_samples_keep_all_domains_and_classes():
    domain, y = np.repeat(np.arange(10), 1000), np.tile(np.repeat([0, 1], [950, 50]), 10)
    rows = stratified_sample(domain, y, 1000)
    assert len(rows) == len(np.unique(rows)) == 1000
    assert (np.bincount(domain[rows]) == 100).all()
    assert 40 <= y[rows].sum() <= 60


def test_strengths_beyond_a_worse_one_are_not_tried():
    tried = []

    def score(strengths):
        tried.extend(strengths)
        return np.array([-abs(np.log10(strength)) for strength in strengths])

    assert best_strength(score, (0.1, 1.0, 10.0, 100.0, 1000.0)) == (1.0, 0.0)
    assert 1000.0 not in tried
