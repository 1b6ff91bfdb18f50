"""Networks: tensors in, tensors out. The public parts are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.nn.experts.layer import SparseMoE
    from holdfast.nn.memory.bank import MemoryBank
    from holdfast.nn.memory.general import GeneralMemory
    from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
    from holdfast.nn.memory.key_value import KeyValueMemory
    from holdfast.nn.memory.product_key import ProductKeyMemory
    from holdfast.nn.recurrent.layer import MemoryGRU, MemoryLSTM

__all__ = [
    "GeneralMemory", "HeterogeneousMemory", "KeyValueMemory", "MemoryBank", "MemoryGRU", "MemoryLSTM",
    "ProductKeyMemory", "SparseMoE",
]  # fmt: skip
_MODULES = (
    "memory.general", "memory.heterogeneous", "memory.key_value", "memory.bank", "recurrent.layer", "recurrent.layer",
    "memory.product_key", "experts.layer",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.nn' has no attribute '{name}'")
    return getattr(import_module(f"holdfast.nn.{_MODULES[__all__.index(name)]}"), name)
