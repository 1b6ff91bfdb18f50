"""From a spec to its parts: encoder, examples, model, method; shared work is done once a workshop.

n rows, d width
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.core.seeds import seeded
from holdfast.core.store import Store, TensorStore
from holdfast.data.batches import Examples, Transform, prepare
from holdfast.data.cache import cached_features, weights_digest
from holdfast.data.dataset import Dataset
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.small import Features
from holdfast.nn.growth import GrowsWords
from holdfast.nn.model import Model, tune
from holdfast.protocols.plan import Episode, rows_of
from holdfast.protocols.resume import stop_if_requested
from holdfast.spec import Spec
from holdfast.tasks.base import Prepared, Structured, Task

Encoding = Callable[[int, int], None]  # (examples done, of how many)


@dataclass
class Workspace:
    """One data set on one device, with the prepared examples and features that its runs share."""

    dataset: Dataset
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache: Path | None = field(default_factory=cache_folder)  # None computes frozen features in every step
    watch: Encoding | None = None
    stores: dict[str, Store] = field(default_factory=dict)
    features: dict[Backbone, Tensor] = field(default_factory=dict)
    encoders: dict[str, Backbone] = field(default_factory=dict)
    structured: dict[tuple[str, str], Prepared] = field(default_factory=dict)
    macs: dict[str, int | None] = field(default_factory=dict)

    def store(self, encoder: Backbone) -> Store:
        """The data set's examples, prepared for this encoder."""
        key = encoder.preparation_key()
        if key not in self.stores:
            self.stores[key] = prepare(
                self.dataset.raw,
                encoder.prepare,
                size=encoder.size,
                tick=lambda _: stop_if_requested(),
                cache=self.cache,
            )
        return self.stores[key]

    def examples(self, store: Store) -> Examples:
        y = torch.from_numpy(np.ascontiguousarray(self.dataset.y))
        return Examples(store, y, self.dataset.domains, device=self.device)

    def asked(self, spec: Spec, task: Structured, encoder: Backbone) -> tuple[Examples, Task]:
        """The examples with the places that the spec's task asks for, and the task that knows them."""
        key = (f"{spec.task}/{sorted(spec.task_args.items())}", encoder.preparation_key())
        if key not in self.structured:
            self.structured[key] = task.prepare(encoder, self.dataset.raw, self.dataset.classes)
        made = self.structured[key]
        return Examples(made.store, made.y, self.dataset.domains, device=self.device, starts=made.starts), made.task

    def pristine(self, spec: Spec, make: Callable[[], Backbone]) -> Backbone:
        """The spec's encoder; where it is frozen and came pretrained, one serves all runs."""
        if spec.tune != "frozen" or not catalog.lookup("encoders", spec.encoder).pretrained:
            return make()
        key = f"{spec.encoder}/{sorted(spec.encoder_args.items())}"
        if key not in self.encoders:
            self.encoders[key] = make()
        return self.encoders[key]

    def frozen(self, encoder: Backbone) -> Tensor:
        """(n, d) the encoder's features of all examples, from the cache where they are there."""
        assert self.cache is not None
        if encoder in self.features:
            return self.features[encoder]
        text = f"{weights_digest(encoder)}/{encoder.preparation_key()}/{sorted(encoder.settings.items())}"
        key = hashlib.sha256(text.encode()).hexdigest()
        groups = [self.dataset.rows_of(name) for name in self.dataset.domains]
        done = 0

        def count(rows: int) -> None:
            nonlocal done
            done = min(len(self.dataset), done + rows * parallel.world_size())  # the others are about as far
            stop_if_requested()
            if self.watch is not None:
                self.watch(done, len(self.dataset))

        def compute(rows: np.ndarray) -> Tensor:
            encoder.to(self.device).eval()
            return self.examples(self.store(encoder)).map(encoder, rows, tick=count, shared=True)

        found = cached_features(self.dataset.raw, groups, compute, key=key, folder=self.cache)
        self.features = {encoder: found}  # one at a time: a comparison has one encoder
        return found


@dataclass(frozen=True)
class FollowingWords:
    """Examples that are prepared again when the network in training has learnt new words."""

    workspace: Workspace
    encoder: Backbone

    def words(self, parts: Sequence[Part]) -> Sequence[str]:
        assert isinstance(self.encoder, GrowsWords)
        return self.encoder.words_in(self.workspace.dataset.raw.take(rows_of(parts)))

    def examples(self, method: Method) -> Examples:
        backbone = method.model.backbone
        assert isinstance(backbone, Backbone)
        return self.workspace.examples(self.workspace.store(backbone))


@dataclass(frozen=True)
class Assembly:
    """The parts of one run; `method` is there once it has been trained."""

    encoder: Backbone
    examples: Examples
    task: Task
    make: Callable[[], Method]
    transform: Transform | None
    following: FollowingWords | None = None
    method: Method | None = None

    def trained(self, method: Method) -> Assembly:
        """The same parts with the method as training left it, and the examples as it takes them."""
        if self.following is None:
            return replace(self, method=method)
        backbone = method.deployed.backbone
        assert isinstance(backbone, Backbone)
        return replace(self, method=method, encoder=backbone, examples=self.following.examples(method))

    def deploy(self) -> Model:
        """The trained network from raw inputs to outputs, with the encoder in its place."""
        assert self.method is not None
        model = self.method.deployed
        if isinstance(model.backbone, Features) and not isinstance(self.encoder, Features):
            return Model(self.encoder, model.neck, model.head, precision=model.precision)
        return model


