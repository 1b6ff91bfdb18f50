"""DomainClassifier among scikit-learn's tools: its own checks, routing of domains, pipelines, searches, partial_fit."""

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from holdfast import BadInput, DomainClassifier
from holdfast.core.errors import BadInput as Same
from holdfast.data.synthetic import world


def small(method="erm", **more):
    given = {"encoder": "features", "steps": 16, "batch": 16, "lr": 0.05, "device": "cpu", "cache": False, **more}
    return DomainClassifier(method, **given)


def excused(_):
    return {
        "check_methods_subset_invariance": "products of one row and of many differ in the last bit of float32; it asks "
        "for 1e-7, and test_a_part_of_the_examples_is_predicted_as_in_the_whole for what float32 can give",
    }


@parametrize_with_checks([small()], expected_failed_checks=excused)
def test_scikit_learn_checks(estimator, check):
    """scikit-learn itself skips check_array_api_input, for arrays other than numpy's, unless SCIPY_ARRAY_API is set."""
    check(estimator)


@pytest.fixture(scope="module")
def vectors():
    data = world("vector", "none", domains=3, size=40, classes=2, seed=0)
    X = data.raw.take(np.arange(len(data))).numpy()
    return X, np.asarray(data.classes)[data.y], np.asarray(data.domains)[data.domain]


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_a_part_of_the_examples_is_predicted_as_in_the_whole(vectors):
    X, y, d = vectors
    made = small().fit(X, y, domains=d)
    one_by_one = np.concatenate([made.predict_proba(X[i : i + 1]) for i in range(12)])
    np.testing.assert_allclose(one_by_one, made.predict_proba(X)[:12], atol=1e-5)


def test_domains_reach_fit_in_every_fold_through_a_pipeline(vectors, routing):
    X, y, d = vectors
    asked = small("coral").set_fit_request(domains=True)
    whole = make_pipeline(StandardScaler(), asked)
    found = cross_validate(
        whole, X, y, params={"domains": d, "groups": d}, cv=LeaveOneGroupOut(), return_estimator=True
    )
    names = sorted(set(d))
    for left, fitted in zip(names, found["estimator"], strict=True):
        record = fitted[-1].record_
        assert record.spec["method"] == "coral"
        assert sorted(record.stages[0]["train"]) == [name for name in names if name != left]
    assert min(found["test_score"]) > 0.8


def test_domains_that_were_not_asked_for_are_refused_and_not_dropped(vectors, routing):
    X, y, d = vectors
    with pytest.raises(ValueError, match="domains"):
        cross_validate(small(), X, y, params={"domains": d})


def test_a_search_over_methods_and_rates(vectors, routing):
    X, y, d = vectors
    grid = {"method": ["erm", "coral"], "lr": [1e-6, 0.05]}
    search = GridSearchCV(small().set_fit_request(domains=True), grid, cv=2).fit(X, y, domains=d)
    assert search.best_params_["lr"] == 0.05
    assert sorted(search.best_estimator_.record_.stages[0]["train"]) == sorted(set(d))


def test_without_domains_it_is_one_domain_and_a_rule_that_needs_several_gives_way_to_erm(vectors):
    X, y, _ = vectors
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = small().fit(X, y)
    assert plain.record_.stages[0]["train"] == ["all"]
    with pytest.warns(UserWarning, match="no domains were given.*coral needs several: fitting with memory.erm"):
        fell = small("memory+coral", settings={"method.weight": 2.0, "neck.slots": 4}).fit(X, y)
    assert (fell.record_.spec["method"], fell.record_.spec["neck"]) == ("erm", "memory")
    assert fell.method == "memory+coral"
    with pytest.raises(BadInput, match="needs 2 training domains"):
        small("coral").fit(X, y, domains=["one"] * len(y))


