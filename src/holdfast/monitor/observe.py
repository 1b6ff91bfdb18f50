"""Observations of new examples that drift tests need: outputs, projected features and statistics of the inputs.

Shapes: n examples, k outputs, c classes, d axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.input_statistics import input_statistics
from holdfast.data.raw import Raw
from holdfast.folders.format import SavedModel
from holdfast.prediction.predict import class_indices, target_numbers
from holdfast.uncertainty.arrays import Predicted
from holdfast.uncertainty.reference import ROWS, Reference, reference_of

FOREIGN_ROWS = "foreign rows"
FIT_AGAIN = "fit the model again, or pass examples of its training domains with --reference FILE"


@dataclass(frozen=True, eq=False)
class Observed:
    """Examples as a monitor sees them; fields that a model or an input does not have are None."""

    outputs: np.ndarray  # (n, k) of the first network: probabilities, or numbers
    answers: np.ndarray  # (n, k) of the complete model
    foreign: np.ndarray | None = None  # (n,) percentiles
    coordinates: np.ndarray | None = None  # (n, d)
    lengths: np.ndarray | None = None
    unknown: np.ndarray | None = None  # (n,) share of unknown words
    numbers: np.ndarray | None = None  # (n, p)
    codes: np.ndarray | None = None  # (n, q)

    def __len__(self) -> int:
        return len(self.outputs)

    def take(self, rows: np.ndarray) -> Observed:
        """Return some of the examples."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: None if v is None else v[rows] for name, v in values.items()})

    @staticmethod
    def cat(chunks: Sequence[Observed]) -> Observed:
        """Concatenate observations of one model."""
        first, joined = chunks[0], {}
        for name in (each.name for each in fields(Observed)):
            values = [getattr(chunk, name) for chunk in chunks]
            joined[name] = None if getattr(first, name) is None else np.concatenate(values)
        return Observed(**joined)


Values = Callable[[Observed | Reference], np.ndarray | None]


def values_of(predicts: str) -> dict[str, Values]:
    """Return the numbers (n,) per example that tests compare, by name: both of a batch and of a reference."""
    own: dict[str, Values] = {"predictions": lambda each: each.outputs.sum(axis=1)}
    if predicts == "classes":
        own = {"confidence": lambda each: each.outputs.max(axis=1)}
    return {
        **own,
        FOREIGN_ROWS: lambda each: each.foreign,
        "length": lambda each: each.lengths,
        "new vocabulary": lambda each: each.unknown,
    }


def check_watchable(saved: SavedModel) -> Reference:
    """Return the reference of a model; raise if the model cannot be monitored."""
    if not saved.predicts:
        raise BadInput(f"watch does not support models of the task {saved.task}: use a classifier or a regression")
    if saved.reference is None:
        raise BadInput(f"this model folder has no reference to compare new examples with: {FIT_AGAIN}")
    return saved.reference


def observe(saved: SavedModel, raw: Raw, reference: Reference, *, device: torch.device | str = "cpu") -> Observed:
    """Predict examples and compute their statistics."""
    return observed_of(saved, raw, saved.predict(raw, device=device), reference)


def observed_of(saved: SavedModel, raw: Raw, predicted: Predicted, reference: Reference) -> Observed:
    """Compute the statistics of examples that were predicted."""
    inputs = input_statistics(raw, np.arange(len(raw)), schema=saved.encoder.schema, names=saved.columns)
    outputs, coordinates = predicted.first.astype(np.float32), None
    answers = predicted.values.astype(np.float32) if saved.members else outputs
    if reference.projection is not None:
        coordinates = reference.projection(predicted.features)
    unknown = inputs.unknown_words(reference.vocabulary)
    about = {"lengths": inputs.lengths, "unknown": unknown, "numbers": inputs.numbers, "codes": inputs.codes}
    return Observed(outputs, answers, predicted.foreign, coordinates, **about)


def build_reference(saved: SavedModel, dataset: Dataset, *, device: torch.device | str, seed: int = 0) -> Reference:
    """Return a reference of user-supplied examples, half of which determine the axes and the vocabulary."""
    if len(dataset) < 40:
        raise BadInput(f"{dataset.name} has {len(dataset)} examples: a reference needs at least 40")
    order = np.random.default_rng(seed).permutation(len(dataset))
    seen, rows = order[: len(order) // 2], order[len(order) // 2 :][:ROWS]
    return reference_of(
        dataset, seen, rows, targets_of(saved, dataset)[rows],
        lambda chosen: saved.observe(dataset.subset(chosen).raw, device=device),
        saved.predicts, saved.calibration, saved.model.scale,
        schema=saved.encoder.schema, columns=saved.columns, seed=seed,
    )  # fmt: skip


def targets_of(saved: SavedModel, dataset: Dataset) -> np.ndarray:
    """Return the classes (n,) of labelled examples as indices into those of the model; -1 without a known class.

    For a regression these are numbers, and nan without a label.
    """
    return target_numbers(dataset) if saved.predicts == "numbers" else class_indices(saved, dataset)
