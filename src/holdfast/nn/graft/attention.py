"""Memory attention: chosen layers of a transformer also attend to a memory, with their own projections.

Shapes: b batch, t tokens, h heads, d width, q head width.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.tape import ScopedValue, is_recording, record

ATTENTIONS = ("memory", "cross", "gate")
ROWS = 32  # texts whose attention scores are in memory at once when their mass is recorded


@dataclass(frozen=True, slots=True)
class MemoryStates:
    """Memories that the layers read in one forward pass, by layer, counted from 0."""

    memory: Mapping[int, Tensor]  # (b, t, d), one row per token of the layer
    visible: Tensor | None = None  # (b, t) bool: memory tokens that exist; default: those that the layer sees
    share: Mapping[int, Tensor] = field(default_factory=dict)  # (h,) memory share of `gate`, before the sigmoid
    real: Tensor | None = None  # (b, t) non-padding tokens, over which the attention to the memory is averaged


_active = ScopedValue[MemoryStates]()
attend_to = _active.bind  # context in which memory attention reads these states; nothing is stored on a module


@dataclass(frozen=True, slots=True)
class Family:
    """Attribute names of a self-attention class of transformers."""

    projections: tuple[str, ...]  # query, key, value; or one projection for all three
    heads: str
    dropout: str
    out: tuple[str, ...] = ()  # modules applied to the concatenated heads
    norm: str = ""  # the layer's norm before attention, which the memory passes too


_BERT = Family(("query", "key", "value"), "num_attention_heads", "dropout")
FAMILIES = {
    **{f"{name}SelfAttention": _BERT for name in ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "Ernie")},
    "Data2VecTextSelfAttention": _BERT,
    "MPNetSelfAttention": Family(("q", "k", "v"), "num_attention_heads", "dropout", ("o",)),
    "DistilBertSelfAttention": Family(("q_lin", "k_lin", "v_lin"), "n_heads", "dropout", ("out_lin",)),
    "GPT2Attention": Family(("c_attn",), "num_heads", "attn_dropout", ("c_proj", "resid_dropout"), norm="ln_1"),
}


class MemoryAttention(nn.Module):
    """Self-attention that also reads a memory; its submodules are those of the plain attention, under their names.

    memory: softmax(Q [K; Mk]^T) [V; Mv]. cross: the output of self-attention queries the memory, whose content
    replaces it. gate: (1 - s) self-attention + s memory attention with a learned share s per head.
    """

    def __init__(self, plain: nn.Module, family: Family, norm: nn.Module | None, *, place: int, attention: str) -> None:
        super().__init__()
        assert not list(plain.parameters(recurse=False))
        for name, module in plain.named_children():
            self.add_module(name, module)
        self.family, self.place, self.attention = family, place, attention
        self.plain = (plain, norm)  # in a tuple: not registered as submodules a second time
        self.heads = int(getattr(plain, family.heads))
        attributes = vars(plain)
        self.causal = bool(attributes.get("is_causal", False))
        self.scale: float | None = attributes.get("scaling")
        self.number: int = attributes.get("layer_idx") or 0
        self.signature = inspect.signature(plain.forward)
        self.train(plain.training)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        arguments = self.signature.bind(*args, **kwargs).arguments
        active, states = _active.value, arguments["hidden_states"]  # (b, t, d)
        if active is None:
            raise BadInput("memory attention was called without a memory: call it inside `attend_to`, or ungraft first")
        past = arguments.get("past_key_values")
        if past is not None and past.get_seq_length(self.number) > 0:
            raise BadInput("memory attention needs complete texts, without past_key_values: call with use_cache=False")
        memory, norm = active.memory[self.place].to(states.dtype), self.plain[1]
        query, keys, values = self._project(states, memory if norm is None else norm(memory))
        mask, bias = arguments.get("attention_mask"), arguments.get("position_bias")
        own_mask, memory_mask = _masks(mask, bias, active.visible, states, self.causal)
        drop: nn.Module = getattr(self, self.family.dropout)
        options = {"dropout_p": drop.p if self.training else 0.0, "scale": self.scale}
        if self.attention == "memory":
            both = None
            if own_mask is not None and memory_mask is not None:
                both = torch.cat([own_mask.expand_as(memory_mask), memory_mask], dim=-1)
            if is_recording() and not self.training:
                _record_mass(_memory_mass(query, keys, both, self.scale), active.real)
            mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=both, **options)  # (b, h, t, q)
        else:
            own, other = zip(keys.chunk(2, dim=2), values.chunk(2, dim=2), strict=True)  # keys and values of each
            plain = F.scaled_dot_product_attention(query, *own, attn_mask=own_mask, **options)
            query = plain if self.attention == "cross" else query
            mixed = F.scaled_dot_product_attention(query, *other, attn_mask=memory_mask, **options)
            share = torch.ones_like(query[0, :, :1, :1])  # (h, 1, 1)
            if self.attention == "gate":
                share = active.share[self.place].sigmoid().to(plain.dtype)[:, None, None]
                mixed = torch.lerp(plain, mixed, share)
            if is_recording() and not self.training:
                _record_mass(share[..., 0].detach().expand(query.shape[:3]), active.real)
        out = mixed.transpose(1, 2).flatten(2)  # (b, t, d)
        for name in self.family.out:
            out = getattr(self, name)(out)
        return out, None

    def _project(self, states: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (b, h, t, q) of the states, and keys and values (b, h, 2t, q) of states, then memory."""
        projections = [getattr(self, name) for name in self.family.projections]
        if len(projections) == 3:
            both = torch.cat([states, memory], dim=1)  # (b, 2t, d)
            projected = [projections[0](states), projections[1](both), projections[2](both)]
        else:
            d, joint = states.shape[-1], projections[0]  # one weight (d, 3d), of which a memory needs the last 2d
            query, *own = joint(states).split(d, dim=-1)
            other = F.linear(memory, joint.weight[:, d:].t(), joint.bias[d:]).split(d, dim=-1)
            projected = [query, *(torch.cat([a, b], dim=1) for a, b in zip(own, other, strict=True))]
        query, keys, values = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in projected)
        return query, keys, values


