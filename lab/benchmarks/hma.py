"""Benchmark `hma`: a shared queue read against the published per-query read, and a training step against ERM.

b queries, m rows, d width
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from holdfast.methods.erm import ERM
from holdfast.methods.hma import HMA
from holdfast.nn.memory.block import BlockSettings, MemoryBlock
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.tuning import tune
from lab.benchmarks.harness import Result, one_thread, passes, peak, ratio, repeated
from lab.benchmarks.networks import classifier, random_images, trainer, vit

CLASSES = 47  # classes of DTD


def run(device: torch.device) -> list[Result]:
    """Measure a read of 512 queries, then training steps that tune the class token and the head, as published.

    With full tuning the momentum encoder adds a forward pass, a third of a plain step, so the target is higher. On a
    CPU the read is narrower with fewer rows, and the network has 4 layers.
    """
    results = [_read(device)]
    steps = [("head+cls", 1.10), ("full", 1.45)] if device.type == "cuda" else [("head+cls", 1.3), ("full", 1.6)]
    with one_thread():
        for mode, target in steps:
            candidate, plain = _steps(HMA, mode, device), _steps(ERM, mode, device)
            results.append(Result(f"hma-step/plain, {mode}", ratio(candidate, plain, device, rounds=15), bar=target))
            if device.type == "cuda" and mode == "head+cls":
                del candidate, plain
                high = [peak(partial(_steps, method, mode, device), device) for method in (HMA, ERM)]
                results.append(Result(f"hma-memory/plain, {mode}", high[0] / high[1], bar=1.14))
    return results


def _read(device: torch.device) -> Result:
    gpu = device.type == "cuda"
    rows, width = (2048, 832) if gpu else (1024, 208)
    torch.manual_seed(0)
    with device:
        block = MemoryBlock(width, BlockSettings(dropout=0.0)).eval()
        x, queue = torch.randn(512, width, requires_grad=True), torch.randn(rows, width)
        hidden, grad = torch.zeros(rows), torch.randn(512, width)

    def shared_read(x: Tensor) -> Tensor:
        return block(x, block.keys_values(queue), with_self=True, bias=hidden)[0]

    published = passes(block, lambda x: read_repeated(block, x, queue), x, grad)
    measured = ratio(published, passes(block, shared_read, x, grad), device, rounds=5 if gpu else 2)
    return Result("repeated-read/read", measured, bar=50, at_least=True)


def read_repeated(block: MemoryBlock, x: Tensor, queue: Tensor) -> Tensor:
    """Read (b, d) as published: build and project [x_i; rows] separately for every query."""
    b, (m, d) = len(x), queue.shape
    source = torch.cat([x[:, None], queue.expand(b, m, d)], dim=1)  # (b, 1 + m, d)
    both = block.key_value(block.norm_source(source)).view(b, 1 + m, 2, block.heads, -1)
    keys, values = both.permute(2, 0, 3, 1, 4)  # (b, h, 1 + m, q)
    query = block.query(block.norm_query(x)).view(b, block.heads, 1, -1)
    weights = (query @ keys.transpose(-1, -2) * block.scale).softmax(-1)  # (b, h, 1, 1 + m)
    state = x + (weights @ values).flatten(1)
    return state + block.feed(block.norm_out(state))


def _steps(method_class: type[HMA] | type[ERM], mode: str, device: torch.device) -> Callable[[], None]:
    """Training steps of ViT-B/32 on 128 images with 512 rows and 16 slots per class; a small ViT on a CPU."""
    gpu = device.type == "cuda"
    pixels, count, size = (224, 4, 128) if gpu else (96, 1, 32)
    width, depth, patch = (768, 12, 32) if gpu else (192, 4, 16)
    backbone, neck = vit(pixels, depth, width=width, patch=patch), width
    tune(backbone, mode)
    if method_class is HMA:
        neck = HeterogeneousMemory(width, CLASSES, real=4 * size, slots=16 if gpu else 4)
    model = classifier(backbone, neck, CLASSES, device)
    method = trainer(model, method_class, optimizer="sgd", lr=0.003, weight_decay=0.0)
    return repeated(partial(method.step, random_images(size, pixels, CLASSES, device)), count)
