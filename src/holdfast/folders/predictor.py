"""Predictions of a saved model: one network, or the weighted average of several (n examples, c classes)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.align import align_features, model_columns
from holdfast.data.batches import Examples, prepare
from holdfast.data.dataset import Dataset
from holdfast.data.load import load_data
from holdfast.data.raw import Raw, Subset
from holdfast.data.readers.forms import Form
from holdfast.data.readers.in_memory import Source
from holdfast.folders.shared import together
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.experts.graft import describe_experts
from holdfast.nn.model import Model
from holdfast.record import RunRecord
from holdfast.tasks.base import GenerativeTask, Structured, Task
from holdfast.uncertainty.arrays import Predicted
from holdfast.uncertainty.calibration import (
    Calibration,
    Observations,
    network_predictions,
    observations,
    observer,
    output_count,
)

WINDOW = 4096  # rows prepared and predicted at a time; the results do not depend on it
P = TypeVar("P", bound="Predictor")


class Member(NamedTuple, Generic[P]):
    """A model whose predictions are averaged with this weight."""

    weight: float
    saved: P


@dataclass(frozen=True)
class Predictor:
    """A trained network with its preprocessing and class names, and everything that computes with it.

    With further `members`, probabilities, numbers, intervals and thresholds are the weighted average of this network
    and the members.
    """

    model: Model
    encoder: Backbone
    classes: tuple[str, ...]
    record: RunRecord
    calibration: Calibration | None = None  # temperature and foreign score
    members: tuple[Member[Self], ...] = ()  # further models, with weights that sum to less than 1
    columns: tuple[str, ...] | None = None  # names of the features of a table
    forms: Mapping[str, Form] = field(default_factory=dict)  # how the training data writes numbers and dates

    @property
    def all_members(self) -> tuple[Member[Self], ...]:
        """This network and the further members."""
        return (Member(1.0 - sum(member.weight for member in self.members), self), *self.members)

    @property
    def task(self) -> str:
        return self.record.spec["task"]

    def build_task(self) -> Task:
        """Return the task with the settings of the model."""
        return catalog.build("tasks", self.task, options=self.record.spec.get("task_args", {}))

    @property
    def predicts(self) -> str:
        """Kind of prediction per example: `classes`, `numbers` or `labels`; empty for other tasks."""
        return self.build_task().predicts

    @property
    def domains(self) -> tuple[str, ...]:
        """Training domains in order."""
        return tuple(dict.fromkeys(name for stage in self.record.stages for name in stage["train"]))

    @property
    def components(self) -> dict[str, Any]:
        """Neck and expert layers, for exported and served models."""
        names = {"neck": self.record.spec["neck"], "experts": describe_experts(self.model.backbone)}
        if self.members:
            settings = ("method", "encoder", "neck")
            names["members"] = [
                {"weight": weight, **{name: str(saved.record.spec[name]) for name in settings}}
                for weight, saved in self.all_members
            ]
        return names

    def read_columns(self, columns: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the roles to read new data with: those of the user and the model's columns."""
        return model_columns(columns, self.encoder.schema, self.columns, self.forms, size=self.encoder.size)

    def read(self, data: Source, *, columns: Mapping[str, Any] | None = None, **options: Any) -> Dataset:
        """Read new data with the model's columns; `options` are those of `load_data`."""
        return self.align(load_data(data, columns=self.read_columns(columns), **options))

    def align(self, dataset: Dataset) -> Dataset:
        """Return new data with the model's columns, in their order."""
        return align_features(dataset, self.columns, self.encoder.schema)

    @cached_property
    def prediction_batch(self) -> tuple[int, int] | None:
        """Batch size and shuffle seed of predictions, as in the network, which is searched for it once."""
        return self.model.prediction_batch

    @property
    def depends_on_batch(self) -> bool:
        """Whether other examples of a request may change a prediction."""
        return any(saved.prediction_batch is not None for _, saved in self.all_members)

    def probabilities(self, raw: Raw, *, device: torch.device | str = "cpu") -> np.ndarray:
        """Return the probability of each class, (n, c)."""
        if self.predicts != "classes":
            raise BadInput(f"a model of the task {self.task} has no class probabilities: use a classifier")
        return self.predict(raw, device=device).values

    def predict(self, raw: Raw, *, device: torch.device | str = "cpu", calibrated: bool = True) -> Predicted:
        """Return the predictions of the average of all networks; the ends of intervals are averaged, too."""
        observed, kind, members = self._observe_members(raw, device), self.predicts, self.all_members
        # probabilities or units per network before the average: outputs (n, c) of two networks differ in scale
        alone = [
            network_predictions(each.outputs, kind, saved.calibration, saved.model.scale, calibrated=calibrated)
            for (_, saved), each in zip(members, observed, strict=True)
        ]
        known = min(values.shape[1] for values in alone)  # 1 if the numbers of a member have no interval
        pairs = zip(members, alone, strict=True)
        mixed, ends = np.asarray(sum(weight * values[:, :known] for (weight, _), values in pairs)), None
        if kind == "numbers":
            mixed, ends = mixed[:, :1], mixed[:, 1:] if known > 1 else None
        (outputs, features, entropy), foreign, undecided = observed[0], None, None
        if self.calibration is not None:
            foreign = self.calibration.foreign.percentiles(features) if len(raw) else np.zeros(0)
            undecided = self.calibration.undecided(entropy)
        return Predicted(mixed, alone[0][:, : mixed.shape[1]], outputs, foreign, undecided, features, ends)

    def _observe_members(self, raw: Raw, device: torch.device | str) -> list[Observations]:
        """Observe every network, in the order of `all_members`; a shared encoder is evaluated once."""
        groups: dict[Any, list[Self]] = {}  # of members that share their encoder
        for _, saved in self.all_members:
            saved._move(device)
            # members are evaluated together only if the same backbone computes the same values for them
            key = (id(saved.model.backbone), saved.prediction_batch, saved.model.precision)
            groups.setdefault(key, []).append(saved)
        observed: dict[int, Observations] = {}
        for first, *others in groups.values():
            if not others:
                observed[id(first)] = first.observe(raw, device=device)
                continue
            group = [first, *others]
            values = first._map(raw, together([partial(observer, saved.model) for saved in group], first.model), device)
            counts = [output_count(saved.model) for saved in group]
            # columns of all members in order: outputs (n, c), and features and entropy, of equal width for all
            rest = (values.shape[1] - sum(counts)) // len(group)
            pieces = values.split([count + rest for count in counts] if len(values) else [0] * len(group), dim=1)
            observed |= {id(saved): saved._observed(own) for saved, own in zip(group, pieces, strict=True)}
        return [observed[id(saved)] for _, saved in self.all_members]

    def observe(self, raw: Raw, *, device: torch.device | str = "cpu") -> Observations:
        """Return outputs, encoder features and read entropies of this network alone."""
        captured = torch.device(device).type == "cuda" and self.prediction_batch is None and self.model.recall is None
        return self._observed(self._map(raw, self._captured if captured else observer(self.model), device))

    @cached_property
    def _captured(self) -> Any:
        """Function of `observe` that replays CUDA graphs for small batches, as a server has them."""
        from holdfast.accel.captured_prediction import CapturedPrediction

        return CapturedPrediction(observer(self.model), self.model)

    def _observed(self, values: Tensor) -> Observations:
        """Interpret the values of the `observer` for all examples; raise if the network returned NaN or inf."""
        if not len(values):
            return Observations(np.zeros((0, output_count(self.model))), np.zeros((0, self.encoder.width)), None)
        observed = observations(values, self.model)
        wrong = np.flatnonzero(~np.isfinite(np.hstack([observed.outputs, observed.features])).all(axis=1))
        if len(wrong):
            fix = "check for extreme values or remove the example"
            raise BadInput(f"example {wrong[0] + 1} of {len(values)} gives NaN or inf in the network: {fix}")
        return observed

    def features_and_outputs(self, raw: Raw, *, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return the input (n, d) of the head and the outputs (n, c) of the network alone."""
        model = self.model

        def both(x: Any) -> Tensor:
            z = model.features(x)
            return torch.cat([z.float(), model.head(z).float()], dim=-1)

        values = self._map(raw, both, device)
        return values[:, : model.width], values[:, model.width :]

    def predict_columns(self, raw: Raw, *, device: torch.device | str = "cpu") -> dict[str, list[Any]]:
        """Return predictions of tasks other than classification by column, such as tokens and tags, or responses."""
        task = self.build_task()
        if isinstance(task, GenerativeTask):
            words = self._map(raw, partial(task.generate, self.encoder), device)
            return task.text_columns(self.encoder, words if len(words) else None)
        if not isinstance(task, Structured):
            raise BadInput(f"a model of the task {self.task} predicts {self.predicts} and no columns: use predict")
        prepared = task.prepare_inference(self.encoder, raw, self.classes)
        examples = Examples(prepared.store, prepared.y, (), device=device, starts=prepared.starts)
        self._move(device)
        predictions: list[Any] = [None] * len(prepared.store)
        with torch.no_grad():
            rows = np.arange(len(prepared.store))
            for batch_rows, x, _ in examples.iter_batches(rows, prediction_batch=self.prediction_batch):
                outputs = prepared.task.compress(self.model(x))
                for row, output in zip(batch_rows.tolist(), outputs.cpu(), strict=True):
                    predictions[row] = output
        return prepared.task.prediction_columns(raw, predictions, prepared.y)

    def _map(self, raw: Raw, function: Callable[[Any], Tensor], device: torch.device | str) -> Tensor:
        """Apply a function of the network to raw examples; the result for no examples has no columns."""
        if raw.kind != self.encoder.takes:
            raise BadInput(f"the model expects {self.encoder.takes}s but the data contains {raw.kind}s")
        self._move(device)
        outputs = []
        for start in range(0, len(raw), WINDOW):
            rows = np.arange(start, min(start + WINDOW, len(raw)))
            window = raw if len(rows) == len(raw) else Subset(raw, rows)
            store = prepare(window, self.encoder.prepare, size=self.encoder.size)
            examples = Examples(store, torch.zeros(len(window), dtype=torch.long), (), device=device)
            outputs.append(examples.map(function, np.arange(len(window)), prediction_batch=self.prediction_batch))
        return torch.cat(outputs) if outputs else torch.zeros(0, 0)

    def _move(self, device: torch.device | str) -> None:
        parameter, target = next(self.model.parameters(), None), torch.device(device)
        if self.model.training or parameter is None or parameter.device.type != target.type or target.index is not None:
            self.model.to(device).eval()  # skipped if possible, since a server predicts many small batches
        self.model.precision = self.record.spec["precision"] if target.type == "cuda" else "fp32"  # no bf16 on a CPU
