"""Triton kernels of networks; `holdfast.core.kernels` loads them where they work."""
