"""DomainClassifier: the library as one object with fit, predict, predict_proba, score and save.

n examples, c classes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin

from holdfast.assembly import Workshop
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.core.inputs import Graphs
from holdfast.data.domain import Dataset, encode
from holdfast.data.raw import GraphList, Pictures, Pixels, Raw, Texts, Vectors
from holdfast.engines.watch import Watch
from holdfast.experiment import episodes, needs_of, train, training_steps
from holdfast.protocols.resume import Saver, stop_at_signal
from holdfast.record import run_id
from holdfast.saved import SavedModel, load_model
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
        metric: str | None = None,
        seed: int = 0,
        device: str = "auto",
        cache: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method, self.encoder, self.tune = method, encoder, tune
        self.steps, self.batch, self.lr, self.metric = steps, batch, lr, metric
        self.seed, self.device, self.cache, self.settings = seed, device, cache, settings

    def fit(self, X: Any, y: Sequence[Any], *, domains: Sequence[Any]) -> Self:
        """Train on raw examples: texts, (text, text) pairs, vectors (n, d), uint8 images, image paths, or Graphs."""
        raw, y, domains = as_raw(X), list(y), list(domains)
        if not len(raw) == len(y) == len(domains):
            raise BadInput(f"{len(raw)} examples, {len(y)} labels and {len(domains)} domains: give one of each")
        for what, values in (("label", y), ("domain", domains)):
            blank = [i for i, value in enumerate(values) if value is None or value != value]
            if blank:
                raise BadInput(f"the {what} of example {blank[0] + 1} is missing: fill it in or drop the example")
        codes, classes = encode(y)
        where, names = encode(domains)
        self.fit_dataset(Dataset("data", raw, codes, classes, where, names))
        found = {str(value): value for value in y}
        self.classes_ = np.asarray([found[name] for name in classes])  # labels come back as they were given
        return self

    def fit_dataset(self, dataset: Dataset, *, folder: Path | None = None, watch: Watch | None = None) -> Self:
        """Train on a data set; with a folder the model is saved there, and a stopped training goes on where it was."""
        device, watch = choose_device(self.device), watch or Watch()
        spec = make_spec(
            dataset, encoder=self.encoder, tune=self.tune, settings=self.settings, device=device,
            method=self.method, plan="all", metric=self.metric, seed=self.seed,
            steps=self.steps, batch=self.batch, lr=self.lr,
        )  # fmt: skip
        dataset.checked(labels="label" in needs_of(spec))
        if spec.plan != "all":
            raise BadInput(
                f"fit trains on all domains, so its plan is 'all', not '{spec.plan}': see compare for others"
            )
        cache = cache_folder() if self.cache else None
        workshop = Workshop(dataset, device=device, cache=cache, watch=watch.encoding)
        (episode,) = episodes(spec, workshop)
        name = f"{run_id(spec.json(), episode.name)}.safetensors"
        saver = Saver(None if folder is None else folder / "checkpoints" / name)
        watch.start(1, 0)
        watch.begin(f"{spec.method} on {len(dataset.domains)} domains", training_steps(spec))
        with stop_at_signal():
            self.record_, built = train(spec, episode, workshop, saver=saver, tick=watch.step)
        watch.end()
        self.classes_ = np.asarray(dataset.classes)
        self._saved = SavedModel(built.deploy(), built.encoder, dataset.classes, self.record_)
        if folder is not None:
            self.save_pretrained(folder)
        saver.finish()
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
        right = [str(a) == str(b) for a, b in zip(self.predict(X), y, strict=True)]
        return float(np.average(right, weights=sample_weight))

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write a model folder that `from_pretrained` and `holdfast predict` read; labels there are texts."""
        return self._model().save(Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """A classifier that predicts, from a model folder."""
        saved = load_model(Path(folder))
        spec = saved.record.spec
        made = cls(spec["method"], encoder=spec["encoder"], tune=spec["tune"], seed=spec["seed"], device=device)
        made.classes_, made._saved, made.record_ = np.asarray(saved.classes), saved, saved.record
        return made

    def _model(self) -> SavedModel:
        if "_saved" not in self.__dict__:
            raise BadInput("this classifier is not fitted yet: call fit first")
        return self._saved


def as_raw(X: Any) -> Raw:
    """Raw examples of whatever the user brings: lists, arrays, a pandas Series or DataFrame."""
    if isinstance(X, Raw):
        return X
    if isinstance(X, pd.Series):
        X = X.tolist()
    if isinstance(X, pd.DataFrame):
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.ndim == 4:
        return Pixels(X)
    if isinstance(X, np.ndarray) and X.dtype.kind in "OUS":
        X = X.tolist()
    if len(X) and isinstance(X[0], Path):
        return Pictures(list(X))
    if len(X) and isinstance(X[0], Graphs):
        if not all(isinstance(graph, Graphs) and graph.count == 1 for graph in X):
            raise BadInput("examples are graphs, so each must be a Graphs of one graph")
        return GraphList(list(X))
    if len(X) and _is_text(X[0]):
        wrong = [i for i, example in enumerate(X) if not _is_text(example)]
        if wrong:
            raise BadInput(f"example {wrong[0] + 1} is no text but {X[wrong[0]]!r}: fill it in or drop it")
        return Texts.of(list(X))
    try:
        array = np.asarray(X, dtype=np.float32)
    except (TypeError, ValueError) as error:
        known = "texts, pairs, numbers, images, paths or graphs"
        raise BadInput(f"examples are {known}, all of one kind: {error}") from error
    if array.ndim != 2:
        raise BadInput(f"vectors are given as (examples, features), not as an array of shape {array.shape}")
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise BadInput(f"row {row + 1}, feature {column + 1} is NaN or infinite: fill it or drop the row")
    return Vectors(array)


def _is_text(example: Any) -> bool:
    pair = isinstance(example, tuple | list) and len(example) == 2 and all(isinstance(part, str) for part in example)
    return isinstance(example, str) or pair
