"""Let chosen layers of a transformer attend to a memory beside their own tokens, with their own projections.

b batch, t tokens, h heads, d width, q width of a head
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.tape import is_recording, record

ATTENTIONS = ("memory", "cross", "gate")
PADDED = -1e4  # what the released code adds to the scores of padding


@dataclass(frozen=True, slots=True)
class MemoryStates:
    """What the layers of one forward pass read, by their place in the stack, counted from 0."""

    memory: Mapping[int, Tensor]  # (b, t, d), token by token beside the layer's own
    keep: Tensor | None = None  # (b, t) which memory tokens are there at all; by default those that the layer sees
    share: Mapping[int, Tensor] = field(default_factory=dict)  # (h,) for `gate`: before the sigmoid
    released: Tensor | None = None  # (b, t) what is no padding, where that is masked as in the released code


_open: ContextVar[MemoryStates | None] = ContextVar("recall", default=None)


@contextmanager
def attend_to(recall: MemoryStates | None) -> Iterator[None]:
    """Let grafted layers read this in the forward passes inside; nothing is left on a module."""
    token = _open.set(recall)
    try:
        yield
    finally:
        _open.reset(token)


def checkpoint_context() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """A `context_fn` for gradient checkpointing: what is read now is read again when a layer is computed again."""
    return nullcontext(), attend_to(_open.get())


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of transformers names the parts of its self-attention."""

    projections: tuple[str, ...]  # query, key, value; or one that makes all three
    heads: str
    dropout: str
    out: tuple[str, ...] = ()  # what it does with the joined heads itself
    norm: str = ""  # the layer's norm before it, which the memory passes too


_BERT = Family(("query", "key", "value"), "num_attention_heads", "dropout")
FAMILIES = {
    **{f"{name}SelfAttention": _BERT for name in ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "Ernie")},
    "Data2VecTextSelfAttention": _BERT,
    "MPNetSelfAttention": Family(("q", "k", "v"), "num_attention_heads", "dropout", ("o",)),
    "DistilBertSelfAttention": Family(("q_lin", "k_lin", "v_lin"), "n_heads", "dropout", ("out_lin",)),
    "GPT2Attention": Family(("c_attn",), "num_heads", "attn_dropout", ("c_proj", "resid_dropout"), norm="ln_1"),
}


