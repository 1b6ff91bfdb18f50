"""DomainClassifier: the library as one estimator of scikit-learn, with adapt and save.

n examples, c classes
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder, locked
from holdfast.data.align import with_classes
from holdfast.data.dataset import Dataset, encode
from holdfast.data.raw import Raw
from holdfast.data.readers.memory import as_dataset, as_labels, as_raw, original_labels
from holdfast.data.sample import check_sample, draw_sample
from holdfast.data.splits import HeldOut
from holdfast.models.adapt import Terms, adapt_model, go_on
from holdfast.models.calibration import measure
from holdfast.models.saved import SavedModel, load_model
from holdfast.protocols.plan import Stage
from holdfast.protocols.resume import Saver, stop_at_signal
from holdfast.run.assemble import Assembly, Workspace, try_build
from holdfast.run.occupied import check_own_model
from holdfast.run.progress import ProgressListener
from holdfast.run.settings import choose_device, for_one_domain, make_spec, settings_of
from holdfast.run.train import checkpoint_path, episodes, needs_of, train, training_steps


class NotFitted(BadInput, NotFittedError):
    """A classifier was asked for predictions before it was fitted."""


class DomainClassifier(ClassifierMixin, BaseEstimator):
    """A classifier trained on examples of several domains; every keyword is kept as given.

    Without domains all examples are one domain, and a method that needs several gives way to erm, with a warning.
    """

    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        method: str = "erm",
        *,
        encoder: str = "auto",
        tune: str = "auto",
        steps: int | None = None,
        batch: int | None = None,
        lr: float | None = None,
        metric: str | None = None,
        seed: int = 0,
        device: str = "auto",
        cache: bool = True,
        keep_sample: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method, self.encoder, self.tune = method, encoder, tune
        self.steps, self.batch, self.lr, self.metric = steps, batch, lr, metric
        self.seed, self.device, self.cache, self.settings = seed, device, cache, settings
        self.keep_sample = keep_sample  # examples of each domain that a model folder keeps, for `adapt`

    def fit(self, X: Any, y: Any, *, domains: Sequence[Any] | None = None) -> Self:
        """Train on texts, text pairs, vectors (n, d), uint8 images, image paths, Graphs or torch-geometric's Data."""
        dataset = as_dataset(X, y, domains)
        self._features(X, dataset.raw, first=True)
        self._fit(dataset, *self._rule(domains))
        self.classes_ = original_labels(dataset.classes, as_labels(y))
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Sequence[Any] | None = None, *, domains: Sequence[Any] | None = None
    ) -> Self:
        """Go on training on more examples; the first call tells all classes, and fixes an encoder's words and scale."""
        dataset, cache = as_dataset(X, y, domains), cache_folder() if self.cache else None
        if self.__sklearn_is_fitted__():
            if classes is not None and set(map(str, classes)) != set(self._saved.classes):
                raise BadInput(f"the classes were told before ({', '.join(self._saved.classes)}): leave them out")
            self._features(X, dataset.raw)
            self._saved = go_on(self._saved, dataset, device=choose_device(self.device), cache=cache)
            self.record_ = self._saved.record
            return self
        if classes is None:
            raise BadInput("the first call of partial_fit needs classes: tell all labels that will ever come")
        known = as_labels(classes)
        _, names = encode(known)
        self._features(X, dataset.raw, first=True)
        self._fit(with_classes(dataset, names), *self._rule(domains), measured=False)
        self.classes_ = original_labels(names, known)
        return self

    def fit_dataset(
        self, dataset: Dataset, *, folder: Path | None = None, watch: ProgressListener | None = None,
        agrees: Collection[str] | None = None,
    ) -> Self:  # fmt: skip
        """Train, and save where a stopped training goes on; a model that is there must be alike in these settings."""
        self._features(dataset.raw, dataset.raw, first=True)
        return self._fit(dataset, self.method, self.settings, folder=folder, watch=watch, agrees=agrees)

    def _rule(self, domains: Sequence[Any] | None) -> tuple[str, Mapping[str, Any] | None]:
        """The method to train by, and the settings: without domains one that can do with one."""
        method = self.method if domains is not None else for_one_domain(self.method)
        if method == self.method:
            return method, self.settings
        told = f"no domains were given, so all examples are one; {self.method} needs several: fitting with {method}"
        warnings.warn(told, stacklevel=3)
        return method, {key: value for key, value in (self.settings or {}).items() if not key.startswith("method.")}

    def _fit(
        self, dataset: Dataset, method: str, settings: Mapping[str, Any] | None, *, folder: Path | None = None,
        watch: ProgressListener | None = None, measured: bool = True, agrees: Collection[str] | None = None,
    ) -> Self:  # fmt: skip
        device, watch = choose_device(self.device), watch or ProgressListener()
        spec = make_spec(
            dataset, encoder=self.encoder, tune=self.tune, settings=settings, device=device,
            method=method, plan="all", metric=self.metric, seed=self.seed,
            steps=self.steps, batch=self.batch, lr=self.lr,
        )  # fmt: skip
        if len(dataset) == 1:
            raise BadInput(f"{dataset.name} has one sample: at least 2 are needed, to train and to validate on")
        dataset.checked(labels="label" in needs_of(spec))
        check_sample(dataset, self.keep_sample)
        if spec.plan != "all":
            raise BadInput(f"fit trains on all domains, so its plan is 'all', not '{spec.plan}': compare has others")
        if folder is not None:
            check_own_model(folder, spec, settings=agrees)
        workspace = Workspace(
            dataset, device=device, cache=cache_folder() if self.cache else None, watch=watch.encoding
        )
        (episode,) = episodes(spec, workspace)
        try_build(spec, episode, workspace)
        saver = Saver(None if folder is None else checkpoint_path(spec, episode, folder))
        watch.start(1, 0)
        watch.begin(f"{spec.method} on {len(dataset.domains)} domains", training_steps(spec))
        with locked(folder) if folder is not None and parallel.is_first() else nullcontext():
            with stop_at_signal():
                self.record_, built = train(spec, episode, workspace, saver=saver, tick=watch.step)
            watch.end(self.record_)
            self.classes_ = np.asarray(dataset.classes)
            self._saved = self._kept(dataset, built, episode.stages[-1], measured=measured)
            if folder is not None and parallel.is_first():
                self.save_pretrained(folder)
            saver.finish()
        return self

    def _kept(self, dataset: Dataset, built: Assembly, stage: Stage, *, measured: bool) -> SavedModel:
        """The trained network with what its predictions are held against, and what tells its data again."""
        gauge, held = None, stage.test or stage.valid
        if measured and self.record_.spec["task"] == "classify" and built.method is not None:
            gauge = measure(
                built.method.deployed, built.examples, stage.train, stage.valid,
                classes=len(dataset.classes), seed=self.seed,
            )  # fmt: skip
        kept = None
        if self.keep_sample:
            kept = draw_sample(dataset, stage.train, held, limit=self.keep_sample, seed=self.seed)
        columns = self.__dict__.get("feature_names_in_", dataset.columns)
        return SavedModel(
            built.deploy(), built.encoder, dataset.classes, self.record_, gauge, HeldOut.of(dataset, held), kept,
            None if columns is None else tuple(map(str, columns)),
        )  # fmt: skip

    def adapt(
        self,
        X: Any,
        y: Sequence[Any],
        *,
        domain: str,
        earlier: tuple[Any, Sequence[Any], Sequence[Any]] | None = None,
        terms: Terms | None = None,
    ) -> Self:
        """Learn one more domain; where an earlier one would lose too much, an error says so and nothing changes.

        `earlier` are the examples, labels and domains it was fitted on, unless it was made with `keep_sample`.
        """
        terms, model = terms or Terms(device=self.device), self._model()
        new = as_dataset(X, y, [domain] * len(list(y)))
        self._features(X, new.raw)
        again = () if earlier is None else (as_dataset(*earlier),)
        done = adapt_model(model, new, terms, domain=domain, earlier=again)
        if done.refused and not terms.force:
            raise BadInput(done.refused)
        self._saved, self.record_ = done.model, done.model.record
        return self

    def foreignness(self, X: Any) -> np.ndarray:
        """(n,) of 100 validation examples, how many lie as near to the training examples as each, or nearer."""
        found = self._model().judge(self._raw(X), device=choose_device(self.device)).foreign
        if found is None:
            raise BadInput("this model was fitted without a measure of foreignness: fit it again")
        return found

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, c) probabilities in the order of `classes_`."""
        return self._model().probabilities(self._raw(X), device=choose_device(self.device))

    def predict(self, X: Any) -> np.ndarray:
        """(n,) the most probable label of each example."""
        chosen = self.predict_proba(X).argmax(axis=1)
        return self.classes_[chosen]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy."""
        right = [str(a) == str(b) for a, b in zip(self.predict(X), y, strict=True)]
        return float(np.average(right, weights=sample_weight))

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write a model folder that `from_pretrained` and `holdfast predict` read; labels there are texts."""
        return self._model().save(Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """A classifier that predicts, from a model folder."""
        saved = load_model(Path(folder))
        spec, inputs = saved.record.spec, saved.encoder.settings.get("inputs")
        made = cls(
            spec["method"], encoder=spec["encoder"], tune=spec["tune"], steps=spec["steps"], batch=spec["batch"],
            lr=spec["lr"], metric=spec["metric"], seed=spec["seed"], device=device, settings=settings_of(spec),
        )  # fmt: skip
        made.classes_, made._saved, made.record_ = np.asarray(saved.classes), saved, saved.record
        if saved.encoder.takes == "vector" and inputs is not None:
            made.n_features_in_ = int(inputs)
        if saved.columns is not None:
            made.feature_names_in_ = np.asarray(saved.columns, dtype=object)
        return made

    def __sklearn_is_fitted__(self) -> bool:
        return "_saved" in self.__dict__

    def _model(self) -> SavedModel:
        if not self.__sklearn_is_fitted__():
            raise NotFitted("this classifier is not fitted yet: call fit first")
        return self._saved

    def _raw(self, X: Any) -> Raw:
        raw = as_raw(X)
        self._features(X, raw)
        return raw

    def _features(self, X: Any, raw: Raw, *, first: bool = False) -> None:
        """Of vectors, keep or check how many features they have and how a table calls them."""
        known = ("n_features_in_", "feature_names_in_")
        if first:
            for name in known:
                self.__dict__.pop(name, None)
        if raw.kind == "vector" and raw is not X and (first or known[0] in self.__dict__):
            validate_data(self, X, reset=first, skip_check_array=True)
