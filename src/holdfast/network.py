"""From a spec to its network and the method that trains it: new ones, or copies of what is trained already."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast import catalog
from holdfast.core.seeds import seeded
from holdfast.data.domain import Dataset
from holdfast.methods.base import Method
from holdfast.methods.descent import Descent, Recipe
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.small import Features
from holdfast.nn.model import Model
from holdfast.nn.tuning import tune
from holdfast.spec import Spec
from holdfast.tasks.base import Task


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
                made = catalog.make("encoders", self.spec.encoder, training, given=self.spec.encoder_args)
        else:
            made: Any = copy.deepcopy(self.trained.backbone)
        tune(made, self.spec.tune, None if self.trained is None else self.trained.neck)
        return made

    def ends(self, encoder: Backbone) -> tuple[nn.Module, nn.Module]:
        """The neck and the head for what this encoder gives."""
        if self.trained is not None:
            return copy.deepcopy(self.trained.neck), copy.deepcopy(self.trained.head)
        spec, classes = self.spec, self.dataset.classes
        neck = catalog.make_neck(spec.neck, encoder.width, len(classes), given=spec.neck_args)
        return neck, catalog.make("heads", spec.head, neck.width, classes, encoder, given=spec.head_args)

    def method(self, encoder: Backbone, task: Task, *, kept: bool, device: torch.device) -> Method:
        """The method with a network of its own; where the encoder's features are kept, it begins from those."""
        spec = self.spec
        again = None if self.trained is None or kept else self._again(self.trained)
        backbone = again or (Features(inputs=encoder.width) if kept else self.encoder())
        with seeded(spec.seed, "init", "method"):
            model = (again or Model(backbone, *self.ends(encoder), precision=spec.precision)).to(device)
            method = catalog.make(
                "methods",
                spec.method,
                model,
                given=spec.method_args,
                task=task,
                optimizer=partial(Descent, _recipe(spec)),
            )
        return method.to(device)

    def _again(self, trained: Model) -> Model:
        """A copy of a trained network, as a whole, since its parts may hold on to each other."""
        made = copy.deepcopy(trained)
        assert isinstance(made.backbone, Backbone)
        tune(made.backbone, self.spec.tune, made.neck)
        made.precision = self.spec.precision
        return made


def _recipe(spec: Spec) -> Recipe:
    updates = spec.steps / spec.accumulate
    warmup: Any = spec.warmup * updates if spec.warmup < 1 else spec.warmup
    return Recipe(
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
