"""DomainClassifier and DomainRegressor: scikit-learn estimators for data with several domains.

Both have `adapt`, foreign scores and model folders.

n examples, c classes, d features
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from holdfast.adaptation.adapt import Terms, adapt_model, continue_training
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.data.align import with_classes
from holdfast.data.dataset import Dataset, encode
from holdfast.data.raw import Raw
from holdfast.data.readers.in_memory import (
    as_dataset,
    as_frame,
    as_labels,
    as_numeric_dataset,
    as_raw,
    original_labels,
    read_inputs,
)
from holdfast.folders.format import SavedModel, load_model
from holdfast.folders.memory import add_examples, delete_examples
from holdfast.prediction.outputs import calibrate, check_sets, coordinates, predict_examples, predict_sets
from holdfast.record import RunRecord
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Configuration
from holdfast.train.settings import min_domains
from holdfast.train.workspace import choose_device
from holdfast.training import train_model
from holdfast.uncertainty.conformal import Calibrated


class NotFitted(BadInput, NotFittedError):
    """An estimator was used before it was fitted."""


def _names(domains: Sequence[Any] | None) -> list[str] | None:
    return None if domains is None else [str(name) for name in domains]


@dataclass(eq=False, repr=False)
class DomainEstimator(BaseEstimator, Configuration, ABC):
    """Base of the estimators: parameters, training on a Dataset, adaptation and model folders."""

    method: str = "erm"  # the only parameter that may be positional
    n_features_in_: int = field(init=False)
    feature_names_in_: np.ndarray = field(init=False)
    notes_: tuple[str, ...] = field(init=False)
    record_: RunRecord = field(init=False)

    @abstractmethod
    def _dataset(self, X: Any, y: Any, domains: Sequence[Any] | None) -> Dataset:
        """Return the examples with the targets of the estimator."""

    def _restore(self, saved: SavedModel) -> None:
        """Take over a trained model."""
        self._saved, self.record_ = saved, saved.record

    def fit_dataset(
        self, dataset: Dataset, *, folder: Path | None = None, watch: ProgressListener | None = None
    ) -> Self:
        """Train on a Dataset and save to `folder`, where an interrupted training resumes."""
        self._check_features(dataset.raw, dataset.raw, reset=True)
        return self._fit(dataset, self.method, self.settings, folder=folder, watch=watch)

    def _method_for(self, domains: Sequence[Any] | None) -> tuple[str, Mapping[str, Any] | None]:
        """Return method and settings; without domains, erm replaces a method that needs several."""
        if domains is not None or min_domains(self.method) <= 1:
            return self.method, self.settings
        neck, plus, _ = self.method.rpartition("+")
        method = f"{neck}{plus}erm"
        need = f"{self.method} needs several: fitting {method} instead"
        warnings.warn(f"without domains all examples form one domain, but {need}", stacklevel=3)
        return method, {key: value for key, value in (self.settings or {}).items() if not key.startswith("method.")}

    def _fit(
        self, dataset: Dataset, method: str, settings: Mapping[str, Any] | None, *, folder: Path | None = None,
        watch: ProgressListener | None = None, calibrate: bool = True,
    ) -> Self:  # fmt: skip
        chosen, names = replace(self, method=method, settings=settings), self.__dict__.get("feature_names_in_")
        trained = train_model(chosen, dataset, folder=folder, watch=watch, calibrate=calibrate, columns=names)
        self.notes_ = trained.notes
        self._restore(trained.model)
        return self

    def adapt(
        self,
        X: Any,
        y: Sequence[Any],
        *,
        domain: str,
        earlier: tuple[Any, Sequence[Any], Sequence[Any]] | None = None,
        terms: Terms | None = None,
    ) -> Self:
        """Learn one more domain; if an earlier domain would lose too much, raise an error and change nothing.

        `earlier` is (X, y, domains) of the data it was fitted on; it is not needed with `keep_sample`.
        """
        terms, model = terms or Terms(device=self.device), self._model()
        new = self._dataset(X, y, [domain] * len(list(y)))
        self._check_features(X, new.raw)
        past = () if earlier is None else (self._dataset(*earlier),)
        result = adapt_model(model, new, terms, domain=domain, earlier=past)
        if result.refused and not terms.force:
            raise BadInput(result.refused)
        self._saved, self.record_ = result.model, result.model.record
        return self

    def foreignness(self, X: Any) -> np.ndarray:
        """Return the percentile of each example's distance to the training data, among validation examples.  # (n,)"""
        model = self._model()
        if model.calibration is None:
            raise BadInput("this model has no foreign scores: fit it again")
        features = model.observe(self._raw(X), device=choose_device(self.device)).features
        return model.calibration.foreign.percentiles(features)

    def _calibrated_sets(self, raw: Raw, coverage: float, method: str) -> Calibrated:
        """Return prediction sets with this coverage."""
        saved, new = self._model(), None
        check_sets(saved, coverage, method)
        if method == "weighted":
            new = coordinates(saved, raw, device=choose_device(self.device))
        return calibrate(saved, coverage, method, new=new)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write a model folder for `from_pretrained` and `holdfast predict`; labels are stored as strings."""
        return self._model().save(Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """Load a fitted estimator from a model folder."""
        saved = load_model(Path(folder))
        estimator, inputs = cls.of_spec(saved.record.spec, device=device), saved.encoder.settings.get("inputs")
        estimator._restore(saved)
        if saved.encoder.takes == "vector" and inputs is not None:
            estimator.n_features_in_ = int(inputs)
        if saved.columns is not None:
            estimator.feature_names_in_ = np.asarray(saved.columns, dtype=object)
        return estimator

    def __sklearn_is_fitted__(self) -> bool:
        return "_saved" in self.__dict__

    def _model(self) -> SavedModel:
        if not self.__sklearn_is_fitted__():
            raise NotFitted(f"this {type(self).__name__} is not fitted yet: call fit first")
        return self._saved

    def _raw(self, X: Any) -> Raw:
        model, frame = self._model(), as_frame(X)
        schema = model.encoder.schema
        if schema and isinstance(frame, pd.DataFrame):
            texts = [name for name in model.columns or () if name not in {column.name for column in schema}]
            return model.align(read_inputs(frame, schema, *texts)).raw
        raw = as_raw(frame)
        self._check_features(X, raw)
        return raw

    def _check_features(self, X: Any, raw: Raw, *, reset: bool = False) -> None:
        """Store (`reset`) or check the number and the names of features of vectors."""
        names = ("n_features_in_", "feature_names_in_")
        if reset:
            for name in names:
                vars(self).pop(name, None)
        if raw.kind == "vector" and raw is not X and (reset or names[0] in self.__dict__):
            validate_data(self, X, reset=reset, skip_check_array=True)


class DomainClassifier(ClassifierMixin, DomainEstimator):
    """Classifier trained on examples of several domains; parameters are stored unchanged, as scikit-learn requires.

    Without `domains`, all examples form one domain, and a method that needs several is replaced by erm with a warning.
    """

    classes_: np.ndarray

    def _dataset(self, X: Any, y: Any, domains: Sequence[Any] | None) -> Dataset:
        return as_dataset(X, y, domains)

    def _restore(self, saved: SavedModel) -> None:
        super()._restore(saved)
        self.classes_ = np.asarray(saved.classes)

    def fit(self, X: Any, y: Any, *, domains: Sequence[Any] | None = None) -> Self:
        """Train on texts, text pairs, vectors, uint8 images, image paths, Graphs or torch-geometric Data.

        Args:
            X: examples; vectors have the shape (n, d).
            y: labels, shape (n,).
            domains: name of the domain per example; None means one domain.
        """
        dataset = as_dataset(X, y, domains)
        self._check_features(X, dataset.raw, reset=True)
        self._fit(dataset, *self._method_for(domains))
        self.classes_ = original_labels(dataset.classes, as_labels(y))
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Sequence[Any] | None = None, *, domains: Sequence[Any] | None = None
    ) -> Self:
        """Continue training on more examples.

        The first call needs all `classes` and determines the vocabulary and the scale of the encoder.
        """
        dataset = as_dataset(X, y, domains)
        if self.__sklearn_is_fitted__():
            if classes is not None and set(map(str, classes)) != set(self._saved.classes):
                raise BadInput(f"classes were set by the first call ({', '.join(self._saved.classes)}): leave them out")
            self._check_features(X, dataset.raw)
            cache = cache_folder() if self.cache else None
            trained = continue_training(self._saved, dataset, device=choose_device(self.device), cache=cache)
            super()._restore(trained)
            return self
        if classes is None:
            raise BadInput("the first call of partial_fit needs classes: pass all labels that will occur")
        labels = as_labels(classes)
        _, names = encode(labels)
        self._check_features(X, dataset.raw, reset=True)
        self._fit(with_classes(dataset, names), *self._method_for(domains), calibrate=False)
        self.classes_ = original_labels(names, labels)
        return self

    def add_examples(self, X: Any, y: Sequence[Any]) -> Self:
        """Store labelled examples in the memory of a model with `predict=knn`; predictions use them at once."""
        model, new = self._model(), as_dataset(X, y, None)
        self._check_features(X, new.raw)
        add_examples(model, new.raw, with_classes(new, model.classes).y, device=self.device)
        return self

    def delete_examples(self, X: Any) -> int:
        """Delete the stored examples with this content, training examples included; return their number."""
        return delete_examples(self._model(), self._raw(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities in the order of `classes_`.  # (n, c)"""
        return self._model().probabilities(self._raw(X), device=choose_device(self.device))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable label per example.  # (n,)"""
        chosen = self.predict_proba(X).argmax(axis=1)
        return self.classes_[chosen]

    def predict_set(
        self, X: Any, coverage: float = 0.9, *, method: str = "split", domains: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Return which classes are in the prediction set of each example, in the order of `classes_`.  # (n, c)

        The sets contain the true class with probability `coverage` in a domain that was not trained on, as far as the
        left-out domains show; this needs `left_out=True`. `method` is split, mondrian (with `domains`) or weighted.
        """
        raw, device = self._raw(X), choose_device(self.device)
        sets = self._calibrated_sets(raw, coverage, method)
        probabilities, names = self._model().probabilities(raw, device=device), _names(domains)
        return predict_sets(self._model(), sets, raw, probabilities, domains=names, device=device).values

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy."""
        correct = [str(a) == str(b) for a, b in zip(self.predict(X), y, strict=True)]
        return float(np.average(correct, weights=sample_weight))


class DomainRegressor(RegressorMixin, DomainEstimator):
    """Regression on examples of several domains; parameters are stored unchanged, as scikit-learn requires.

    Without `domains`, all examples form one domain, and a method that needs several is replaced by erm with a warning.
    `settings` may choose the loss, such as `{"task.loss": "huber"}`, and `task.level`, the probability of an interval.
    """

    def _dataset(self, X: Any, y: Any, domains: Sequence[Any] | None) -> Dataset:
        return as_numeric_dataset(X, y, domains)

    def _restore(self, saved: SavedModel) -> None:
        if saved.predicts != "numbers":
            raise BadInput(f"a model of the task {saved.task} does not predict numbers: load it with DomainClassifier")
        super()._restore(saved)

    def fit(self, X: Any, y: Any, *, domains: Sequence[Any] | None = None) -> Self:
        """Train on texts, text pairs, vectors, uint8 images, image paths, Graphs or torch-geometric Data.

        Args:
            X: examples; vectors have the shape (n, d).
            y: numbers, shape (n,).
            domains: name of the domain per example; None means one domain.
        """
        dataset = self._dataset(X, y, domains)
        self._check_features(X, dataset.raw, reset=True)
        return self._fit(dataset, *self._method_for(domains))

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted number per example.  # (n,)"""
        return predict_examples(self._model(), self._raw(X), device=choose_device(self.device)).values[:, 0]

    def predict_interval(
        self, X: Any, coverage: float | None = None, *, method: str = "split", domains: Sequence[Any] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper ends of the prediction intervals.  # (n,), (n,)

        They cover `task.level` of new examples of the training domains, 90% by default; in a new domain, usually less.
        With a `coverage`, they are calibrated on left-out domains, which needs `left_out=True`; `method` is split,
        mondrian (with `domains`) or weighted.
        """
        raw, sets = self._raw(X), None
        if coverage is not None:
            sets = self._calibrated_sets(raw, coverage, method)
        device = choose_device(self.device)
        predicted = predict_examples(self._model(), raw, device=device, sets=sets, domains=_names(domains))
        if predicted.ends is None:
            raise BadInput("this model has no intervals, because it had too few validation examples: fit it on more")
        return predicted.ends[:, 0], predicted.ends[:, 1]
