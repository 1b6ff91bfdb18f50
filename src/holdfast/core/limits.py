"""Limits on the construction of a network from untrusted settings: values of tensors, modules and time."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from holdfast.core.dynamo import skip_dynamo
from holdfast.core.errors import BadInput

MODULES = 20_000  # of a small network
VALUES_PER_MODULE = 10_000  # of a larger one, for which the limit of values is higher
SECONDS = 60.0  # of computing, for a small network
VALUES_PER_SECOND = 10_000_000  # a larger one may take this much longer
_RATES = ("theta", "base")  # keys of settings that are no sizes, such as the base of rotary positions


class ConstructionLimit(TorchDispatchMode):
    """Raise `BadInput` before a network in construction exceeds its limits.

    A tensor may have `limit` values, and all results of operations together 16 times `limit`. Modules are counted when
    they are registered in another one. The time is that of the current thread, so that other programs do not shorten
    it.
    """

    def __init__(self, limit: int, *, where: str) -> None:
        super().__init__()
        self.limit, self.left, self.where = limit, 16 * limit, where
        self.modules = self.most_modules = max(MODULES, limit // VALUES_PER_MODULE)
        self.seconds = SECONDS + limit / VALUES_PER_SECOND

    def __enter__(self) -> Self:
        skip_dynamo([type(self).__torch_dispatch__])
        self.thread, self.end = threading.get_ident(), time.thread_time() + self.seconds
        self.hook = register_module_module_registration_hook(self._count_module)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.hook.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self._check_time()
        count = _allocated(func, args, kwargs or {})
        self.left -= count
        if count > self.limit or self.left < 0:
            raise self._error(f"ask for a tensor of {count:,} values, more than its files contain")
        return func(*args, **(kwargs or {}))

    def _count_module(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        if threading.get_ident() != self.thread:
            return
        self._check_time()
        self.modules -= 1
        if self.modules < 0:
            raise self._error(f"ask for more than {self.most_modules:,} modules")

    def _check_time(self) -> None:
        if time.thread_time() > self.end:
            raise self._error(f"take more than {self.seconds:.0f} seconds to build the network")

    def _error(self, fault: str) -> BadInput:
        return BadInput(f"the settings in {self.where} {fault}: restore the settings that belong to these weights")


def _allocated(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    """Return the number of values that an operation will allocate, from its shapes on the meta device."""
    if func.is_view or (func._schema.is_mutable and func.overloadpacket is not torch.ops.aten.resize_):
        return 0
    try:
        args, options = tree_map_only(Tensor, _without_data, (args, dict(options)))
        if any(argument.name == "device" for argument in func._schema.arguments):
            options = {**options, "device": torch.device("meta")}
        result = func(*args, **options)
    except (NotImplementedError, RuntimeError):  # sizes that depend on the data, or an error that is raised anyway
        return 0
    return sum(value.numel() for value in tree_leaves(result) if isinstance(value, Tensor))


def _without_data(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def check_sizes(settings: Any, limit: int, *, where: str) -> None:
    """Raise for an integer above the limit anywhere in JSON settings, which a loop in Python may count up to."""
    nodes = [("", settings)]
    while nodes:
        name, node = nodes.pop()
        if isinstance(node, dict):
            nodes += node.items()
        elif isinstance(node, list):
            nodes += [(name, each) for each in node]
        elif isinstance(node, int) and abs(node) > limit and not any(word in str(name) for word in _RATES):
            raise BadInput(f"{where} has {name}={node:,}, above the limit {limit:,}: restore the settings")
