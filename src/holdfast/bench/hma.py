"""Benchmark `hma`: a shared queue read against the published per-query read, and a training step against ERM.

b queries, m rows, d width
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import ViTConfig

from holdfast.bench.harness import Result, one_thread, peak, ratio
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import seeded
from holdfast.methods.base import Method
from holdfast.methods.erm import ERM
from holdfast.methods.hma import HMA
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.pretrained import module_from_config
from holdfast.nn.backbones.vit import VisionTransformer
from holdfast.nn.heads import Linear
from holdfast.nn.memory.block import BlockSettings, MemoryBlock
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.model import Model, tune
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify

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
    inputs = (x, *block.parameters())

    def once() -> None:
        out, _ = block(x, block.keys_values(queue), with_self=True, bias=hidden)
        torch.autograd.grad(out, inputs, grad)

    def repeated() -> None:
        torch.autograd.grad(read_repeated(block, x, queue), inputs, grad)

    return Result("repeated-read/read", ratio(repeated, once, device, rounds=5 if gpu else 2), bar=50, at_least=True)


def read_repeated(block: MemoryBlock, x: Tensor, queue: Tensor) -> Tensor:
    """Read (b, d) as published: build and project [x_i; rows] separately for every query."""
    b, (m, d) = len(x), queue.shape
    source = torch.cat([x[:, None], queue.expand(b, m, d)], dim=1)  # (b, 1 + m, d)
    both = block.key_value(block.norm_source(source)).view(b, 1 + m, 2, block.heads, -1)
    keys, values = both.permute(2, 0, 3, 1, 4)  # (b, h, 1 + m, q)
    query = block.query(block.norm_query(x)).view(b, block.heads, 1, -1)
    weights = (query @ keys.transpose(-1, -2) * block.scale).softmax(-1)  # (b, h, 1, 1 + m)
    state = block.residual(x) + block.out((weights @ values).flatten(1))
    return state + block.feed(block.norm_out(state))


def _steps(method_class: type[HMA] | type[ERM], mode: str, device: torch.device) -> Callable[[], None]:
    """Training steps of ViT-B/32 on 128 images with 512 rows and 16 slots per class; a small ViT on a CPU."""
    gpu = device.type == "cuda"
    pixels, count, size = (224, 4, 128) if gpu else (96, 1, 32)
    with seeded(0, "init"):
        config = ViTConfig(
            hidden_size=768 if gpu else 192,
            num_hidden_layers=12 if gpu else 4,
            num_attention_heads=12 if gpu else 3,
            intermediate_size=3072 if gpu else 768,
            image_size=pixels,
            patch_size=32 if gpu else 16,
        )
        backbone = VisionTransformer(module_from_config(config), name="vit", size=pixels)
        tune(backbone, mode)
        build_neck = partial(HeterogeneousMemory, classes=CLASSES, real=4 * size, slots=16 if gpu else 4)
        neck = build_neck(backbone.width) if method_class is HMA else NoNeck(backbone.width)
        model = Model(backbone, neck, Linear(neck.width, CLASSES)).to(device)
    settings = OptimizerSettings(optimizer="sgd", lr=0.003, weight_decay=0.0)
    method: Method = method_class(model, task=Classify(), optimizer=partial(Optimizer, settings)).to(device).train()
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size, 3, pixels, pixels), generator=rng).to(torch.uint8)
    y = torch.randint(0, CLASSES, (size,), generator=rng)
    batch = DomainBatch(images.to(device), y.to(device), (0,), (size,))

    def go() -> None:
        for _ in range(count):
            method.step(batch)

    return go
