"""What a compiler is told of a layer of experts.

Only what is being compiled imports this: to say it takes torch's compiler, which is loaded in more than a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator

from holdfast.nn.experts.dispatch import without_waiting
from holdfast.nn.kernels import usable


@torch.compiler.assume_constant_result
def kernels_serve(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels of experts can be built and run there."""
    return usable("experts", device, dtype) is not None


@torch.compiler.assume_constant_result
def new_enough(device: torch.device) -> bool:
    """Whether a GPU knows grouped products."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


@torch.compiler.assume_constant_result
def may_break(device: torch.device) -> bool:
    """Whether layers are replayed on this GPU, and nobody asked for a program in one piece."""
    return without_waiting(device) and not getattr(InstructionTranslator.current_tx(), "one_graph", True)


def _call(function: Callable[..., Any], *given: Any) -> Any:
    return function(*given)


# outside of the program: what is compiled ends before it and goes on after it
apart: Any = torch.compiler.disable(_call)
