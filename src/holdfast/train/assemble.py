"""Build the parts of a run: encoder, examples, task, and a factory for the method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.seeds import seeded
from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples, Transform
from holdfast.data.dataset import Dataset
from holdfast.data.splits import Part
from holdfast.methods.averaging import SWAD, MovingAverage, Soup, WiseFT
from holdfast.methods.base import Method
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.small import Features, ImageBackbone
from holdfast.nn.graft.insert import InsertingNeck
from holdfast.nn.growth import GrowsWords
from holdfast.nn.model import Model
from holdfast.nn.tuning import adapter_rank, merge_adapters, tune
from holdfast.spec import Spec
from holdfast.tasks.base import Structured, Task
from holdfast.tasks.regress import Regress
from holdfast.train.plan import Episode, rows_of
from holdfast.train.workspace import Workspace

FITTED = 256  # rows that the encoder of a constant baseline is fitted to, about: its features are not read
START = 1 / 3  # of the steps, where `average=moving` begins


@dataclass(frozen=True)
class GrowingVocabulary:
    """Prepares the examples again whenever the network in training has learned new words."""

    workspace: Workspace
    encoder: Backbone
    task: Task

    def words(self, domains: Sequence[Part]) -> Sequence[str]:
        assert isinstance(self.encoder, GrowsWords)
        return self.encoder.words_in(self.workspace.dataset.raw.take(rows_of(domains)))

    def examples(self, method: Method) -> Examples:
        backbone = method.model.backbone
        assert isinstance(backbone, Backbone)
        return self.workspace.examples(self.workspace.store(backbone), self.task)


@dataclass(frozen=True)
class Assembly:
    """The parts of one run; `method` is set once it is trained."""

    encoder: Backbone
    examples: Examples
    task: Task
    make: Callable[[], Method]  # builds an untrained method, the same one at every call
    transform: Transform | None
    following: GrowingVocabulary | None = None
    method: Method | None = None
    learning_parameters: int = 0  # of the method in training

    def trained(self, method: Method) -> Assembly:
        """Return the parts with the trained method, and with the examples as its network takes them.

        Adapters of the network that predicts are merged into its weights.
        """
        learning = sum(p.numel() for p in method.parameters() if p.requires_grad)
        merge_adapters(method.deployed)
        if self.following is None:
            return replace(self, method=method, learning_parameters=learning)
        backbone = method.deployed.backbone
        assert isinstance(backbone, Backbone)
        examples = self.following.examples(method)
        return replace(self, method=method, encoder=backbone, examples=examples, learning_parameters=learning)

    @property
    def deployed(self) -> Model:
        """The trained network, from examples as the method takes them to outputs."""
        assert self.method is not None
        return self.method.deployed

    def deploy(self) -> Model:
        """Return the trained network from raw inputs to outputs, including the encoder."""
        model = self.deployed
        if isinstance(model.backbone, Features) and not isinstance(self.encoder, Features):
            complete = Model(self.encoder, model.neck, model.head, precision=model.precision)
            complete.recall, complete.scale = model.recall, model.scale
            return complete
        return model


def assemble(spec: Spec, episode: Episode, workspace: Workspace, *, trained: Model | None = None) -> Assembly:
    """Build the parts of a run; vocabulary and scale come from the training rows of the first stage only.

    If `trained` is given, the method trains a copy of that network.
    """
    dataset, rows = workspace.dataset, rows_of(episode.stages[0].train)
    encoder, task, cached = _encoder_and_task(spec, rows, workspace, trained)
    if isinstance(task, Structured):
        states = workspace.frozen_states(spec, task, encoder) if encodes(spec) and workspace.cache is not None else None
        cached = states is not None
        examples, task = states or workspace.structured_examples(spec, task, encoder)
    elif cached:
        with seeded(spec.seed):  # errors of neck and head come before the examples are encoded
            Model(Features(inputs=encoder.width), *_neck_and_head(spec, dataset, encoder, task, trained))
        features = workspace.frozen_features(encoder) if encodes(spec) else torch.zeros(1, encoder.width)
        examples = workspace.examples(TensorStore(features.expand(len(dataset), -1)), task)
    else:
        examples = workspace.examples(workspace.store(encoder), task)
    make = partial(_method, spec, dataset, rows, encoder, task, trained=trained, cached=cached, device=workspace.device)
    following = GrowingVocabulary(workspace, encoder, task) if isinstance(encoder, GrowsWords) and not cached else None
    return Assembly(encoder, examples, task, make, augmentation(spec, dataset.raw.kind), following)


def encodes(spec: Spec) -> bool:
    """Whether a run reads features of a frozen encoder; the most frequent class does not."""
    return spec.tune == "frozen" and _reads_inputs(spec)


def _reads_inputs(spec: Spec) -> bool:
    return catalog.inner_method(spec.method).reads_inputs


def try_build(spec: Spec, episode: Episode, workspace: Workspace) -> None:
    """Build the network and the method once on the CPU, so that parts that do not fit raise before any training."""
    if spec.neck == "none" and not spec.method_args:
        return  # nothing that could fail
    rows = rows_of(episode.stages[0].train)
    encoder, task, cached = _encoder_and_task(spec, rows, workspace, None)
    cpu = torch.device("cpu")
    _method(spec, workspace.dataset, rows, encoder, task, trained=None, cached=cached, device=cpu)


def augmentation(spec: Spec, kind: str) -> Transform | None:
    """Return the spec's augmentation for examples of this kind, or None."""
    if not spec.augment:
        return None
    name = catalog.resolve_augmentation(kind, spec.augment)
    if spec.tune == "frozen":
        raise BadInput("augment has no effect on a frozen encoder: use --tune full or leave augment out")
    return catalog.lookup("augmentations", name).load()


