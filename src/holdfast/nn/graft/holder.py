"""Modules and hooks that hold inserted parts under one name, so that the network's own names and weights stay.

Shapes: b batch, t tokens, d width.
"""

import inspect
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.tape import ScopedValue
from holdfast.nn.experts.layer import exclude_padding
from holdfast.nn.graft.attention import attend_to
from holdfast.nn.graft.insert import map_first
from holdfast.nn.memory.general import GeneralMemory
from holdfast.nn.memory.neck import MemoryBlend

NAME = "holdfast_graft"
Entry = dict[str, Any]  # JSON: kind of a part, its position and its settings
_running = ScopedValue[tuple[ExitStack, ...]]()  # contexts of running forward passes, the innermost last


class Grafted(nn.Module):
    """Container of the inserted parts and their entries; returns its input, since a Sequential calls all children."""

    def __init__(self, learned: tuple[str, ...], *, freeze: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList()  # the name is part of state_dict keys
        self.entries: list[Entry] = []
        self.handles: list[RemovableHandle] = []
        self.learned, self.freeze = learned, freeze  # names of the network's parameters that were trainable

    def forward(self, x: Any) -> Any:
        return x


class Replacement(nn.Module):
    """Calls another module in place of a plain one, whose parameters it keeps under their names."""

    def __init__(self, plain: nn.Module, other: nn.Module) -> None:
        super().__init__()
        for name, parameter in plain.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in plain.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        for name, child in plain.named_children():
            self.add_module(name, child)
        self.both = (plain, other)  # in a tuple: not registered as submodules a second time
        self.train(plain.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.both[1](x)

    def restore(self) -> nn.Module:
        """Return the plain module with the current weights."""
        plain = self.both[0]
        for name, tensor in (*self.named_parameters(recurse=False), *self.named_buffers(recurse=False)):
            setattr(plain, name, tensor)
        return plain.train(self.training)


class MemoryHook:
    """Forward hook that passes the output (..., d) of a module through a memory."""

    def __init__(self, part: MemoryBlend, *, width: int, at: str) -> None:
        self.part, self.width = part, width
        self.where = f"'{at}'" if at else "the network itself"

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return map_first(self._blend, output)

    def _blend(self, states: Any) -> Tensor:
        if not isinstance(states, Tensor):
            raise BadInput(f"{self.where} returns a {type(states).__name__}, not a tensor: name a layer inside it")
        shape = tuple(states.shape)
        if shape[-1] != self.width:
            raise BadInput(f"the memory after {self.where} has width {self.width}, not {shape}: set width={shape[-1]}")
        return self.part(states)


class ForwardHooks:
    """Hooks before and after a network's forward pass: exclude padding and provide general memory states."""

    def __init__(self, general: GeneralMemory | None) -> None:
        self.general = general

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        try:
            arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        except TypeError:
            arguments = {}  # the network itself raises an error about its arguments
        mask, contexts = arguments.get("attention_mask"), ExitStack()
        if isinstance(mask, Tensor) and mask.dim() == 2:
            contexts.enter_context(exclude_padding(mask.bool()))
        if self.general is not None:
            contexts.enter_context(attend_to(self.general.memory_states(_tokens(arguments, mask))))
        _running.value = (*(_running.value or ()), contexts)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        *outer, contexts = _running.value or (ExitStack(),)  # nothing is open if `before` failed
        _running.value = tuple(outer)
        contexts.close()


def _tokens(arguments: dict[str, Any], mask: Tensor | None) -> Tokens:
    ids = arguments.get("input_ids")
    if not isinstance(ids, Tensor):
        raise BadInput("a network with a general memory must be called with input_ids, which both networks read")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    return Tokens(ids, real, arguments.get("token_type_ids"))


def find_graft(module: nn.Module) -> Grafted | None:
    container = dict(module.named_children()).get(NAME)
    return container if isinstance(container, Grafted) else None


def require_graft(module: nn.Module) -> Grafted:
    """Return the container of inserted parts; raise an error if there is none."""
    container = find_graft(module)
    if container is None:
        raise BadInput(f"this {type(module).__name__} is not grafted: call holdfast.graft or holdfast.load_graft first")
    return container
