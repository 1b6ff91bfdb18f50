"""Benchmark `gmap`: a layer and a training step with a general memory against the plain ones.

b texts, t tokens, d width
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig

from holdfast.core.inputs import Tokens
from holdfast.nn.backbones.companion import FrozenModule, GeneralEncoder
from holdfast.nn.backbones.pretrained import layer_stack, module_from_config
from holdfast.nn.graft.attention import MemoryStates, attend_to, insert_attention
from holdfast.nn.memory.general import GeneralMemory, plan_reads
from lab.benchmarks.harness import Result, one_thread, ratio


def run(device: torch.device) -> list[Result]:
    """Measure BERT-base on 32 texts of 256 tokens in bf16 on a GPU, MiniLM's shape on 8 texts of 64 tokens on a CPU.

    A layer with memory projects the memory to keys and values (a seventh more products) and attends to twice the
    number of tokens. A step with a chunk-gated memory has one more forward pass, a third of a plain step; a memory of
    one layer with cached states has none.
    """
    gpu = device.type == "cuda"
    with one_thread():
        layers = ratio(*_layers(device), device, rounds=30)
        results = [Result("layer with memory/plain layer", layers, bar=None if gpu else 1.5)]
        plain = _step(device)
        cases = (("chunk-gated", 0, 1.5 if gpu else 1.6), ("single, cached states", 4096, 1.08 if gpu else 1.3))
        for name, cache, target in cases:
            candidate = _step(device, name.partition(",")[0], cache)
            measured = ratio(candidate, plain, device, rounds=20 if gpu else 8)
            results.append(Result(f"gmap-step/plain step, {name}", measured, bar=target))
    return results


def _network(device: torch.device) -> Any:
    width, depth = (768, 12) if device.type == "cuda" else (384, 6)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=depth, num_attention_heads=12, intermediate_size=4 * width, vocab_size=1000
    )
    torch.manual_seed(0)
    network: Any = module_from_config(config)
    return network.to(device).train()


def _tokens(device: torch.device) -> Tokens:
    b, t = (32, 256) if device.type == "cuda" else (8, 64)
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (b, t), generator=rng)
    mask = torch.arange(t) < torch.randint(t // 2, t + 1, (b, 1), generator=rng)
    return Tokens(ids.to(device), mask.to(device))


def _autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def _layers(device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
    """Forward and backward pass of one layer with and without a memory."""
    network, x = _network(device), _tokens(device)
    layer = layer_stack(network)[0]
    other = copy.deepcopy(network)
    insert_attention(layer_stack(other), [0])
    with_memory = layer_stack(other)[0]
    with device:
        states = torch.randn(*x.ids.shape, network.config.hidden_size, requires_grad=True)
        memory, grad = torch.randn_like(states.detach()), torch.randn_like(states.detach())
    mask = x.mask[:, None, None, :]

    def passes(module: Any) -> None:
        with _autocast(device), attend_to(MemoryStates({0: memory})):
            out: Tensor = module(states, mask)
        torch.autograd.grad(out, (states, *module.parameters()), grad)

    return lambda: passes(with_memory), lambda: passes(layer)


def _step(device: torch.device, strategy: str = "", cache: int = 0) -> Callable[[], None]:
    """Training step of a network alone, or with a frozen copy as memory whose states may fill `cache` MiB."""
    network, x = _network(device), _tokens(device)
    memory: GeneralMemory | None = None
    if strategy:
        second = GeneralEncoder(FrozenModule(_network(device)), cache=cache)
        depth = second.depth
        memory = GeneralMemory(network, second, plan_reads(strategy, depth=depth, general=depth)).to(device)
    parameters = [*network.parameters(), *(() if memory is None else memory.parameters())]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def states() -> Tensor:
        return network(input_ids=x.ids, attention_mask=x.mask.long()).last_hidden_state

    def go() -> None:
        with _autocast(device):
            out = states() if memory is None else memory(states, x)
        out[:, 0].float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return go
