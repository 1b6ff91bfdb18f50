"""Launches of kernels without what Triton does at each in Python: a kernel that was found once is called itself.

Triton compiles a kernel for the types of its arguments, for addresses and whole numbers that 16 divides, for a one, and
for its constants; types, odd addresses, numbers and constants name the compiled kernel here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import attrgetter, or_
from typing import Any, NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch._subclasses import FakeTensor
from triton import knobs  # pyright: ignore[reportMissingImports]
from triton.compiler import CompiledKernel  # pyright: ignore[reportMissingImports]
from triton.runtime import driver  # pyright: ignore[reportMissingImports]

KNOWN = ("3.6.", "3.7.", "3.8.", "3.9.")  # versions in which a compiled kernel is called as it is here


class _Direct(NamedTuple):
    compiled: Any  # held, for a kernel that nobody holds is unloaded
    run: Callable[..., Any]
    function: Any
    packed: Any
    stream: Callable[[int], int]
    constants: tuple[Any, ...]


LAUNCHES = 4096  # that are known at once: numbers are known by their value, and lengths of texts differ
_found: dict[tuple[Any, ...], _Direct | None] = {}
_dtype = attrgetter("dtype")
# the same as torch.cuda.current_device, without looking whether there is a GPU: tensors are on it
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def launch(function: Any, grid: tuple[int, ...], tensors: Sequence[Tensor], *numbers: float, **constants: Any) -> None:
    """function[grid](*tensors, *numbers, **constants) on the device of the first tensor.

    Tensors without numbers are left as they are: a compiler asks for shapes alone.
    """
    if type(tensors[0]) is FakeTensor:
        return None
    if torch.compiler.is_compiling():  # it records kernels by themselves
        function[grid](*tensors, *numbers, **constants)
        return None
    device = tensors[0].get_device()
    if device >= 0 and device != _current_device():
        with torch.cuda.device(device):
            return launch(function, grid, tensors, *numbers, **constants)
    # a tensor would be asked for its address again, and the driver whether it is the device's
    addresses = [*map(Tensor.data_ptr, tensors)]
    kinds = [number if type(number) is int else type(number) for number in numbers]
    known = id(function), device, *map(_dtype, tensors), *kinds, *constants, *constants.values()
    if reduce(or_, addresses) & 15:  # some address is odd: which ones
        known += (tuple([bool(address & 15) for address in addresses]),)
    direct = _found.get(known)
    if direct is None or _watched():
        compiled = function[grid](*tensors, *numbers, **constants)
        if known not in _found:
            if len(_found) >= LAUNCHES:
                _found.clear()
            _found[known] = _direct(function, compiled, constants, len(tensors) + len(numbers))
        return None
    _, run, kernel, packed, stream, last = direct
    x, y, z = (*grid, 1, 1)[:3]
    run(x, y, z, stream(device), kernel, packed, None, None, None, *addresses, *numbers, *last)
    return None


def _direct(function: Any, compiled: Any, named: dict[str, Any], args: int) -> _Direct | None:
    """None where kernels are interpreted, or in a version or on a device whose inner ways are not known here."""
    if not isinstance(compiled, CompiledKernel) or not triton.__version__.startswith(KNOWN):
        return None
    if compiled.metadata.target.backend != "cuda":
        return None
    constants = tuple(named[name] for name in function.arg_names[args:])
    ways = compiled.run, compiled.function, compiled.packed_metadata, driver.active.get_current_stream
    return _Direct(compiled, *ways, constants)


def _watched() -> bool:
    """Whether someone, a profiler say, is to be told of each launch by Triton."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def pieces(length: int, size: int) -> int:
    """How many of this size a length takes; triton.cdiv serves inside kernels too, and is slower outside for it."""
    return -(-length // size)


def power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
