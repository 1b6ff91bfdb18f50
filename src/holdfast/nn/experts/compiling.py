"""What a compiler is told of a layer of experts.

Only what is being compiled imports this: to say it takes torch's compiler, which is loaded in more than a second.
"""

from __future__ import annotations

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
def may_replay(device: torch.device) -> bool:
    """Whether layers are recorded on this GPU, and not by the compiler itself, which then replays more at once."""
    if not without_waiting(device):
        return False
    try:
        compiler = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:  # another version of torch
        return False
    if getattr(compiler, "compiler_name", None) == "cudagraphs":
        return False
    settings = getattr(compiler, "get_compiler_config", dict)()
    return not (settings and settings.get("triton.cudagraphs"))