def _masks(
    mask: Tensor | None, bias: Tensor | None, visible: Tensor | None, states: Tensor, causal: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the masks for the tokens and for the memory: the same positions, without invisible memory tokens."""
    if mask is not None and mask.dim() != 4:
        raise BadInput("memory attention needs attn_implementation sdpa or eager: load the network with one of them")
    if mask is None and causal:
        t = states.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool, device=states.device).tril()[None, None]
    if bias is not None and mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
    mask = mask if bias is None else bias
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(states.dtype)
    if visible is None:
        return mask, mask
    columns = visible[:, None, None, :]  # (b, 1, 1, t)
    if mask is None:
        return torch.ones_like(columns), columns
    return mask, mask & columns if mask.dtype == torch.bool else mask.masked_fill(~columns, -torch.inf)


def _record_mass(mass: Tensor, real: Tensor | None) -> None:
    """Record the attention mass (b, h, t) on the memory, and its mean over the real tokens (b, t)."""
    record("general/mass", mass)
    weights = torch.ones_like(mass[:, 0]) if real is None else real.to(mass.dtype)
    record("stat/general/attention", (mass.mean(1) * weights).sum() / weights.sum())


@torch.no_grad()
def _memory_mass(query: Tensor, keys: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Return the attention mass (b, h, t) that each token gives to the memory, a few texts at a time."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    pieces = []
    for rows in torch.arange(len(query), device=query.device).split(ROWS):
        scores = query[rows] @ keys[rows].transpose(-1, -2) * factor
        if mask is not None:
            hidden = mask[rows] if len(mask) == len(query) else mask
            scores = scores.masked_fill(~hidden, -torch.inf) if mask.dtype == torch.bool else scores + hidden
        blind = (scores == -torch.inf).all(-1, keepdim=True)  # padding that sees nothing
        weights = scores.float().softmax(-1).masked_fill(blind, 0.0)
        pieces.append(weights[..., keys.shape[2] // 2 :].sum(-1))
    return torch.cat(pieces)


def family_of(layer: nn.Module) -> tuple[str, Family]:
    """Return the name of a layer's self-attention module and its family."""
    for name, module in layer.named_modules():
        if isinstance(module, MemoryAttention):
            raise BadInput("this layer reads a memory already: ungraft it first")
        for kind in type(module).__mro__:
            if kind.__name__ in FAMILIES:
                return name, FAMILIES[kind.__name__]
    known = ", ".join(kind.removesuffix("SelfAttention").removesuffix("Attention") for kind in FAMILIES)
    raise BadInput(f"{type(layer).__name__} has no supported self-attention to read a memory with: use one of {known}")


def is_causal(layers: nn.ModuleList) -> bool:
    """Return whether a token sees only earlier tokens."""
    name, _ = family_of(layers[0])
    return bool(vars(layers[0].get_submodule(name)).get("is_causal", False))


def insert_attention(layers: nn.ModuleList, places: Iterable[int], *, attention: str = "memory") -> None:
    """Let these layers, counted from 0, read a memory; no parameter is added, moved or renamed."""
    for place in places:
        name, family = family_of(layers[place])
        above, _, leaf = name.rpartition(".")
        norm = layers[place].get_submodule(family.norm) if family.norm else None
        plain = layers[place].get_submodule(name)
        _check_equivalent(plain, MemoryAttention(plain, family, None, place=place, attention="memory"))
        replacement = MemoryAttention(plain, family, norm, place=place, attention=attention)
        setattr(layers[place].get_submodule(above), leaf, replacement)


def remove_attention(layers: nn.ModuleList) -> None:
    """Restore the plain attention with its current weights."""
    for parent in list(layers.modules()):
        for leaf, module in list(parent.named_children()):
            if isinstance(module, MemoryAttention):
                setattr(parent, leaf, module.plain[0].train(module.training))


@torch.no_grad()
def _check_equivalent(plain: nn.Module, replacement: MemoryAttention) -> None:
    """Raise an error unless the replacement equals the plain attention when its memory is hidden."""
    first = next(plain.parameters())
    mode, d = plain.training, next(p.shape[0] for p in plain.parameters() if p.dim() == 2)
    states = torch.linspace(-1.0, 1.0, 3 * d, device=first.device, dtype=first.dtype).cos().view(1, 3, d)
    invisible = torch.zeros(1, 3, dtype=torch.bool, device=first.device)
    with attend_to(MemoryStates({replacement.place: states}, invisible)):
        same = torch.allclose(plain.eval()(states)[0], replacement.eval()(states)[0], rtol=1e-4, atol=1e-5)
    plain.train(mode)
    if not same:
        raise BadInput(f"{type(plain).__name__} computes attention in an unsupported way: it cannot read a memory")
