"""Grafted: all that was put into a network, kept under one name of it, so that its own names and weights stay.

b batch, t tokens, d width
"""

from __future__ import annotations

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
from holdfast.nn.memory.general import GeneralMemory
from holdfast.nn.memory.neck import MemoryBlend

NAME = "holdfast_graft"
Entry = dict[str, Any]  # JSON: the kind of a part, its place, its settings
_running = ScopedValue[
    tuple[ExitStack, ...]
]()  # of networks that are in the middle of a forward pass, the innermost last


class Grafted(nn.Module):
    """The parts that were added, what they are, and what stood in their places; what it is given it passes on.

    A Sequential calls all its children, this one too.
    """

    def __init__(self, learned: tuple[str, ...], *, freeze: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.entries: list[Entry] = []
        self.handles: list[RemovableHandle] = []
        self.learned, self.freeze = learned, freeze  # names of the network's own parameters that learned before

    def forward(self, x: Any) -> Any:
        return x


class StandIn(nn.Module):
    """In the place of a part: it keeps the parameters of that part under their names, and does what another does."""

    def __init__(self, plain: nn.Module, other: nn.Module) -> None:
        super().__init__()
        for name, parameter in plain.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in plain.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        for name, child in plain.named_children():
            self.add_module(name, child)
        self.both = (plain, other)  # in a tuple: no second name for what is in the network already
        self.train(plain.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.both[1](x)

    def plain(self) -> nn.Module:
        """The part as it was, with the weights that are here now."""
        found = self.both[0]
        for name, parameter in self.named_parameters(recurse=False):
            setattr(found, name, parameter)
        for name, buffer in self.named_buffers(recurse=False):
            setattr(found, name, buffer)
        return found.train(self.training)


class Follows:
    """A forward hook: the states or features (..., d) that a part of a network gives pass through a memory."""

    def __init__(self, part: MemoryBlend, *, width: int, at: str) -> None:
        self.part, self.width, self.at = part, width, at

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        if not isinstance(first, Tensor):
            raise BadInput(f"{_named(self.at)} gives no tensor but a {type(first).__name__}: name a layer inside it")
        if first.shape[-1] != self.width:
            raise BadInput(
                f"the memory after {_named(self.at)} is {self.width} wide, but what comes out there is "
                f"{tuple(first.shape)}: set its width to {first.shape[-1]}"
            )
        found = self.part(first)
        return (found, *output[1:]) if isinstance(output, tuple) else found


class Around:
    """Hooks before and after a network runs: which tokens are padding, and what its layers read of a general one."""

    def __init__(self, general: GeneralMemory | None) -> None:
        self.general = general

    def before(self, module: nn.Module, args: Any, named: Any) -> None:
        try:
            given = inspect.signature(module.forward).bind(*args, **named).arguments
        except TypeError:
            given = {}  # the network says itself what is wrong with its arguments
        mask, held = given.get("attention_mask"), ExitStack()
        if isinstance(mask, Tensor) and mask.dim() == 2:
            held.enter_context(exclude_padding(mask.bool()))
        if self.general is not None:
            held.enter_context(attend_to(self.general.memory_states(_tokens(given, mask))))
        _running.value = (*(_running.value or ()), held)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        *outer, held = _running.value or (ExitStack(),)  # nothing is open where `before` has failed
        _running.value = tuple(outer)
        held.close()

    def hooks(self, module: nn.Module) -> list[RemovableHandle]:
        return [
            module.register_forward_pre_hook(self.before, with_kwargs=True),
            module.register_forward_hook(self.after, always_call=True),
        ]


def _tokens(given: dict[str, Any], mask: Tensor | None) -> Tokens:
    ids = given.get("input_ids")
    if not isinstance(ids, Tensor):
        raise BadInput("a network with a general memory is called with input_ids, which both networks read")
    there = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    return Tokens(ids, there, given.get("token_type_ids"))


def holder_of(module: nn.Module) -> Grafted | None:
    """What was put into a network; None where nothing was."""
    found = dict(module.named_children()).get(NAME)
    return found if isinstance(found, Grafted) else None


def need_holder(module: nn.Module) -> Grafted:
    found = holder_of(module)
    if found is None:
        raise BadInput(f"this {type(module).__name__} is not grafted: call holdfast.graft or holdfast.load_graft first")
    return found


def _named(at: str) -> str:
    return f"'{at}'" if at else "the network itself"
