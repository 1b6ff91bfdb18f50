"""DomainClassifier: the library as one object with fit, predict, predict_proba, score and save.

n examples, c classes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from holdfast.assembly import Workshop
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.data.domain import Dataset, encode
from holdfast.data.raw import Pictures, Pixels, Raw, Texts, Vectors
from holdfast.engines.watch import Watch
from holdfast.experiment import episodes, train
from holdfast.protocols.resume import Saver, stop_at_signal
from holdfast.saved import SavedModel, load_model, save_model
from holdfast.settings import choose_device, make_spec


class DomainClassifier(ClassifierMixin, BaseEstimator):
    """A classifier trained on examples of several domains; every keyword is kept as given."""

    def __init__(
        self,
        method: str = "erm",
        *,
        encoder: str = "auto",
        tune: str = "auto",
        steps: int | None = None,
        batch: int | None = None,
        lr: float | None = None,
        metric: str = "accuracy",
        seed: int = 0,
        device: str = "auto",
        cache: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method, self.encoder, self.tune = method, encoder, tune
        self.steps, self.batch, self.lr, self.metric = steps, batch, lr, metric
        self.seed, self.device, self.cache, self.settings = seed, device, cache, settings

    def fit(self, X: Any, y: Sequence[Any], *, domains: Sequence[Any]) -> Self:
        """Train on raw examples: texts, (text, text) pairs, vectors (n, d), uint8 images, or image paths."""
        raw = as_raw(X)
        if not len(raw) == len(y) == len(domains):
            raise BadInput(f"{len(raw)} examples, {len(y)} labels and {len(domains)} domains: give one of each")
        codes, classes = encode(y)
        where, names = encode(domains)
        return self.fit_dataset(Dataset("data", raw, codes, classes, where, names))

    def fit_dataset(self, dataset: Dataset, *, checkpoints: Path | None = None, watch: Watch | None = None) -> Self:
        """Train on a data set; with a folder for checkpoints a stopped training goes on where it was."""
        dataset, device, watch = dataset.checked(), choose_device(self.device), watch or Watch()
        spec = make_spec(
            dataset, encoder=self.encoder, tune=self.tune, settings=self.settings, device=device,
            method=self.method, plan="all", metric=self.metric, seed=self.seed,
            steps=self.steps, batch=self.batch, lr=self.lr,
        )  # fmt: skip
        cache = cache_folder() if self.cache else None
        workshop = Workshop(dataset, device=device, cache=cache, watch=watch.encoding)
        (episode,) = episodes(spec, workshop)
        saver = Saver(None if checkpoints is None else checkpoints / f"{spec.method}-{spec.seed}.safetensors")
        watch.start(1, 0)
        watch.begin(f"{spec.method} on {len(dataset.domains)} domains", spec.steps)
        with stop_at_signal():
            self.record_, self._built = train(spec, episode, workshop, saver=saver, tick=watch.step)
        watch.end()
        saver.finish()
        self.classes_ = np.asarray(dataset.classes)
        self._saved = SavedModel(self._built.deploy(), self._built.encoder, dataset.classes, {})
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, c) probabilities in the order of `classes_`."""
        return self._model().probabilities(as_raw(X), device=choose_device(self.device))

    def predict(self, X: Any) -> np.ndarray:
        """(n,) the most probable label of each example."""
        chosen = self.predict_proba(X).argmax(axis=1)
        return self.classes_[chosen]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy."""
        right = self.predict(X) == np.asarray([str(v) for v in y], dtype=object)
        return float(np.average(right, weights=sample_weight))

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write a model folder that `from_pretrained` and `holdfast predict` read."""
        self._model()
        save_model(Path(folder), self._built, self.record_, tuple(self.classes_.tolist()))
        return Path(folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """A classifier that predicts, from a model folder."""
        saved = load_model(Path(folder))
        spec = saved.config["spec"]
        made = cls(spec["method"], encoder=spec["encoder"], tune=spec["tune"], seed=spec["seed"], device=device)
        made.classes_, made._saved = np.asarray(saved.classes), saved
        return made

    def _model(self) -> SavedModel:
        if "_saved" not in self.__dict__:
            raise BadInput("this classifier is not fitted yet: call fit first")
        return self._saved


def as_raw(X: Any) -> Raw:
    """Raw examples of whatever the user brings."""
    if isinstance(X, Raw):
        return X
    if isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.ndim == 4:
        return Pixels(X)
    if len(X) and isinstance(X[0], Path):
        return Pictures(list(X))
    if len(X) and isinstance(X[0], str | tuple | list) and isinstance(X[0][0] if X[0] else "", str):
        return Texts.of(list(X))
    array = np.asarray(X, dtype=np.float32)
    if array.ndim != 2:
        raise BadInput(f"vectors are given as (examples, features), not as an array of shape {array.shape}")
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise BadInput(f"row {row + 1}, feature {column + 1} is NaN or infinite: fill it or drop the row")
    return Vectors(array)
