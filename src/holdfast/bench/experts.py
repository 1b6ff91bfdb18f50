"""What experts cost: their dispatch beside a plain layer of the same work and beside a loop over masks; whole networks.

t tokens, e experts, k chosen, d width
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ViTConfig

from holdfast.bench.harness import Result, attempt, busy, one_thread, peak, ratio
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import seeded
from holdfast.core.tape import tape
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.pretrained import layer_stack, module_from_config
from holdfast.nn.backbones.vit import VisionTransformer
from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.experts.router import route
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify

WIDTH, CLASSES = 384, 65  # of ViT-S/16; as many classes as Office-Home has
CPU_BARS = (1.6, 1.0, 1.8)
STEP_BARS = {1: 1.10, 2: 1.20}  # by the experts a token goes to
PREDICT_BAR, MEMORY_BAR = 1.20, 1.15
WARM = 3  # calls before anything is measured: a compiler works in the first ones
# recorded: a GPU replays what a compiler made, and a host asks for a layer at once
MODES: dict[str, dict[str, Any]] = {"eager": {}, "compiled": {}, "recorded": {"triton.cudagraphs": True}}


def run(device: torch.device) -> list[Result]:
    """6 experts in two layers against the plain network, in the same run and mode.

    A layer by itself: forward and backward with both losses, on a GPU 12,608 tokens (64 images of 197) in bf16, on a
    CPU 788 in fp32. The plain layer does the same work on every token twice. The loop finds each expert's tokens by a
    mask. Then whole networks: on a GPU training steps and predictions of ViT-S/16 on 160 images in bf16, eager,
    compiled, and compiled with recorded graphs, the kernels of a step alone, and its memory. On a CPU a small network
    of 4 layers, of which two have experts, so that a step has a third more products, and Adam twice the weights.
    """
    gpu = device.type == "cuda"
    plain_bar, loop_bar, step_bar = (None, None, None) if gpu else CPU_BARS
    torch.manual_seed(0)
    with device:
        layer = SparseMoE(WIDTH, 4 * WIDTH, nn.GELU()).train()
        ffn = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        u = torch.randn(12_608 if gpu else 788, WIDTH, requires_grad=True)  # (t, d)
        grad = torch.randn(u.shape)
    count, rounds = (8, 30) if gpu else (1, 15)
    mine = _passes(layer, layer, u, grad, count)
    plain = _passes(ffn, lambda u: ffn(torch.cat([u, u])).view(2, *u.shape).mean(0), u, grad, count)
    loop = _passes(layer, partial(masked_loop, layer), u, grad, count)
    with one_thread():
        found = [
            Result("experts/plain layer", ratio(mine, plain, device, rounds=rounds), bar=plain_bar),
            Result("experts/loop over masks", ratio(mine, loop, device, rounds=rounds), bar=loop_bar),
        ]
        del mine, plain, loop
        if gpu:
            return [*found, *_whole(device)]
        found.append(Result("gmoe-step/vit-step", _against(_steps, 2, device), bar=step_bar))
        found.append(Result("gmoe-predict/vit-predict", _against(_predictions, 2, device), bar=step_bar))
    return found


def masked_loop(layer: SparseMoE, u: Tensor) -> Tensor:
    """The same layer (t, d) as it is often written: expert after expert, on the tokens that a mask finds."""
    options = layer.settings
    noise = options.noise / options.count
    found = route(layer.router, u, top=options.top, renormalise=True, noise=noise)
    out = torch.zeros_like(u)
    assert layer.up_proj_bias is not None
    assert layer.down_proj_bias is not None
    for e in range(options.count):
        token, choice = (found.chosen == e).nonzero(as_tuple=True)
        hidden = layer.act_fn(F.linear(u[token], layer.up_proj[e], layer.up_proj_bias[e]))
        y = F.linear(hidden, layer.down_proj[e], layer.down_proj_bias[e])
        out = out.index_add(0, token, (y * found.gates[token, choice, None]).to(out.dtype))
    return out


def _whole(device: torch.device) -> list[Result]:
    """Steps, predictions and memory on a GPU, for one and for two experts a token."""
    found = []
    for top, bar in STEP_BARS.items():
        for mode in MODES:
            step, predict = (partial(_against, work, top, device, mode) for work in (_steps, _predictions))
            found.append(attempt(f"gmoe-step/vit-step, {mode}, k={top}", step, bar=bar))
            found.append(attempt(f"gmoe-predict/vit-predict, {mode}, k={top}", predict, bar=PREDICT_BAR))
            if mode != "recorded":  # its kernels are those that were compiled
                kernels = partial(_kernels, top, device, mode)
                found.append(attempt(f"gmoe-kernels/vit-kernels, {mode}, k={top}", kernels, bar=bar))
        memory = partial(_memory, top, device)
        found.append(attempt(f"gmoe-memory/vit-memory, k={top}", memory, bar=MEMORY_BAR))
    return found


def _against(work: Callable[..., Callable[[], None]], top: int, device: torch.device, mode: str = "eager") -> float:
    """A network with experts over the plain one, both in this mode; nothing of other cases is left on the device."""
    torch.compiler.reset()
    gc.collect()
    mine, plain = work(top, device, mode), work(0, device, mode)
    for _ in range(WARM if device.type == "cuda" else 1):
        mine()
        plain()
    return ratio(mine, plain, device, rounds=30 if device.type == "cuda" else 15)


def _kernels(top: int, device: torch.device, mode: str) -> float:
    """The same of the GPU's own time in a training step, which a slow host does not change."""
    found = []
    for each in (top, 0):
        torch.compiler.reset()
        gc.collect()
        step = _steps(each, device, mode)
        for _ in range(WARM):
            step()
        found.append(busy(step, device))
    return found[0] / found[1]


