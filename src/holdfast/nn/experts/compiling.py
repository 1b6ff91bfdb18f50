"""What a compiler is told of a layer of experts.

Only what is being compiled imports this: to say it takes torch's compiler, which is loaded in more than a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import utils
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
    """Whether layers are replayed on this GPU, and this program may be in pieces: nobody asked for a whole one.

    What lies inside of another operator, such as a branch or what is gone through twice to save memory, is whole too. A
    compiler that records its programs replays more at once than a layer.
    """
    if not without_waiting(device):
        return False
    try:
        now = InstructionTranslator.current_tx()
        forbidden = now.one_graph or utils._get_error_on_graph_break()  # pyright: ignore[reportAttributeAccessIssue]
        whole = forbidden or now.output.current_tracer.parent is not None
        return not whole and not _records(now.output.compiler_fn)
    except AttributeError:  # another version of torch
        return False


def _records(compiler: Any) -> bool:
    settings = getattr(compiler, "get_compiler_config", dict)()
    return bool(settings and settings.get("triton.cudagraphs"))


def _call(function: Callable[..., Any], *given: Any) -> Any:
    return function(*given)


# outside of the program: what is compiled ends before it and goes on after it
apart: Any = torch.compiler.disable(_call)
