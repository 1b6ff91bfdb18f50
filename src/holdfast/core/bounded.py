"""A bound on tensors while a file from elsewhere is loaded, so that its settings cannot fill the memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.core.errors import BadInput

_NAMES = ("empty", "zeros", "ones", "full", "rand", "randn", "empty_strided")
_MAKES = {getattr(torch.ops.aten, name) for name in _NAMES}


class Bounded(TorchDispatchMode):
    """Inside, a tensor of more than `most` numbers is refused before it is made, and so are too many of them."""

    def __init__(self, most: int, *, where: str) -> None:
        super().__init__()
        self.most, self.left, self.where = most, 16 * most, where

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _MAKES and args:
            first = args[0]
            count = math.prod(first) if isinstance(first, list | tuple | torch.Size) else 0
            self.left -= count
            if count > self.most or self.left < 0:
                raise BadInput(
                    f"{self.where} asks for {count:,} numbers at once where its files hold fewer: its settings are not "
                    "those of its weights"
                )
        return func(*args, **(kwargs or {}))
