"""What experts cost: their dispatch beside a plain layer of the same work and beside a loop over masks; a whole step.

t tokens, e experts, k chosen, d width
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ViTConfig

from holdfast.bench.harness import Result, one_thread, ratio
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import seeded
from holdfast.core.tape import tape
from holdfast.methods.descent import Descent, Recipe
from holdfast.methods.erm import ERM
from holdfast.nn.backbones.pretrained import bare_module
from holdfast.nn.backbones.vit import VisionTransformer
from holdfast.nn.experts.layer import Options, SparseMoE
from holdfast.nn.experts.router import route
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify

WIDTH, CLASSES = 384, 65  # of ViT-S/16; as many classes as Office-Home has
CPU_BARS = (1.6, 1.0, 1.8)


def run(device: torch.device) -> list[Result]:
    """6 experts, 2 of them a token, forward and backward with both losses; then a step of GMoE against one of its ViT.

    On a GPU 12,608 tokens (64 images of 197) in bf16; on a CPU 788 in fp32, and a small network of 4 layers.
    The plain layer does the same work on every token twice. The loop finds each expert's tokens by a mask. In the small
    network two layers of four have experts, so that a step has a third more products, and Adam twice the weights.
    """
    gpu = device.type == "cuda"
    plain_bar, loop_bar, step_bar = (None, None, None) if gpu else CPU_BARS
    torch.manual_seed(0)
    with device:
        layer = SparseMoE(WIDTH, 4 * WIDTH, nn.GELU(), options=Options()).train()
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
        steps = _steps(6, device), _steps(0, device)
        found.append(Result("gmoe-step/vit-step", ratio(*steps, device, rounds=rounds), bar=step_bar))
    return found


def masked_loop(layer: SparseMoE, u: Tensor) -> Tensor:
    """The same layer (t, d) as it is often written: expert after expert, on the tokens that a mask finds."""
    options = layer.options
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


def _steps(experts: int, device: torch.device) -> Callable[[], None]:
    """Training steps of ViT-S/16 on 160 images with or without experts in two layers; a small ViT on a CPU."""
    gpu = device.type == "cuda"
    pixels, count, size = (224, 2, 160) if gpu else (96, 1, 16)
    config: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": 6, "intermediate_size": 4 * WIDTH}
    config |= {"num_hidden_layers": 12 if gpu else 4, "image_size": pixels, "patch_size": 16}
    with seeded(0, "init"):
        backbone = VisionTransformer(bare_module(ViTConfig(**config)), name="vit", size=pixels, experts=experts)
        head = Linear(WIDTH, CLASSES)
        model = Model(backbone, NoNeck(WIDTH), head, precision="bf16" if gpu else "fp32").to(device)
    method = ERM(model, task=Classify(), optimizer=partial(Descent, Recipe(optimizer="adam", lr=5e-5))).train()
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size, 3, pixels, pixels), generator=chance).to(torch.uint8)
    y = torch.randint(0, CLASSES, (size,), generator=chance)
    batch = DomainBatch(images.to(device), y.to(device), (0,), (size,))

    def go() -> None:
        for _ in range(count):
            method.step(batch)

    return go
