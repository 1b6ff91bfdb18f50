"""Load Triton and a kernel before workers are forked; only importing this module has the effect."""

from contextlib import suppress

from holdfast.accel import memory_kernels as memory_kernels

with suppress(ImportError, OSError):  # other versions have it elsewhere
    from triton.runtime.cache import triton_key  # pyright: ignore[reportMissingImports]

    triton_key()  # reads 400 MB, once per process
