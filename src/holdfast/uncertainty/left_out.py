"""Outputs of leave-one-domain-out runs, stored in the model folder: labelled examples of unseen domains.

A model of all domains cannot show how it works on a domain it has never seen. The runs of its configuration that left
out one domain can: `leftout.safetensors` has their outputs for the left-out domain, and for the validation rows of the
other domains, with the true targets. Prediction sets and estimates for unlabelled data are calibrated on them.

Shapes: n examples, k outputs (one per class; or the predicted number, and the ends of its interval), w width, d axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from holdfast.core.seeds import derive
from holdfast.data.dataset import Dataset
from holdfast.defaults import default_plan
from holdfast.engines.work import run_all
from holdfast.record import RunRecord
from holdfast.spec import Spec
from holdfast.train.assemble import Assembly
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Request, resolve
from holdfast.train.workspace import Workspace
from holdfast.uncertainty.arrays import StoredArrays
from holdfast.uncertainty.calibration import observe_rows
from holdfast.uncertainty.mixture import calibrated
from holdfast.uncertainty.stored_runs import read_run

FILE = "leftout.safetensors"
ROWS = 4000  # stored rows of left-out domains, and stored validation rows, at most
AXES = 16  # principal axes of the features of the saved model
MAX_AXES = 1 << 23  # numbers of all axes; wider features are not stored

Features = Callable[[np.ndarray], np.ndarray]  # rows of the data set -> (n, w) features of the saved model


@dataclass(frozen=True, eq=False)
class Projection:
    """Principal axes of features: coordinates are (features - centre) @ axes."""

    centre: np.ndarray  # (w,)
    axes: np.ndarray  # (w, d)

    @staticmethod
    def fit(features: np.ndarray, *, seed: int = 0) -> Projection | None:
        """Return the axes of the largest variance, scaled to unit variance; None for features that are too wide."""
        from sklearn.utils.extmath import randomized_svd  # importing it takes a second

        count = min(AXES, *features.shape)
        if not count or features.shape[1] * count > MAX_AXES:
            return None
        centre = features.mean(axis=0, dtype=np.float64)
        centred = features.astype(np.float64) - centre
        _, spread, axes = randomized_svd(centred, count, random_state=derive(seed, "left-out") % (1 << 32))
        used = spread > 1e-6 * max(spread[0], 1e-12)
        scale = spread[used] / np.sqrt(len(features))
        return Projection(centre.astype(np.float32), (axes[used].T / scale).astype(np.float32)) if used.any() else None

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the coordinates (n, d)."""
        return (features.astype(np.float32) - self.centre) @ self.axes


@dataclass(frozen=True, eq=False)
class LeftOut(StoredArrays):
    """Outputs of the runs that left out one domain each, for that domain and for validation rows of the others.

    Outputs are calibrated probabilities (n, c) in the order of the model's classes, or predictions in the units of the
    target (n, 1 or 3). A row belongs to a left-out domain if `domain` equals `target`.
    """

    domains: tuple[str, ...]
    domain: np.ndarray  # (n,) index of the domain of the example
    target: np.ndarray  # (n,) index of the domain that the run left out
    y: np.ndarray  # (n,) class, or number
    outputs: np.ndarray  # (n, k)
    coordinates: np.ndarray | None = None  # (n, d) projected features of the saved model
    projection: Projection | None = None
    inline: ClassVar[str] = "projection"

    def __post_init__(self) -> None:
        count, arrays = len(self.y), (self.domain, self.target, self.outputs, self.coordinates)
        if any(array is not None and len(array) != count for array in arrays) or self.outputs.ndim != 2:
            raise TypeError(f"{FILE} has arrays of different lengths")
        for index in (self.domain, self.target):
            if count and not 0 <= index.min() <= index.max() < len(self.domains):
                raise TypeError(f"{FILE} has an unknown domain")
        if self.y.dtype.kind == "i" and count and not 0 <= self.y.min() <= self.y.max() < self.outputs.shape[1]:
            raise TypeError(f"{FILE} has an unknown class")
        if not np.isfinite(self.outputs).all() or not np.isfinite(self.y).all():
            raise TypeError(f"{FILE} has NaN or inf")
        if (self.coordinates is None) != (self.projection is None):
            raise TypeError(f"{FILE} has features without their axes, or axes without features")

    @property
    def unseen(self) -> LeftOut:
        """The rows of left-out domains."""
        return self.take(self.domain == self.target)

    @property
    def valid(self) -> LeftOut:
        """The validation rows of the other domains."""
        return self.take(self.domain != self.target)

    @property
    def names(self) -> list[str]:
        """Domains that were left out, in order."""
        return [self.domains[i] for i in np.unique(self.target)]

    def take(self, rows: np.ndarray) -> LeftOut:
        """Return some rows, as indices or as a mask (n,)."""
        own = {name: getattr(self, name)[rows] for name in ("domain", "target", "y", "outputs")}
        return replace(self, **own, coordinates=None if self.coordinates is None else self.coordinates[rows])

    def without_features(self) -> LeftOut:
        """Return the outputs alone, for a model whose features differ."""
        return replace(self, coordinates=None, projection=None)