def _encoder_and_task(
    spec: Spec, rows: np.ndarray, workspace: Workspace, trained: Model | None
) -> tuple[Backbone, Task, bool]:
    """Return encoder and task, and whether the run reads cached features of the frozen encoder."""
    reads = _reads_inputs(spec)
    fitted = rows if reads or len(rows) <= FITTED else rows[:: len(rows) // FITTED]
    encoder = workspace.shared_encoder(spec, partial(_encoder, spec, workspace.dataset, fitted, trained))
    task: Task = catalog.build("tasks", spec.task, options=spec.task_args)
    targets = workspace.dataset.targets
    task = task.bound(None if targets is None else targets[rows], None if trained is None else trained.scale)
    one_feature = not isinstance(task, Structured) and not isinstance(encoder, Features)
    return encoder, task, one_feature and (not reads or (spec.tune == "frozen" and workspace.cache is not None))


def _encoder(spec: Spec, dataset: Dataset, rows: np.ndarray, trained: Model | None) -> Backbone:
    if trained is None:
        with seeded(spec.seed, "init", "encoder"):
            training = partial(dataset.raw.take, rows)
            encoder = catalog.build("encoders", spec.encoder, training, options=_encoder_options(spec, dataset))
    else:
        encoder = copy.deepcopy(trained.backbone)
        assert isinstance(encoder, Backbone)
    with seeded(spec.seed, "init", "adapters"):
        tune(encoder, spec.tune, None if trained is None else trained.neck)
    return encoder


def _encoder_options(spec: Spec, dataset: Dataset) -> dict[str, Any]:
    """Return the settings of the encoder; a linear regression on counts has one column of their table per output."""
    entry = catalog.lookup("encoders", spec.encoder)
    solved = catalog.inner_method(spec.method).full_batch
    if not entry.sparse or not solved or "dimension" in spec.encoder_args:
        return spec.encoder_args
    outputs = len(catalog.build("tasks", spec.task, options=spec.task_args).outputs(dataset.classes))
    return {**spec.encoder_args, "dimension": outputs}


def _neck_and_head(
    spec: Spec, dataset: Dataset, encoder: Backbone, task: Task, trained: Model | None
) -> tuple[nn.Module, nn.Module]:
    if trained is not None:
        return copy.deepcopy(trained.neck), copy.deepcopy(trained.head)
    needed = catalog.unwrap("methods", spec.method)[-1][1].head
    if needed != spec.head and spec.head in {entry.head for entry in catalog.METHODS.values()}:
        raise BadInput(f"the method {spec.method} does not fit a head of {spec.head}: use head=linear")
    names = task.outputs(dataset.classes)
    neck = catalog.build_neck(spec.neck, encoder.width, len(names), options=spec.neck_args)
    if adapter_rank(spec.tune) and isinstance(neck, InsertingNeck):
        raise BadInput(
            f"--tune {spec.tune} and the neck {spec.neck} both change the layers of the encoder: use --tune full"
        )
    return neck, catalog.build("heads", spec.head, neck.width, names, encoder, options=spec.head_args)


def _method(
    spec: Spec, dataset: Dataset, rows: np.ndarray, encoder: Backbone, task: Task,
    *, trained: Model | None, cached: bool, device: torch.device,
) -> Method:  # fmt: skip
    """Build the method around a new network, which starts from the features of the encoder if those are cached."""
    copied = None
    if trained is not None and not cached:
        copied = copy.deepcopy(trained)  # as one object, because its parts may refer to each other
        copied.recall = None  # only predictions read it
        assert isinstance(copied.backbone, Backbone)
        with seeded(spec.seed, "init", "adapters"):
            tune(copied.backbone, spec.tune, copied.neck)
        copied.precision = spec.precision
    backbone = copied or (Features(inputs=encoder.width) if cached else _encoder(spec, dataset, rows, trained))
    with seeded(spec.seed, "init", "method"):
        ends = () if copied else _neck_and_head(spec, dataset, encoder, task, trained)
        model = placed(copied or Model(backbone, *ends, precision=spec.precision), device)
        model.scale = task.scale if isinstance(task, Regress) else None
        optimizer = partial(Optimizer, _optimizer(spec))
        options = {"options": spec.method_args, "task": task, "optimizer": optimizer}
        method = _averaged(catalog.build("methods", spec.method, model, **options), spec.average)
    return method.to(device)


def placed(model: Model, device: torch.device) -> Model:
    """Move a model to a device, with images in the layout in which a GPU computes convolutions faster."""
    model = model.to(device)
    if device.type == "cuda" and isinstance(model.backbone, ImageBackbone):
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return model


def _averaged(method: Method, average: str) -> Method:
    """Let a method predict with an average of its weights; soup(METHOD) and wise-ft(METHOD) combine such averages."""
    if isinstance(method, Soup | WiseFT) and average != "none":
        method.wrap(_averaged(method.method, average))
        return method
    match average:
        case "moving":
            return MovingAverage(method, start=START, statistics="mean")
        case "swad":
            return SWAD(method)
    return method


def _optimizer(spec: Spec) -> OptimizerSettings:
    warmup = spec.warmup * (spec.steps / spec.accumulate) if spec.warmup < 1 else spec.warmup
    names = ("optimizer", "lr", "weight_decay", "momentum", "schedule", "steps", "clip", "accumulate", "decay")
    return OptimizerSettings(**{name: getattr(spec, name) for name in names}, warmup=int(warmup), rates=spec.lr_args)
