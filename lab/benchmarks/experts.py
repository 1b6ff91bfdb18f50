"""Cost of expert layers: compared with a dense layer of equal work, a loop over masks, and networks without experts.

t tokens, e experts, k chosen, d width
"""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ViTConfig

from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import seeded
from holdfast.core.tape import tape
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.pretrained import layer_stack, module_from_config
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.experts.graft import ExpertsNeck
from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.experts.router import route
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from lab.benchmarks.harness import Result, attempt, busy, one_thread, peak, random_images, ratio, repeated

WIDTH, CLASSES = 384, 65  # of ViT-S/16; the number of classes of Office-Home
CPU_TARGETS = (1.6, 1.0, 1.8)
STEP_TARGETS = {1: 1.10, 2: 1.20}  # by experts per token
PREDICT_TARGET, MEMORY_TARGET = 1.20, 1.15
# as in the released code of GMoE: pairs beyond the capacity are dropped, and hidden units of experts at random
RELEASED = {"top": 1, "capacity": 1.5, "eval_capacity": 1.5, "dropout": 0.1, "form": "tutel"}
WARMUP = 3  # calls before a measurement: compilation and CUDA graph capture happen in the first ones
# options of torch.compile; recorded: the compiler captures CUDA graphs itself
MODES: dict[str, dict[str, Any]] = {"eager": {}, "compiled": {}, "recorded": {"triton.cudagraphs": True}}


def run(device: torch.device) -> list[Result]:
    """Measure 6 experts in two layers against the network without experts, in the same run and mode.

    A single layer: forward and backward pass with both balance losses, 12,608 tokens (64 images of 197) in bf16 on a
    GPU, 788 in fp32 on a CPU. The dense layer processes every token twice; the loop selects each expert's tokens by a
    mask. Networks: on a GPU training steps and predictions of ViT-S/16 on 160 images in bf16, eager, compiled, and
    compiled with CUDA graphs, GPU time of a step, and its memory; on a CPU a network of 4 layers, two with experts, so
    that a step has a third more products and Adam twice the weights.
    """
    gpu = device.type == "cuda"
    dense_target, loop_target, step_target = (None, None, None) if gpu else CPU_TARGETS
    torch.manual_seed(0)
    with device:
        layer = SparseMoE(WIDTH, 4 * WIDTH, nn.GELU()).train()
        ffn = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        u = torch.randn(12_608 if gpu else 788, WIDTH, requires_grad=True)  # (t, d)
        grad = torch.randn(u.shape)
    count, rounds = (8, 30) if gpu else (1, 15)
    sparse = _passes(layer, layer, u, grad, count)
    dense = _passes(ffn, lambda u: ffn(torch.cat([u, u])).view(2, *u.shape).mean(0), u, grad, count)
    loop = _passes(layer, partial(masked_loop, layer), u, grad, count)
    with one_thread():
        results = [
            Result("experts/plain layer", ratio(sparse, dense, device, rounds=rounds), bar=dense_target),
            Result("experts/loop over masks", ratio(sparse, loop, device, rounds=rounds), bar=loop_target),
        ]
        del sparse, dense, loop
        if gpu:
            return [*results, *_networks(device)]
        two = {"top": 2}
        results.append(Result("gmoe-step/vit-step", _compare(_steps, two, device), bar=step_target))
        results.append(Result("gmoe-predict/vit-predict", _compare(_predictions, two, device), bar=step_target))
    return results


def masked_loop(layer: SparseMoE, u: Tensor) -> Tensor:
    """Compute the layer (t, d) as it is often written: for every expert, on the tokens that a mask selects."""
    settings = layer.settings
    routing = route(layer.router, u, top=settings.top, gate=settings.gates, noise=settings.noise / settings.count)
    out = torch.zeros_like(u)
    assert layer.up_proj_bias is not None
    assert layer.down_proj_bias is not None
    for e in range(settings.count):
        token, choice = (routing.chosen == e).nonzero(as_tuple=True)
        hidden = layer.act_fn(F.linear(u[token], layer.up_proj[e], layer.up_proj_bias[e]))
        y = F.linear(hidden, layer.down_proj[e], layer.down_proj_bias[e])
        out = out.index_add(0, token, (y * routing.gates[token, choice, None]).to(out.dtype))
    return out