def test_features_are_counted_and_named_and_other_ones_refused(vectors, tmp_path):
    X, y, d = vectors
    table = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    made = small().fit(table, y, domains=d)
    assert made.n_features_in_ == X.shape[1]
    assert list(made.feature_names_in_) == list(table.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        made.predict(table.rename(columns={"f0": "other"}))
    with pytest.raises(ValueError, match="X has 1 features, but DomainClassifier is expecting"):
        small().fit(X, y).partial_fit(X[:, :1], y)
    again = DomainClassifier.from_pretrained(made.save_pretrained(tmp_path / "model"), device="cpu")
    assert again.n_features_in_ == X.shape[1]
    np.testing.assert_array_equal(again.predict(table), made.predict(table))  # names and all: no warning
    texts = ["good film", "bad film"] * 8
    made.set_params(encoder="bilstm", steps=2).fit(texts, [0, 1] * 8)
    assert "n_features_in_" not in vars(made)
    assert len(made.predict(texts)) == 16


def test_unfitted_is_an_error_of_both_kinds(vectors):
    with pytest.raises(NotFittedError, match="not fitted yet") as told:
        small().predict(vectors[0])
    assert isinstance(told.value, Same)


def test_a_loaded_classifier_cloned_and_fitted_again_is_the_same(vectors, tmp_path):
    X, y, d = vectors
    settings = {"encoder.hidden": [8], "optimizer": "sgd", "neck.slots": 4, "neck": "memory", "every": 4}
    made = small("coral", encoder="mlp", settings={**settings, "method.weight": 0.5}).fit(X, y, domains=d)
    loaded = DomainClassifier.from_pretrained(made.save_pretrained(tmp_path / "model"), device="cpu")
    again = clone(loaded).fit(X, y, domains=d)
    np.testing.assert_array_equal(again.predict_proba(X), made.predict_proba(X))
    assert again.record_.spec == made.record_.spec


def test_partial_fit_goes_on_from_where_the_network_is(vectors):
    X, y, d = vectors
    one, two = (np.flatnonzero(np.arange(len(y)) % 2 == i) for i in range(2))
    made = small(encoder="mlp", settings={"encoder.hidden": [8]})
    made.partial_fit(X[one], y[one], classes=["none", *sorted(set(y))], domains=d[one])
    assert made.classes_.tolist() == sorted(["none", *set(y)])
    before, mean = made.predict_proba(X), made._saved.encoder.mean.clone()
    made.partial_fit(X[two], y[two], domains=d[two])
    assert not np.array_equal(made.predict_proba(X), before)
    assert made._saved.encoder.mean.equal(mean)
    assert made.predict_proba(X).shape == (len(X), 3)
    assert made.score(X, y) > 0.8
    assert len(made.record_.stages) == 2
    held = {name: len(each) for name, each in made._saved.held_out.hashes.items()}
    assert held == dict.fromkeys(set(d), 8)  # a fifth of 20, twice
    fresh = small(encoder="mlp", settings={"encoder.hidden": [8]}).fit(X[two], y[two], domains=d[two])
    assert (
        np.abs(fresh.predict_proba(X)[:, 0] - made.predict_proba(X)[:, 1]).max() > 1e-3
    )  # the first half still counts
    with pytest.raises(BadInput, match="has the label 'other', which this model does not know"):
        made.partial_fit(X[:4], ["other"] * 4)
    with pytest.raises(BadInput, match="classes were told before"):
        made.partial_fit(X[two], y[two], classes=["a", "b"])
    with pytest.raises(BadInput, match="without a measure of foreignness"):
        made.foreignness(X)
    with pytest.raises(BadInput, match="first call of partial_fit needs classes"):
        small().partial_fit(X, y)
    with pytest.raises(BadInput, match="so use adapt"):
        small("ewc").fit(X, y, domains=d).partial_fit(X, y, domains=d)


def test_odd_inputs_are_told_in_a_sentence(vectors):
    X, y, _ = vectors
    with pytest.raises(BadInput, match="Unknown label type: continuous, such as"):
        small().fit(X, np.linspace(0.5, 9, len(y)))
    with pytest.raises(BadInput, match="one label an example"):
        small().fit(X, np.stack([y, y], axis=1))
    with pytest.raises(BadInput, match="the domain of example 2 is missing"):
        small().fit(X[:3], y[:3], domains=["a", None, "b"])