class MemoryAttention(nn.Module):
    """Self-attention whose keys and values are also those of a memory; its parts are the plain one's, by their names.

    memory: softmax(Q [K; Mk]^T) [V; Mv]. cross: what self-attention gives asks the memory, whose answer takes its
    place. gate: (1 - s) self-attention + s memory-attention, s a learned share for each head.
    """

    def __init__(self, plain: nn.Module, family: Family, norm: nn.Module | None, *, place: int, attention: str) -> None:
        super().__init__()
        assert not list(plain.parameters(recurse=False))
        for name, part in plain.named_children():
            self.add_module(name, part)
        self.family, self.place, self.attention = family, place, attention
        self.plain = (plain, norm)  # in a tuple: no second name for what is in the network already
        self.heads = int(getattr(plain, family.heads))
        told = vars(plain)
        self.causal = bool(told.get("is_causal", False))
        self.scale: float | None = told.get("scaling")
        self.number: int = told.get("layer_idx") or 0
        self.takes = inspect.signature(plain.forward)
        self.train(plain.training)

    def forward(self, *args: Any, **named: Any) -> tuple[Tensor, None]:
        given = self.takes.bind(*args, **named).arguments
        recall, states = _open.get(), given["hidden_states"]  # (b, t, d)
        if recall is None:
            raise BadInput("a layer that reads a memory was given none: call it inside `reading`, or ungraft it first")
        past = given.get("past_key_values")
        if past is not None and past.get_seq_length(self.number) > 0:
            raise BadInput("a grafted layer reads whole texts: it cannot go on word by word from kept keys")
        memory, norm = recall.memory[self.place].to(states.dtype), self.plain[1]
        query, keys, values = self._project(states, memory if norm is None else norm(memory))
        mask, bias = given.get("attention_mask"), given.get("position_bias")
        seen, recalled = _masks(mask, bias, recall.keep, states, self.causal)
        if recall.released is not None:
            outer, recalled = _released(recall.released, bias, recall.keep, states)
            seen = outer if self.attention == "memory" else seen
        drop: nn.Module = getattr(self, self.family.dropout)
        options = {"dropout_p": drop.p if self.training else 0.0, "scale": self.scale}
        if self.attention == "memory":
            both = None if seen is None or recalled is None else torch.cat([seen.expand_as(recalled), recalled], dim=-1)
            if is_recording() and not self.training:
                record("general/mass", _mass(query, keys, both, self.scale))
            found = F.scaled_dot_product_attention(query, keys, values, attn_mask=both, **options)  # (b, h, t, q)
        else:
            t = states.shape[1]
            own = F.scaled_dot_product_attention(query, keys[:, :, :t], values[:, :, :t], attn_mask=seen, **options)
            asks = own if self.attention == "cross" else query
            found = F.scaled_dot_product_attention(
                asks, keys[:, :, t:], values[:, :, t:], attn_mask=recalled, **options
            )
            share = torch.ones_like(query[0, :, :1, :1])  # (h, 1, 1)
            if self.attention == "gate":
                share = recall.share[self.place].sigmoid().to(own.dtype)[:, None, None]
                found = torch.lerp(own, found, share)
            if is_recording() and not self.training:
                record("general/mass", share[..., 0].detach().expand(query.shape[:3]))
        joined = found.transpose(1, 2).flatten(2)  # (b, t, d)
        for name in self.family.out:
            joined = getattr(self, name)(joined)
        return joined, None

    def _project(self, states: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (b, h, t, q) of the states; keys and values (b, h, 2t, q) of the states, then of the memory."""
        parts = [getattr(self, name) for name in self.family.projections]
        if len(parts) == 3:
            both = torch.cat([states, memory], dim=1)  # (b, 2t, d)
            found = [parts[0](states), parts[1](both), parts[2](both)]
        else:
            d, whole = states.shape[-1], parts[0]  # one weight (d, 3d), of which a memory needs the last two thirds
            query, *own = whole(states).split(d, dim=-1)
            other = F.linear(memory, whole.weight[:, d:].t(), whole.bias[d:]).split(d, dim=-1)
            found = [query, *(torch.cat([a, b], dim=1) for a, b in zip(own, other, strict=True))]
        query, keys, values = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in found)
        return query, keys, values


def _masks(
    mask: Tensor | None, bias: Tensor | None, keep: Tensor | None, states: Tensor, causal: bool
) -> tuple[Tensor | None, Tensor | None]:
    """What a token sees of the others, and of the memory: the same tokens at the same distance, less those not kept."""
    if mask is not None and mask.dim() != 4:
        raise BadInput("a grafted layer needs the attention sdpa or eager: load the network with one of them")
    if mask is None and causal:
        t = states.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool, device=states.device).tril()[None, None]
    if bias is not None and mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
    mask = mask if bias is None else bias
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(states.dtype)
    if keep is None:
        return mask, mask
    there = keep[:, None, None, :]  # (b, 1, 1, t)
    if mask is None:
        return torch.ones_like(there), there
    return mask, mask & there if mask.dtype == torch.bool else mask.masked_fill(~there, -torch.inf)


def _released(real: Tensor, bias: Tensor | None, keep: Tensor | None, states: Tensor) -> tuple[Tensor, Tensor]:
    """The same in the released code: the product of what is added for a query and for a key, which hides nothing.

    A token that is real sees padding too; padding sees padding alone.
    """
    added = (~real).to(states.dtype) * PADDED  # (b, t)
    mask = added[:, None, :, None] * added[:, None, None, :]  # (b, 1, t, t)
    mask = mask if bias is None else mask + bias
    return mask, mask if keep is None else mask.masked_fill(~keep[:, None, None, :], -torch.inf)


@torch.no_grad()
def _mass(query: Tensor, keys: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """(b, h, t) how much of its attention each token gives to the memory."""
    scores = query @ keys.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.float().softmax(-1)[..., keys.shape[2] // 2 :].sum(-1)


def family_of(layer: nn.Module) -> tuple[str, Family]:
    """Where the self-attention of a layer is, and its family, by its type; one sentence where that is not known."""
    for name, part in layer.named_modules():
        if isinstance(part, MemoryAttention):
            raise BadInput("this layer reads a memory already: ungraft it first")
        for kind in type(part).__mro__:
            if kind.__name__ in FAMILIES:
                return name, FAMILIES[kind.__name__]
    known = ", ".join(kind.removesuffix("SelfAttention").removesuffix("Attention") for kind in FAMILIES)
    raise BadInput(f"{type(layer).__name__} has no self-attention of a known make ({known}) to read a memory with")


def is_causal(layers: nn.ModuleList) -> bool:
    """Whether a token sees only those before it."""
    name, _ = family_of(layers[0])
    return bool(vars(layers[0].get_submodule(name)).get("is_causal", False))


def graft(layers: nn.ModuleList, places: Iterable[int], *, attention: str = "memory") -> None:
    """Let the layers at these places, counted from 0, read a memory; no parameter is added, moved or renamed."""
    if attention not in ATTENTIONS:
        raise unknown("attention to a memory", attention, ATTENTIONS)
    for place in places:
        name, family = family_of(layers[place])
        above, _, leaf = name.rpartition(".")
        norm = layers[place].get_submodule(family.norm) if family.norm else None
        plain = layers[place].get_submodule(name)
        _check(plain, MemoryAttention(plain, family, None, place=place, attention="memory"))
        made = MemoryAttention(plain, family, norm, place=place, attention=attention)
        setattr(layers[place].get_submodule(above), leaf, made)


def ungraft(layers: nn.ModuleList) -> None:
    """The plain layers again, with the weights that they have now."""
    for parent in list(layers.modules()):
        for leaf, part in list(parent.named_children()):
            if isinstance(part, MemoryAttention):
                setattr(parent, leaf, part.plain[0].train(part.training))


@torch.no_grad()
def _check(plain: nn.Module, made: MemoryAttention) -> None:
    """With its memory hidden it must be the plain one: a make that is not quite the known one is refused."""
    first = next(plain.parameters())
    mode, d = plain.training, next(p.shape[0] for p in plain.parameters() if p.dim() == 2)
    states = torch.linspace(-1.0, 1.0, 3 * d, device=first.device, dtype=first.dtype).cos().view(1, 3, d)
    hidden = MemoryStates({made.place: states}, keep=torch.zeros(1, 3, dtype=torch.bool, device=first.device))
    with attend_to(hidden):
        same = torch.allclose(plain.eval()(states)[0], made.eval()(states)[0], rtol=1e-4, atol=1e-5)
    plain.train(mode)
    if not same:
        raise BadInput(f"{type(plain).__name__} attends in a way that is not known here: it cannot read a memory")
