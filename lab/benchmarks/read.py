"""Benchmarks `read` and `recurrent`: memory reads against a feed-forward layer, a memory LSTM against torch's LSTM."""

from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.memory.product_key import ProductKeyMemory
from holdfast.nn.recurrent.layer import RecurrentLayer
from lab.benchmarks.harness import Result, busy, captured, one_thread, passes, ratio

WIDTH = 768
BATCH = 96  # examples of a training step


def run(device: torch.device) -> list[Result]:
    """Measure a read (4 heads, forward and backward) against a layer d-4d-d on the same queries.

    Cases: all of 1,024 slots; the best 32 of 1,048,576 slots on a GPU (bf16, 4,096 queries) or of 65,536 on a CPU
    (fp32, 512 queries). On a GPU each case runs eagerly and as a captured CUDA graph, which measures device time only.
    The target of the dense read applies to the graph, that of product keys to both, and to the time of the kernels with
    `updates=read`, whose sparse gradient no graph can contain. A last case compares a training step on 96 queries in
    fp32 that updates the values which the batch read with one that updates all values.
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
    if gpu:
        product.sparse = True
        work = passes(product, lambda z: product.read(z).content, z, grad, count), passes(ffn, ffn, z, grad, count)
        times = [tuple(busy(each, device) for each in work) for _ in range(5)]
        measured = median(candidate / reference for candidate, reference in times)
        results.append(Result("product-keys/ffn, updates=read, kernels", measured, bar=4.0))
    few = z.detach().float()[:BATCH]
    sparse, full = (_steps(updates, few, gpu) for updates in ("read", "all"))
    return [*results, Result("product-keys step, updates=read/all", ratio(sparse, full, device, rounds=5), bar=None)]


def _steps(updates: str, z: Tensor, gpu: bool) -> Callable[[], None]:
    """Return training steps of a product-key memory with AdamW."""
    torch.manual_seed(0)
    with z.device:
        memory = ProductKeyMemory(WIDTH, slots=1_048_576 if gpu else 65_536, updates=updates)
    optimizer = Optimizer(OptimizerSettings(), list(memory.parameters()))
    return lambda: optimizer.minimize(memory.read(z).content.square().mean())


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