def _memory(top: int, device: torch.device) -> float:
    torch.compiler.reset()
    gc.collect()
    mine, plain = (peak(partial(_warmed, each, device), device) for each in (top, 0))
    return mine / plain


def _warmed(top: int, device: torch.device) -> Callable[[], None]:
    """As many steps as a layer takes to record itself, and more: what it holds from then on counts."""
    step = _steps(top, device, "eager")

    def go() -> None:
        for _ in range(WARM):
            step()

    return go


def _passes(
    part: nn.Module, forward: Callable[[Tensor], Tensor], u: Tensor, grad: Tensor, count: int
) -> Callable[[], None]:
    """Forward and backward, to the input and every parameter, in bf16 on a GPU; nothing kept."""
    learned = (u, *part.parameters())

    def go() -> None:
        for _ in range(count):
            with tape() as side, torch.autocast(u.device.type, torch.bfloat16, enabled=u.is_cuda):
                out = forward(u)
            loss = (out.float() * grad).sum()
            for extra in side["loss/experts"]:
                loss = loss + extra
            torch.autograd.grad(loss, learned)

    return go


def _network(top: int, device: torch.device, mode: str) -> tuple[Model, DomainBatch]:
    """ViT-S/16 with 160 images, with experts in two layers or without (top 0); a small ViT on a CPU."""
    gpu = device.type == "cuda"
    pixels, size = (224, 160) if gpu else (96, 16)
    config: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": 6, "intermediate_size": 4 * WIDTH}
    config |= {"num_hidden_layers": 12 if gpu else 4, "image_size": pixels, "patch_size": 16}
    experts = {"count": 6, "top": top} if top else None
    with seeded(0, "init"):
        backbone = VisionTransformer(module_from_config(ViTConfig(**config)), name="vit", size=pixels, experts=experts)
        model = Model(backbone, NoNeck(WIDTH), Linear(WIDTH, CLASSES), precision="bf16" if gpu else "fp32").to(device)
    if mode != "eager":  # layer by layer: those alike are compiled once
        for layer in layer_stack(backbone.module):
            layer.compile(options=MODES[mode])
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size, 3, pixels, pixels), generator=chance).to(torch.uint8)
    y = torch.randint(0, CLASSES, (size,), generator=chance)
    return model, DomainBatch(images.to(device), y.to(device), (0,), (size,))


def _steps(top: int, device: torch.device, mode: str) -> Callable[[], None]:
    """Training steps, the balance loss and Adam included."""
    model, batch = _network(top, device, mode)
    method = ERM(
        model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(optimizer="adam", lr=5e-5))
    ).train()
    count = 2 if device.type == "cuda" else 1

    def go() -> None:
        for _ in range(count):
            _begin(mode)
            method.step(batch)

    return go


def _predictions(top: int, device: torch.device, mode: str) -> Callable[[], None]:
    model, batch = _network(top, device, mode)
    model.eval()
    count = 6 if device.type == "cuda" else 1

    def go() -> None:
        with torch.no_grad():
            for _ in range(count):
                _begin(mode)
                model(batch.x)

    return go


def _begin(mode: str) -> None:
    """Where nothing learns, each call of a recorded layer would be a step, and overwrite what the one before gave."""
    if mode == "recorded":
        torch.compiler.cudagraph_mark_step_begin()
