"""Benchmarks `read` and `recurrent`: memory reads against a feed-forward layer, a memory LSTM against torch's LSTM."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.memory.product_key import ProductKeyMemory
from holdfast.nn.recurrent.layer import RecurrentLayer
from lab.benchmarks.harness import Result, captured, one_thread, passes, ratio

WIDTH = 768


def run(device: torch.device) -> list[Result]:
    """Measure a read (4 heads, forward and backward) against a layer d-4d-d on the same queries.

    Cases: all of 1,024 slots; the best 32 of 1,048,576 slots on a GPU (bf16, 4,096 queries) or of 65,536 on a CPU
    (fp32, 512 queries). On a GPU each case runs eagerly and as a captured CUDA graph, which measures device time only.
    The target of the dense read applies to the graph, that of product keys to both.
    """
    gpu = device.type == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    torch.manual_seed(0)
    with device:  # initialise large tables on the device
        ffn = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(dtype)
        dense = KeyValueMemory(WIDTH).to(dtype)
        product = ProductKeyMemory(WIDTH, slots=1_048_576 if gpu else 65_536).to(dtype)
        z = torch.randn(4096 if gpu else 512, WIDTH, dtype=dtype, requires_grad=True)  # (b, d)
        grad = torch.randn(z.shape, dtype=dtype)
    count, rounds = (8, 30) if gpu else (1, 15)
    cases: list[tuple[str, nn.Module, Callable[[Tensor], Tensor], float | None, float | None]] = [
        ("dense-read/ffn", dense, lambda z: dense.read(z).content, None, 0.9),
        ("product-keys/ffn", product, lambda z: product.read(z).content, 4.0, 4.0),
    ]
    results = []
    for name, module, forward, eager_target, graph_target in cases:
        candidate, reference = passes(module, forward, z, grad, count), passes(ffn, ffn, z, grad, count)
        measured = ratio(candidate, reference, device, rounds=rounds)
        if not gpu:
            results.append(Result(name, measured, bar=eager_target or graph_target))
            continue
        results.append(Result(f"{name}, eager", measured, bar=eager_target))
        candidate, reference = captured(candidate, device), captured(reference, device)
        measured = ratio(candidate, reference, device, rounds=rounds)
        results.append(Result(f"{name}, CUDA graph", measured, bar=graph_target))
    return results


LSTM_WIDTH, ROWS, STEPS = 300, 32, 30
LSTM_TARGETS = {"cpu": {500: 2.0}, "cuda": {500: 1.0, 2500: 1.5}}


def run_recurrent(device: torch.device) -> list[Result]:
    """Measure a bidirectional LSTM (width 300, fp32, 32 rows of 30 steps) with a bank, per bank size."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, STEPS, LSTM_WIDTH, device=device, requires_grad=True)  # (b, t, e)
    grad = torch.randn(ROWS, STEPS, 2 * LSTM_WIDTH, device=device)
    lengths = torch.full((ROWS,), STEPS)
    plain = nn.LSTM(LSTM_WIDTH, LSTM_WIDTH, batch_first=True, bidirectional=True).to(device)
    reference = passes(plain, lambda x: plain(x)[0], x, grad)
    results = []
    with one_thread():
        for slots, target in LSTM_TARGETS[device.type].items():
            layer = RecurrentLayer(LSTM_WIDTH, LSTM_WIDTH, slots=slots).to(device)
            candidate = passes(layer, lambda x, layer=layer: layer(x, lengths).padded(), x, grad)
            measured = ratio(candidate, reference, device, rounds=30)
            results.append(Result(f"memory-lstm/lstm, {slots} slots", measured, bar=target))
    return results
