"""Holdfast: models that hold when the domain shifts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.comparison import Comparison, compare, load_data
    from holdfast.core.errors import BadInput
    from holdfast.core.inputs import Graphs
    from holdfast.data.domain import Dataset
    from holdfast.data.worlds import world
    from holdfast.estimator import DomainClassifier
    from holdfast.experiment import launch
    from holdfast.pretraining import Pretraining, pretrain
    from holdfast.record import RunRecord
    from holdfast.reproduction import Reproduction, reproduce
    from holdfast.search.sweep import Sweep, sweep
    from holdfast.spec import Spec

_HOME = {
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
    "compare": "comparison",
    "launch": "experiment",
    "load_data": "comparison",
    "pretrain": "pretraining",
    "reproduce": "reproduction",
    "sweep": "search.sweep",
    "world": "data.worlds",
}

__all__ = [
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
    "compare",
    "launch",
    "load_data",
    "pretrain",
    "reproduce",
    "sweep",
    "world",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast' has no attribute '{name}'")
    return getattr(importlib.import_module(f"holdfast.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
