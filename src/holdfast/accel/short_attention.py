"""Attention among few tokens, as in short texts, by one kernel per pass.

The kernels of torch are optimised for long sequences: for 48 texts of 52 tokens they take several times as long and
occupy all of the GPU, which many runs share. Transformers calls these by the name of an attention implementation. A
launch from Python takes longer than one from torch, so without dropout only steps that become a CUDA graph use them.
With dropout all steps do: the kernels draw their own random numbers, which must not depend on the mode of a step.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from holdfast.accel.registry import fused, kernels
from holdfast.core.tape import exporting

SHORT = "short_sdpa"
OTHERS = ("position_bias", "softcap", "cache")  # options of an attention that only transformers computes
MAX_TOKENS = 128  # a program holds the weights of all pairs of tokens
WIDTHS = (16, 32, 64)  # of a head


def use_short_attention(module: Any, types: Collection[str]) -> None:
    """Let a transformer compute attention among few tokens with custom kernels, and everything else as before.

    The code of the network must choose mask and attention by the name of the implementation, as it does since version 5
    of transformers. Only `types` of networks qualify, because others may compare the name of their implementation.
    """
    names, config = vars(sys.modules[type(module).__module__]), module.config
    chooses = "create_bidirectional_mask" in names and "ALL_ATTENTION_FUNCTIONS" in names
    if chooses and config.model_type in types and config._attn_implementation == "sdpa":
        register_short_attention()
        config._attn_implementation = SHORT


@cache
def register_short_attention() -> None:
    """Add the implementation to those of transformers, with the mask of `sdpa`, if this version can choose the mask."""
    from transformers import AttentionInterface

    with suppress(ImportError):
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

        AttentionInterface.register(SHORT, _forward)
        AttentionMaskInterface.register(SHORT, sdpa_mask)


def _forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Return the attention (b, t, h, d); the parameters are those of transformers."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if not causal and all(options.get(name) is None for name in OTHERS):
        out = short_attention(query, key, value, attention_mask, dropout=dropout, scale=scaling)
        if out is not None:
            return out.transpose(1, 2).contiguous(), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **options
    )


def short_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout: float, scale: float | None
) -> Tensor | None:
    """Return softmax(scale q k') v (b, h, t, d), with weights dropped at random; None where the kernels do not apply.

    A true value of the mask, which broadcasts to (b, 1, t, u), lets a query see a key.
    """
    if query.dim() != 4 or torch.compiler.is_compiling() or exporting():
        return None
    (b, h, t, d), u = query.shape, key.shape[2]
    same = key.shape == value.shape == (b, h, u, d) and query.dtype == key.dtype == value.dtype
    if not same or not 0 < min(t, u) <= max(t, u) <= MAX_TOKENS or d not in WIDTHS or not 0 <= dropout < 1:
        return None
    if (kernels if dropout else fused)("attention", query) is None:
        return None
    if mask is not None and (mask.dtype != torch.bool or (mask.dim() > 2 and mask.shape[-3] != 1)):
        return None
    seen = None if mask is None else mask.expand(b, 1, t, u)
    seed = torch.randint(2**31, (1,), device=query.device) if dropout else query.new_zeros(1, dtype=torch.long)
    return _Attention.apply(query, key, value, seen, seed, dropout, scale or d**-0.5)  # pyright: ignore


class _Attention(torch.autograd.Function):
    """Attention with its own gradients."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor, dropout: float, scale: float
    ) -> Tensor:
        return kernels("attention", query).attention(query, key, value, mask, seed, dropout=dropout, scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, dropout, scale = inputs
        ctx.save_for_backward(*tensors)
        ctx.options = {"dropout": dropout, "scale": scale}

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = kernels("attention", ctx.saved_tensors[0]).attention_gradients
        return *gradients(*grads, *ctx.saved_tensors, **ctx.options), None, None, None, None
