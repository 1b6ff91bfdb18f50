"""What a read of a memory costs beside a feed-forward layer d-4d-d on the same queries, forward and backward.

On a GPU bf16 and 4,096 queries; on a CPU fp32 and 512. b queries, d width
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.bench.harness import Result, captured, ratio
from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.memory.product_key import ProductKeyMemory

WIDTH = 768


def run(device: torch.device) -> list[Result]:
    """Two cases, 4 heads each: all of 1,024 slots; the best 32 of 1,048,576 on a GPU, of 65,536 on a CPU.

    On a GPU each is measured kernel by kernel, as Python asks for them, and as a recorded graph, which is the device's
    own time. The bar of the first is for the graph: asked for one by one, both sides wait for Python. That of the
    second is for kernel by kernel, as it is used.
    """
    gpu = device.type == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    torch.manual_seed(0)
    with device:  # large tables are drawn where they stay
        ffn = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(dtype)
        dense = KeyValueMemory(WIDTH).to(dtype)
        product = ProductKeyMemory(WIDTH, slots=1_048_576 if gpu else 65_536).to(dtype)
        z = torch.randn(4096 if gpu else 512, WIDTH, dtype=dtype, requires_grad=True)  # (b, d)
        grad = torch.randn(z.shape, dtype=dtype)
    count, rounds = (8, 30) if gpu else (1, 15)
    cases: list[tuple[str, nn.Module, Callable[[Tensor], Tensor], float | None, float | None]] = [
        ("dense-read/ffn", dense, lambda z: dense.read(z).content, None, 0.9),
        ("product-keys/ffn", product, lambda z: product.read(z).content, 4.0, None),
    ]
    found = []
    for name, part, forward, plain, recorded in cases:
        mine, reference = _passes(part, forward, z, grad, count), _passes(ffn, ffn, z, grad, count)
        measured = ratio(mine, reference, device, rounds=rounds)
        if not gpu:
            found.append(Result(name, measured, bar=plain or recorded))
            continue
        found.append(Result(f"{name}, kernel by kernel", measured, bar=plain))
        mine, reference = captured(mine, device), captured(reference, device)
        found.append(Result(f"{name}, recorded", ratio(mine, reference, device, rounds=rounds), bar=recorded))
    return found


def _passes(
    part: nn.Module, forward: Callable[[Tensor], Tensor], z: Tensor, grad: Tensor, count: int
) -> Callable[[], None]:
    """Forward and backward, to the input and every parameter, nothing kept."""
    learned = (z, *part.parameters())

    def go() -> None:
        for _ in range(count):
            torch.autograd.grad(forward(z), learned, grad)

    return go