def collect(records: Sequence[RunRecord], runs: Mapping[str, RunRecord], workspace: Workspace) -> CollectedRuns | None:
    """Read the stored outputs of the runs of one configuration, one per left-out domain; None if some are missing.

    `runs` are all runs by id: a combination has the rows of its members. Of several seeds, the first one is used.
    """
    pieces = [_read(record, runs, workspace) for record in first_per_episode(records)]
    known = [piece for piece in pieces if piece is not None]
    if len(known) < len(pieces) or len({name for targets, _ in known for name in targets}) < 2:
        return None
    return CollectedRuns(workspace, known)


def first_per_episode(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the first of several seeds per episode."""
    chosen: dict[str, RunRecord] = {}
    for record in records:
        chosen.setdefault(record.episode, record)
    return list(chosen.values())


def train_left_out(spec: Spec, workspace: Workspace, *, watch: ProgressListener | None = None) -> CollectedRuns | None:
    """Train a configuration with each domain left out in turn, in `workspace.out`; finished runs are not repeated."""
    runs = replace(workspace, keep_outputs=True, analyse=(), weight_limits={})
    plan = default_plan(len(workspace.dataset.domains))
    jobs = resolve(Request(specs=(replace(spec, plan=plan, plan_args={}, select=Spec.select),)), runs)
    records = run_all(jobs, runs, watch=watch)
    return collect(records, {}, runs)


Pairs = dict[str, tuple[np.ndarray, np.ndarray]]  # domain -> rows, outputs
Outputs = tuple[Pairs, Pairs]  # of one run: of its left-out domains, and of the validation rows of the others


@dataclass(frozen=True, eq=False)
class CollectedRuns:
    """Outputs of all runs of one configuration, of which a model stores a sample."""

    workspace: Workspace
    runs: Sequence[Outputs]

    def left_out(self, dataset: Dataset, assembly: Assembly) -> LeftOut:
        """Return the outputs with the features of the model that was trained on all domains of a data set."""
        if dataset is not self.workspace.dataset or assembly.method is None:  # its rows have other numbers
            return self.sample(None)
        return self.sample(lambda rows: observe_rows(assembly, rows).features)

    def sample(self, features: Features | None) -> LeftOut:
        """Sample rows, balanced over domains, and project their features."""
        names, rng = self.workspace.dataset.domains, np.random.default_rng(derive(0, "left-out"))
        pairs = [(target, *run) for run in self.runs for target in run[0]]
        pieces = []
        for target, targets, valid in pairs:
            sources = {name: rows for name, rows in valid.items() if name != target}
            for name, (rows, outputs) in {target: targets[target], **sources}.items():
                share = -(-ROWS // (len(pairs) * (1 if name == target else len(sources))))
                at = np.sort(rng.permutation(len(rows))[:share])
                codes = (np.full(len(at), names.index(each)) for each in (name, target))
                pieces.append((rows[at], *codes, outputs[at]))
        rows, domain, target, outputs = map(np.concatenate, zip(*pieces, strict=True))
        dataset = self.workspace.dataset
        y = dataset.y[rows].astype(np.int64) if dataset.targets is None else dataset.targets[rows].astype(np.float64)
        known = np.isfinite(y) if y.dtype.kind == "f" else y >= 0
        left_out, rows = LeftOut(names, domain, target, y, outputs.astype(np.float32)).take(known), rows[known]
        if features is None:
            return left_out
        unique, index = np.unique(rows, return_inverse=True)
        values = features(unique)
        projection = Projection.fit(values)
        if projection is None:
            return left_out
        return replace(left_out, coordinates=projection(values)[index], projection=projection)


def _read(record: RunRecord, runs: Mapping[str, RunRecord], workspace: Workspace) -> Outputs | None:
    """Read the outputs of one run; None if they were not stored, and for sets of labels, which are not calibrated."""
    if record.spec.get("task") == "multilabel":
        return None
    members, dataset = record.stages[-1].get("members", []), workspace.dataset
    stored = read_run(record, workspace, like=runs[members[0]["id"]] if members else None)
    if stored is None:
        return None
    outputs = {split: {d: v.astype(np.float64) for d, v in own.items()} for split, own in stored.outputs.items()}
    if stored.scale is not None:
        mean, scale = stored.scale
        outputs = {split: {name: mean + scale * v for name, v in each.items()} for split, each in outputs.items()}
    elif members:
        outputs = {split: {name: np.exp(v) for name, v in each.items()} for split, each in outputs.items()}
    else:
        predicted = calibrated(outputs, stored.y["valid"])
        outputs = {"valid": predicted.valid, "test": predicted.test}
    pairs = {
        split: {name: (rows, outputs[split][name]) for name, rows in own.items()} for split, own in stored.rows.items()
    }
    trained = {part.domain for part in stored.episode.stages[-1].train}
    test = {name: pair for name, pair in pairs["test"].items() if name not in trained}
    return _by_domain(test, dataset), pairs["valid"]


def _by_domain(scored: Pairs, dataset: Dataset) -> Pairs:
    """Return rows and outputs per domain, also of small domains that are scored together."""
    pairs = {name: pair for name, pair in scored.items() if name in dataset.domains}
    for rows, outputs in (pair for name, pair in scored.items() if name not in pairs):
        codes = dataset.domain[rows]
        pairs |= {dataset.domains[code]: (rows[codes == code], outputs[codes == code]) for code in np.unique(codes)}
    return pairs