def assemble(spec: Spec, episode: Episode, workspace: Workspace, *, trained: Model | None = None) -> Assembly:
    """Build what the spec names; an encoder learns vocabulary and scale from the first stage's training rows alone.

    With a network that is trained already, a copy of it is what the method trains on.
    """
    blueprint, encoder, task, kept = _drawn(spec, episode, workspace, trained)
    if kept:
        with seeded(spec.seed):
            # what is wrong with them is told before all examples are encoded
            Model(Features(inputs=encoder.width), *blueprint.ends(encoder))
        examples = workspace.examples(TensorStore(workspace.frozen(encoder)))
    elif isinstance(task, Structured):
        examples, task = workspace.asked(spec, task, encoder)
    else:
        examples = workspace.examples(workspace.store(encoder))
    make = partial(blueprint.method, encoder, task, kept=kept, device=workspace.device)
    following = FollowingWords(workspace, encoder) if isinstance(encoder, GrowsWords) and not kept else None
    return Assembly(encoder, examples, task, make, _augmentation(spec, workspace.dataset.raw.kind), following)


def try_build(spec: Spec, episode: Episode, workspace: Workspace) -> None:
    """Build the spec's network and method, and drop them: one sentence where its parts do not go together."""
    if spec.neck == "none" and not spec.method_args:
        return  # such parts always do
    blueprint, encoder, task, kept = _drawn(spec, episode, workspace, None)
    blueprint.method(encoder, task, kept=kept, device=torch.device("cpu"))


def _drawn(
    spec: Spec, episode: Episode, workspace: Workspace, trained: Model | None
) -> tuple[Blueprint, Backbone, Task, bool]:
    """How to make the spec's parts, its encoder and task, and whether that encoder's features are kept."""
    dataset = workspace.dataset
    if spec.precision == "bf16" and workspace.device.type != "cuda":
        raise BadInput("precision bf16 needs a GPU: use fp32 here")
    catalog.resolve_encoder(dataset.raw.kind, spec.encoder, spec.task)
    blueprint = Blueprint(spec, dataset, rows_of(episode.stages[0].train), trained)
    encoder = workspace.pristine(spec, blueprint.encoder)
    task: Task = catalog.build("tasks", spec.task, options=spec.task_args)
    plain = not isinstance(task, Structured)  # one feature an example, which can be kept
    kept = spec.tune == "frozen" and workspace.cache is not None and plain and not isinstance(encoder, Features)
    return blueprint, encoder, task, kept


def _augmentation(spec: Spec, kind: str) -> Transform | None:
    if not spec.augment:
        return None
    name = catalog.resolve_augmentation(kind, spec.augment)
    if spec.tune == "frozen":
        raise BadInput("augment changes what a frozen encoder never sees again: use --tune full or leave augment out")
    return catalog.lookup("augmentations", name).load()


@dataclass(frozen=True)
class Blueprint:
    """How the parts of a spec are made, each as often as it is asked for, and each time the same."""

    spec: Spec
    dataset: Dataset
    rows: np.ndarray  # an encoder learns vocabulary and scale from these alone
    trained: Model | None = None  # the method trains a copy of this network, if there is one

    def encoder(self) -> Backbone:
        if self.trained is None:
            with seeded(self.spec.seed, "init", "encoder"):
                training = partial(self.dataset.raw.take, self.rows)
                made = catalog.build("encoders", self.spec.encoder, training, options=self.spec.encoder_args)
        else:
            made: Any = copy.deepcopy(self.trained.backbone)
        tune(made, self.spec.tune, None if self.trained is None else self.trained.neck)
        return made

    def ends(self, encoder: Backbone) -> tuple[nn.Module, nn.Module]:
        """The neck and the head for what this encoder gives."""
        if self.trained is not None:
            return copy.deepcopy(self.trained.neck), copy.deepcopy(self.trained.head)
        spec, classes = self.spec, self.dataset.classes
        neck = catalog.build_neck(spec.neck, encoder.width, len(classes), options=spec.neck_args)
        return neck, catalog.build("heads", spec.head, neck.width, classes, encoder, options=spec.head_args)

    def method(self, encoder: Backbone, task: Task, *, kept: bool, device: torch.device) -> Method:
        """The method with a network of its own; where the encoder's features are kept, it begins from those."""
        spec = self.spec
        again = None if self.trained is None or kept else self._again(self.trained)
        backbone = again or (Features(inputs=encoder.width) if kept else self.encoder())
        with seeded(spec.seed, "init", "method"):
            model = (again or Model(backbone, *self.ends(encoder), precision=spec.precision)).to(device)
            method = catalog.build(
                "methods",
                spec.method,
                model,
                options=spec.method_args,
                task=task,
                optimizer=partial(Optimizer, _recipe(spec)),
            )
        return method.to(device)

    def _again(self, trained: Model) -> Model:
        """A copy of a trained network, as a whole, since its parts may hold on to each other."""
        made = copy.deepcopy(trained)
        assert isinstance(made.backbone, Backbone)
        tune(made.backbone, self.spec.tune, made.neck)
        made.precision = self.spec.precision
        return made


def _recipe(spec: Spec) -> OptimizerSettings:
    updates = spec.steps / spec.accumulate
    warmup: Any = spec.warmup * updates if spec.warmup < 1 else spec.warmup
    return OptimizerSettings(
        optimizer=spec.optimizer,
        lr=spec.lr,
        weight_decay=spec.weight_decay,
        momentum=spec.momentum,
        schedule=spec.schedule,
        warmup=int(warmup),
        steps=spec.steps,
        clip=spec.clip,
        accumulate=spec.accumulate,
    )
