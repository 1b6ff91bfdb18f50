"""What a compiler is told of a layer of experts.

Only what is being compiled imports this: to say it takes torch's compiler, which is loaded in more than a second.
"""

from __future__ import annotations

import torch

from holdfast.nn.kernels import usable


@torch.compiler.assume_constant_result
def kernels_serve(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels of experts can be built and run there."""
    return usable("experts", device, dtype) is not None


@torch.compiler.assume_constant_result
def new_enough(device: torch.device) -> bool:
    """Whether a GPU knows grouped products."""
    return torch.cuda.get_device_capability(device) >= (8, 0)
