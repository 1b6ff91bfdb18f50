"""Holdfast: models that keep working when the data shifts between domains."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.api import Comparison, compare, refit
    from holdfast.auditing.audit import Audit, audit
    from holdfast.core.errors import BadInput
    from holdfast.core.inputs import Graphs
    from holdfast.core.tape import auxiliary_loss, tape
    from holdfast.data.dataset import Dataset
    from holdfast.data.load import load_data
    from holdfast.data.synthetic import world
    from holdfast.estimator import DomainClassifier
    from holdfast.models.adapt import Adaptation, Terms, adapt
    from holdfast.models.pretrain import Pretraining, pretrain
    from holdfast.nn.graft.api import graft, grafted_parameters, load_graft, plain_state, save_graft, ungraft
    from holdfast.recipes.reproduce import Reproduction, reproduce
    from holdfast.record import RunRecord
    from holdfast.run.execute import launch
    from holdfast.search.sweep import Sweep, sweep
    from holdfast.spec import Spec

_HOME = {
    "Adaptation": "models.adapt",
    "Audit": "auditing.audit",
    "BadInput": "core.errors",
    "Comparison": "api",
    "Dataset": "data.dataset",
    "DomainClassifier": "estimator",
    "Graphs": "core.inputs",
    "Pretraining": "models.pretrain",
    "Reproduction": "recipes.reproduce",
    "RunRecord": "record",
    "Spec": "spec",
    "Sweep": "search.sweep",
    "Terms": "models.adapt",
    "adapt": "models.adapt",
    "audit": "auditing.audit",
    "auxiliary_loss": "core.tape",
    "compare": "api",
    "graft": "nn.graft.api",
    "grafted_parameters": "nn.graft.api",
    "launch": "run.execute",
    "load_data": "data.load",
    "load_graft": "nn.graft.api",
    "plain_state": "nn.graft.api",
    "pretrain": "models.pretrain",
    "refit": "api",
    "reproduce": "recipes.reproduce",
    "save_graft": "nn.graft.api",
    "sweep": "search.sweep",
    "tape": "core.tape",
    "ungraft": "nn.graft.api",
    "world": "data.synthetic",
}

__all__ = [
    "Adaptation",
    "Audit",
    "BadInput",
    "Comparison",
    "Dataset",
    "DomainClassifier",
    "Graphs",
    "Pretraining",
    "Reproduction",
    "RunRecord",
    "Spec",
    "Sweep",
    "Terms",
    "adapt",
    "audit",
    "auxiliary_loss",
    "compare",
    "graft",
    "grafted_parameters",
    "launch",
    "load_data",
    "load_graft",
    "plain_state",
    "pretrain",
    "refit",
    "reproduce",
    "save_graft",
    "sweep",
    "tape",
    "ungraft",
    "world",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast' has no attribute '{name}'")
    return getattr(importlib.import_module(f"holdfast.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
