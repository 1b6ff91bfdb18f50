"""Devices of kernels: a GPU, or a CPU in Triton's interpreter with TRITON_INTERPRET=1 and Triton installed."""

import importlib.util
import os

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
KERNEL_DEVICES = [GPU, *(["cpu"] if INTERPRETED else [])]
