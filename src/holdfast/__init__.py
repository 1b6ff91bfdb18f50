"""Holdfast: models that hold when the domain shifts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.adapting.adapt import Adaptation, Terms, adapt
    from holdfast.comparison import Comparison, compare, load_data
    from holdfast.core.errors import BadInput
    from holdfast.core.inputs import Graphs
    from holdfast.core.tape import auxiliary_loss, tape
    from holdfast.data.domain import Dataset
    from holdfast.data.worlds import world
    from holdfast.estimator import DomainClassifier
    from holdfast.experiment import launch
    from holdfast.grafting.files import load_graft, save_graft
    from holdfast.grafting.graft import graft, grafted_parameters, plain_state, ungraft
    from holdfast.inspection.audit import Audit, audit
    from holdfast.pretraining import Pretraining, pretrain
    from holdfast.record import RunRecord
    from holdfast.refitting import refit
    from holdfast.reproduction import Reproduction, reproduce
    from holdfast.search.sweep import Sweep, sweep
    from holdfast.spec import Spec

_HOME = {
    "Adaptation": "adapting.adapt",
    "Audit": "inspection.audit",
    "BadInput": "core.errors",
    "Comparison": "comparison",
    "Dataset": "data.domain",
    "DomainClassifier": "estimator",
    "Graphs": "core.inputs",
    "Pretraining": "pretraining",
    "Reproduction": "reproduction",
    "RunRecord": "record",
    "Spec": "spec",
    "Sweep": "search.sweep",
    "Terms": "adapting.adapt",
    "adapt": "adapting.adapt",
    "audit": "inspection.audit",
    "auxiliary_loss": "core.tape",
    "compare": "comparison",
    "graft": "grafting.graft",
    "grafted_parameters": "grafting.graft",
    "launch": "experiment",
    "load_data": "comparison",
    "load_graft": "grafting.files",
    "plain_state": "grafting.graft",
    "pretrain": "pretraining",
    "refit": "refitting",
    "reproduce": "reproduction",
    "save_graft": "grafting.files",
    "sweep": "search.sweep",
    "tape": "core.tape",
    "ungraft": "grafting.graft",
    "world": "data.worlds",
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