def _networks(device: torch.device) -> list[Result]:
    """Measure steps, predictions and memory on a GPU, with one and with two experts per token, then as released."""
    results = []
    for top, target in STEP_TARGETS.items():
        experts = {"top": top}
        for mode in MODES:
            step, predict = (partial(_compare, work, experts, device, mode) for work in (_steps, _predictions))
            results.append(attempt(f"gmoe-step/vit-step, {mode}, k={top}", step, bar=target))
            results.append(attempt(f"gmoe-predict/vit-predict, {mode}, k={top}", predict, bar=PREDICT_TARGET))
            if mode != "recorded":  # it runs the kernels of the compiled mode
                kernels = partial(_gpu_time, experts, device, mode)
                results.append(attempt(f"gmoe-kernels/vit-kernels, {mode}, k={top}", kernels, bar=target))
        memory = partial(_memory, experts, device)
        results.append(attempt(f"gmoe-memory/vit-memory, k={top}", memory, bar=MEMORY_TARGET))
    for work, name in ((_steps, "step"), (_predictions, "predict")):
        case = f"gmoe-released-{name}/vit-{name}, eager"
        results.append(attempt(case, partial(_compare, work, RELEASED, device), bar=None))
    return results


def _reset() -> None:
    """Free what earlier cases left on the device."""
    torch.compiler.reset()
    gc.collect()


def _compare(
    work: Callable[..., Callable[[], None]], experts: dict[str, Any], device: torch.device, mode: str = "eager"
) -> float:
    """Return the time of a network with experts divided by that of the network without, both in this mode."""
    _reset()
    gpu = device.type == "cuda"
    sparse, dense = work(experts, device, mode), work(None, device, mode)
    for _ in range(WARMUP if gpu else 1):
        sparse()
        dense()
    return ratio(sparse, dense, device, rounds=30 if gpu else 15)


def _gpu_time(experts: dict[str, Any], device: torch.device, mode: str) -> float:
    """Compare the time that the GPU itself is busy in a training step, independent of a slow host."""
    times = []
    for options in (experts, None):
        _reset()
        step = _steps(options, device, mode)
        for _ in range(WARMUP):
            step()
        times.append(busy(step, device))
    return times[0] / times[1]


def _memory(experts: dict[str, Any], device: torch.device) -> float:
    """Compare peak memory over enough steps that captured CUDA graphs are included."""
    _reset()
    with_experts, without = (
        peak(lambda options=options: repeated(_steps(options, device, "eager"), WARMUP), device)
        for options in (experts, None)
    )
    return with_experts / without


def _passes(
    part: nn.Module, forward: Callable[[Tensor], Tensor], u: Tensor, grad: Tensor, count: int
) -> Callable[[], None]:
    """Return forward and backward passes to the input and every parameter, in bf16 on a GPU."""
    leaves = (u, *part.parameters())

    def once() -> None:
        with tape() as side, torch.autocast(u.device.type, torch.bfloat16, enabled=u.is_cuda):
            out = forward(u)
        torch.autograd.grad(sum(side["loss/experts"], (out.float() * grad).sum()), leaves)

    return repeated(once, count)


def _network(experts: dict[str, Any] | None, device: torch.device, mode: str) -> tuple[Model, DomainBatch]:
    """Return ViT-S/16 and 160 images, or a small ViT on a CPU, with 6 experts of these settings in two layers."""
    gpu = device.type == "cuda"
    pixels, size = (224, 160) if gpu else (96, 16)
    config: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": 6, "intermediate_size": 4 * WIDTH}
    config |= {"num_hidden_layers": 12 if gpu else 4, "image_size": pixels, "patch_size": 16}
    with seeded(0, "init"):
        backbone = VisionTransformer(module_from_config(ViTConfig(**config)), name="vit", size=pixels)
        neck = NoNeck(WIDTH) if experts is None else ExpertsNeck(WIDTH, **{"count": 6, **experts})
        model = Model(backbone, neck, Linear(WIDTH, CLASSES), precision="bf16" if gpu else "fp32").to(device)
    if mode != "eager":  # layer by layer: equal layers are compiled once
        for layer in layer_stack(backbone.module):
            layer.compile(options=MODES[mode])
    return model, random_images(size, pixels, CLASSES, device)


def _steps(experts: dict[str, Any] | None, device: torch.device, mode: str) -> Callable[[], None]:
    """Return training steps with the balance loss and Adam."""
    model, batch = _network(experts, device, mode)
    optimizer = partial(Optimizer, OptimizerSettings(optimizer="adam", lr=5e-5))
    method = ERM(model, task=Classify(), optimizer=optimizer).train()
    return partial(_repeat, lambda: method.step(batch), 2 if device.type == "cuda" else 1, mode)


def _predictions(experts: dict[str, Any] | None, device: torch.device, mode: str) -> Callable[[], None]:
    model, batch = _network(experts, device, mode)
    model.eval()
    predict = torch.no_grad()(lambda: model(batch.x))
    return partial(_repeat, predict, 6 if device.type == "cuda" else 1, mode)


def _repeat(function: Callable[[], object], count: int, mode: str) -> None:
    for _ in range(count):
        if mode == "recorded":  # else every layer without gradient would begin a step and overwrite earlier outputs
            torch.compiler.cudagraph_mark_step_begin()
        function()
