"""Predictions of a saved model: one network, or the weighted average of several (n examples, c classes)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.batches import Examples, prepare
from holdfast.data.raw import Raw, Subset
from holdfast.folders.shared import together
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.model import Model
from holdfast.record import RunRecord
from holdfast.tasks.base import ColumnTask, GenerativeTask, InferenceTask, Structured, Task
from holdfast.uncertainty.arrays import OTHER_KIND, Outputs, Predicted
from holdfast.uncertainty.calibration import (
    Calibration,
    Observations,
    check_finite,
    network_predictions,
    observations,
    observer,
    output_count,
)

if TYPE_CHECKING:
    from holdfast.folders.format import Member

WINDOW = 4096  # rows prepared and predicted at a time; the results do not depend on it


class Predictor:
    """Base of `SavedModel`: everything that computes with its networks."""

    if TYPE_CHECKING:  # fields of `SavedModel`
        model: Model
        encoder: Backbone
        classes: tuple[str, ...]
        record: RunRecord
        calibration: Calibration | None

        @property
        def all_members(self) -> tuple[Member, ...]: ...

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

    @cached_property
    def prediction_batch(self) -> tuple[int, int] | None:
        """Batch size and shuffle seed of predictions, as in the network, which is searched for it once."""
        return self.model.prediction_batch

    def probabilities(self, raw: Raw, *, device: torch.device | str = "cpu", calibrated: bool = True) -> np.ndarray:
        """Return the probability of each class, (n, c)."""
        return self.predict(raw, device=device, calibrated=calibrated).probabilities

    def predict(
        self, raw: Raw, *, device: torch.device | str = "cpu", calibrated: bool = True, kind: str = "classes"
    ) -> Predicted:
        """Return the predictions of the average of all networks, which must be of this kind."""
        if self.predicts != kind:
            raise BadInput(f"a model of the task {self.task} {OTHER_KIND[kind]}")
        outputs = self.member_outputs(raw, device=device)
        # probabilities or units per network before the average: outputs (n, c) of two networks differ in scale
        alone = [
            network_predictions(each.values, kind, saved.calibration, saved.model.scale, calibrated=calibrated)
            for (_, saved), each in zip(self.all_members, outputs, strict=True)
        ]
        known = min(values.shape[1] for values in alone)  # 1 if the numbers of a member have no interval
        pairs = zip(self.all_members, alone, strict=True)
        mixed, ends = np.asarray(sum(weight * values[:, :known] for (weight, _), values in pairs)), None
        if kind == "numbers":
            mixed, ends = mixed[:, :1], mixed[:, 1:] if known > 1 else None
        return Predicted(mixed, alone[0][:, : mixed.shape[1]], *outputs[0], ends=ends)

    def member_outputs(self, raw: Raw, *, device: torch.device | str = "cpu") -> list[Outputs]:
        """Return the outputs of every network, in the order of `all_members`; a shared encoder is evaluated once."""
        groups: dict[Any, list[Predictor]] = {}  # of members that share their encoder
        for _, saved in self.all_members:
            saved._move(device)
            # members are evaluated together only if the same backbone computes the same values for them
            key = (id(saved.model.backbone), saved.prediction_batch, saved.model.precision)
            groups.setdefault(key, []).append(saved)
        outputs: dict[int, Outputs] = {}
        for group in groups.values():
            outputs |= {id(s): each for s, each in zip(group, _outputs_together(group, raw, device), strict=True)}
        return [outputs[id(saved)] for _, saved in self.all_members]

    def outputs(self, raw: Raw, *, device: torch.device | str = "cpu") -> Outputs:
        """Return the outputs of this network alone, and the percentiles of its calibration."""
        captured = torch.device(device).type == "cuda" and self.prediction_batch is None and self.model.recall is None
        function = self._captured if captured else self._observe(self.model.encode)
        return self._outputs(self._map(raw, function, device))

    @cached_property
    def _captured(self) -> Callable[[Any], Tensor]:
        """Function of `outputs` that replays CUDA graphs for small batches, as a server has them."""
        from holdfast.accel.captured_prediction import CapturedPrediction

        return CapturedPrediction(self._observe(self.model.encode), self.model)

    def _observe(self, encode: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
        """Return the function whose values `_outputs` interprets, with the features of `encode`."""
        model = self.model
        if self.calibration is None:
            return lambda x: model.classify(model.apply_neck(encode(x))).float()
        return observer(model, encode)

    def _outputs(self, values: Tensor | None) -> Outputs:
        """Interpret the values of `_observe` for all examples; None if there are none."""
        if values is None:
            return Outputs(
                np.zeros((0, output_count(self.model))), np.zeros(0) if self.calibration is not None else None, None
            )
        if self.calibration is None:
            check_finite(values.numpy())
            return Outputs(values.numpy(), None, None)
        observed = observations(values, self.model)
        check_finite(np.concatenate([observed.outputs, observed.features], axis=1))
        foreign = self.calibration.foreign.percentiles(observed.features)
        return Outputs(observed.outputs, foreign, self.calibration.undecided(observed.entropy), observed.features)

    def features_and_outputs(self, raw: Raw, *, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return the input (n, d) of the head and the outputs (n, c) of the network alone."""
        model = self.model

        def both(x: Any) -> Tensor:
            z = model.features(x)
            return torch.cat([z.float(), model.head(z).float()], dim=-1)

        values = self._map(raw, both, device)
        assert values is not None
        return values[:, : model.width], values[:, model.width :]

    def observe(self, raw: Raw, *, device: torch.device | str = "cpu") -> Observations:
        """Return outputs, encoder features and read entropies of this network."""
        values = self._map(raw, observer(self.model), device)
        assert values is not None
        return observations(values, self.model)

    def predict_columns(self, raw: Raw, *, device: torch.device | str = "cpu") -> dict[str, list[Any]]:
        """Return predictions of tasks other than classification by column, such as tokens and tags, or responses."""
        task = self.build_task()
        if isinstance(task, GenerativeTask):
            return task.text_columns(self.encoder, self._map(raw, partial(task.generate, self.encoder), device))
        if not isinstance(task, Structured) or not isinstance(task, ColumnTask):
            raise BadInput(f"a model of the task {self.task} predicts {self.predicts} and no columns: use predict")
        if isinstance(task, InferenceTask):
            prepared = task.prepare_inference(self.encoder, raw)
        else:
            prepared = task.prepare(self.encoder, raw, self.classes)
        examples = Examples(prepared.store, prepared.y, (), device=device, starts=prepared.starts)
        self._move(device)
        predictions: list[Any] = [None] * len(prepared.store)
        with torch.no_grad():
            rows = np.arange(len(prepared.store))
            for batch_rows, x, _ in examples.iter_batches(rows, prediction_batch=self.prediction_batch):
                outputs, task = self.model(x), prepared.task
                outputs = task.compress(outputs) if isinstance(task, InferenceTask) else outputs.float()
                for row, output in zip(batch_rows.tolist(), outputs.cpu(), strict=True):
                    predictions[row] = output
        assert isinstance(prepared.task, ColumnTask)
        return prepared.task.prediction_columns(raw, predictions, prepared.y)

    def _map(self, raw: Raw, function: Callable[[Any], Tensor], device: torch.device | str) -> Tensor | None:
        """Apply a function of the network to raw examples; None if there are none."""
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
        return torch.cat(outputs) if outputs else None

    def _move(self, device: torch.device | str) -> None:
        parameter, target = next(self.model.parameters(), None), torch.device(device)
        if self.model.training or parameter is None or parameter.device.type != target.type or target.index is not None:
            self.model.to(device).eval()  # skipped if possible, since a server predicts many small batches
        self.model.precision = self.record.spec["precision"] if target.type == "cuda" else "fp32"  # no bf16 on a CPU


def _outputs_together(group: Sequence[Predictor], raw: Raw, device: torch.device | str) -> list[Outputs]:
    """Return the outputs of members with the same encoder, which is evaluated once per batch."""
    first = group[0]
    if len(group) == 1:
        return [first.outputs(raw, device=device)]
    values = first._map(raw, together([saved._observe for saved in group], first.model), device)
    if values is None:
        return [saved._outputs(None) for saved in group]
    with_features = [saved.calibration is not None for saved in group]
    counts = [output_count(saved.model) for saved in group]
    # columns of all members in order: outputs (n, c) and, if calibrated, features and entropy, of equal width for all
    rest = values.shape[1] - sum(counts)
    widths = [count + (each and rest // sum(with_features)) for count, each in zip(counts, with_features, strict=True)]
    return [saved._outputs(each) for saved, each in zip(group, values.split(widths, dim=1), strict=True)]
