"""Holdfast: models that keep working when the data shifts between domains."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.core.environment import VERSION as __version__

if TYPE_CHECKING:
    from holdfast.adaptation.adapt import Adaptation, Terms, adapt
    from holdfast.adaptation.pretrain import Pretraining, pretrain
    from holdfast.api import Comparison, Fitted, compare, fit, refit
    from holdfast.auditing.audit import Audit, audit
    from holdfast.core.errors import BadInput
    from holdfast.core.inputs import Graphs
    from holdfast.core.tape import auxiliary_loss, tape
    from holdfast.data.dataset import Dataset
    from holdfast.data.load import load_data
    from holdfast.data.synthetic import world
    from holdfast.engines.work import launch
    from holdfast.estimator import DomainClassifier, DomainRegressor
    from holdfast.folders.card import push_to_hub
    from holdfast.monitor.watch import Watch, watch
    from holdfast.nn.graft.api import graft, grafted_parameters, load_graft, plain_state, save_graft, ungraft
    from holdfast.record import RunRecord
    from holdfast.search.sweep import Sweep, sweep
    from holdfast.spec import Spec

_HOME = {  # module -> public names
    "api": ("Comparison", "Fitted", "compare", "fit", "refit"),
    "auditing.audit": ("Audit", "audit"),
    "core.errors": ("BadInput",),
    "core.inputs": ("Graphs",),
    "core.tape": ("auxiliary_loss", "tape"),
    "data.dataset": ("Dataset",),
    "data.load": ("load_data",),
    "data.synthetic": ("world",),
    "estimator": ("DomainClassifier", "DomainRegressor"),
    "adaptation.adapt": ("Adaptation", "Terms", "adapt"),
    "folders.card": ("push_to_hub",),
    "adaptation.pretrain": ("Pretraining", "pretrain"),
    "monitor.watch": ("Watch", "watch"),
    "nn.graft.api": ("graft", "grafted_parameters", "load_graft", "plain_state", "save_graft", "ungraft"),
    "record": ("RunRecord",),
    "engines.work": ("launch",),
    "search.sweep": ("Sweep", "sweep"),
    "spec": ("Spec",),
}

__all__ = [
    "Adaptation", "Audit", "BadInput", "Comparison", "Dataset", "DomainClassifier", "DomainRegressor", "Fitted",
    "Graphs", "Pretraining", "RunRecord", "Spec", "Sweep", "Terms", "Watch", "__version__", "adapt", "audit",
    "auxiliary_loss", "compare", "fit", "graft", "grafted_parameters", "launch", "load_data", "load_graft",
    "plain_state", "pretrain", "push_to_hub", "refit", "save_graft", "sweep", "tape", "ungraft", "watch", "world",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"holdfast.{module}"), name)
    raise AttributeError(f"module 'holdfast' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
