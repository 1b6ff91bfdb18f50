"""Kernels called directly: the compiled kernel and the arguments of Triton's own launch, and its values."""

from __future__ import annotations

import os
import types

import pytest
import torch

triton = pytest.importorskip("triton")
# rows and columns: a one, what 16 divides and what it does not are compiled apart
SIZES = [(1, 1), (15, 16), (16, 17), (17, 15), (48, 32)]
ODD = 1  # numbers by which a view begins late, so that it lies on no 16 bytes
CONSTANTS = {"BIASED": True, "ROWS": 32, "COLS": 128}


def arguments(s, d, dtype, late, device):
    """Of the kernel of bias and GELU; the fourth is the output."""
    chance = torch.Generator().manual_seed(s + d)
    x = torch.randn(s * d + late, generator=chance).to(device, dtype)[late:].view(s, d)
    expert = torch.arange(s, device=device) % 3
    return x, torch.randn(3, d, generator=chance).to(device), expert, torch.zeros_like(x), s, d


def cases():
    kinds = [(torch.float32, 0), (torch.float32, ODD), (torch.bfloat16, 0)]
    return [(s, d, dtype, late) for dtype, late in kinds for s, d in SIZES]


@pytest.mark.gpu
def test_on_a_gpu_values_are_those_of_an_ordinary_launch():
    from holdfast.nn.kernels import experts
    from holdfast.nn.kernels.launch import _found, launch

    before = len(_found)
    for s, d, dtype, late in cases() + cases()[::-1]:  # each again after others
        args, grid = arguments(s, d, dtype, late, "cuda"), (triton.cdiv(s, 32), triton.cdiv(d, 128))
        experts._gelu[grid](*args, **CONSTANTS)
        wanted = args[3].clone()
        for _ in range(2):  # the second one directly
            args[3].zero_()
            launch(experts._gelu, grid, args[:4], *args[4:], **CONSTANTS)
            assert torch.equal(args[3], wanted), (s, d, dtype, late)
        biased = args[0].float() + args[1][args[2]]
        torch.testing.assert_close(args[3].float(), torch.nn.functional.gelu(biased), rtol=0.02, atol=0.02)
    assert len(_found) - before > 8  # other tests may have found a few
    assert all(_found.values()), f"Triton {triton.__version__} is not known here"


@pytest.fixture
def calls(monkeypatch):
    """What a driver without a device is told to launch, with kernels compiled for an H100."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("kernels are interpreted")
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    heard, loaded = [], []

    def load(name, *_):
        loaded.append(name)
        return f"module {len(loaded)}", f"{name} {len(loaded)}", 1, 0, 1024

    def run(x, y, z, stream, function, packed, told, enter, leave, *args):
        addresses = (arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args)
        heard.append((x, y, z, stream, function, packed, *addresses))

    device = types.SimpleNamespace(
        utils=types.SimpleNamespace(
            load_binary=load, unload_module=lambda _: None, get_device_properties=lambda _: {"max_shared_mem": 1 << 17}
        ),
        launcher_cls=lambda *_: run, get_current_device=lambda: 0, get_current_stream=lambda _: 7,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )  # fmt: skip
    monkeypatch.setattr(driver, "_active", device)
    monkeypatch.setattr("holdfast.nn.kernels.launch._found", {})
    return heard


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_a_kernel_is_called_with_what_triton_calls_it_with(calls):
    from holdfast.nn.kernels import experts, launch

    functions = set()
    made = [arguments(*each, "cpu") for each in cases()[::3] + cases()[::-3]]
    made += [(*made[0][:4], rows, 16) for rows in (2**31 - 1, 2**31, 2**31 + 1, -1, -16)]  # a number's type, too
    for args in made:
        launch.launch(experts._gelu, (3, 2), args[:4], *args[4:], **CONSTANTS)
        calls.clear()
        experts._gelu[(3, 2)](*args, **CONSTANTS)
        launch.launch(experts._gelu, (3, 2), args[:4], *args[4:], **CONSTANTS)
        assert len(calls) == 2
        assert calls[0] == calls[1], args[4:]
        functions.add(calls[0][4])
    assert 8 < len(functions) <= len(launch._found)
    assert all(launch._found.values())


def test_what_is_not_known_is_launched_by_triton(monkeypatch):
    from holdfast.nn.kernels import launch

    monkeypatch.setattr(launch, "_found", {})
    heard = []

    class Strange:
        def __getitem__(self, grid):
            return lambda *args, **named: heard.append((grid, args, named))

    function, x = Strange(), torch.zeros(3)
    for _ in range(3):
        launch.launch(function, (2,), (x,), 5, 0.5, SIZE=4)
    assert len(heard) == 3
    assert all(grid == (2,) and args[0] is x and named == {"SIZE": 4} for grid, args, named in heard)


def test_sizes_are_those_that_triton_counts():
    from holdfast.nn.kernels.launch import pieces, power_of_two

    lengths = range(1, 140)
    assert [pieces(n, size) for n in lengths for size in (1, 7, 32)] == [
        triton.cdiv(n, size) for n in lengths for size in (1, 7, 32)
    ]
    assert [power_of_two(n) for n in lengths] == [triton.next_power_of_2(n) for n in lengths]
