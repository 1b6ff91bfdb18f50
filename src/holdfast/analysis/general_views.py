"""What a network takes from a general memory, row by row: attention to it, layers that its gates choose, its effect.

b batch, n rows, t tokens, h heads, l layers that read, s layers of the general network that a gate mixes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.ragged import NONE
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.memory.general import GeneralMemory, memory_hidden
from holdfast.nn.model import Model

Scored = Callable[[Part], float | None]  # the metric of a run on these rows, of the network as it is now


@dataclass(frozen=True)
class Effect:
    """The score of a domain's test rows as the network reads its memory, and with the memory hidden."""

    read: float | None
    hidden: float | None


@dataclass(frozen=True, eq=False)
class Recalled:
    """Means over the tokens of each row that are no padding; layers are counted from 1."""

    layers: tuple[int, ...]  # those of the domain's network that read
    mass: np.ndarray  # (n, l, h) how much of its attention a token gives to the memory
    sources: tuple[tuple[int, ...], ...]  # the layers of the general network that each of them reads
    gates: tuple[np.ndarray | None, ...]  # (n, s) how much each of those gives; None where there is only one
    # (n,) |z - z'| / |z'|, z' the feature with the memory hidden, the mean over places; None where it cannot be
    moved: np.ndarray | None


@torch.no_grad()
def view_general(model: Model, examples: Examples, rows: np.ndarray) -> Recalled | None:
    """What is read of a general memory for these rows, in evaluation; None for other networks."""
    encoder, memory = model.backbone, _memory(model)
    if memory is None:
        return None
    assert isinstance(encoder, TextEncoder)
    places = sorted(memory.reads)
    can_hide = memory.attention == "memory"

    def listen(x: Inputs) -> Tensor:
        assert isinstance(x, Tokens)
        with tape() as side:
            z = model.encode(x)
        pieces = [_mean(mass.transpose(1, 2), x.mask) for mass in side["general/mass"]]  # (b, h) each
        pieces += [_mean(shares, x.mask) for shares in side["general/gate"]]  # (b, s) each
        if can_hide:
            with memory_hidden():
                plain = model.encode(x)
            pieces.append(of_each(((z - plain).norm(dim=-1) / plain.norm(dim=-1))[..., None], x))
        return torch.cat([piece.float() for piece in pieces], dim=1)

    found = examples.map(listen, rows, prediction_batch=model.prediction_batch).numpy()
    heads = int(encoder.module.config.num_attention_heads)
    end = len(places) * heads
    gates: list[np.ndarray | None] = []
    for place in places:
        size = len(memory.reads[place])
        gates.append(found[:, end : end + size] if size > 1 else None)
        end += size if size > 1 else 0
    return Recalled(
        layers=tuple(place + 1 for place in places),
        mass=found[:, : len(places) * heads].reshape(len(rows), len(places), heads),
        sources=tuple(memory.reads[place] for place in places),
        gates=tuple(gates),
        moved=found[:, end] if can_hide else None,
    )


def view_effects(model: Model, targets: Sequence[Part], scored: Scored | None) -> dict[str, Effect]:
    """By domain what hiding the memory does to the score; nothing where a network has none, or cannot do without."""
    memory = _memory(model)
    if scored is None or memory is None or memory.attention != "memory":
        return {}
    found = {}
    for domain in dict.fromkeys(part.domain for part in targets):
        part = Part(domain, np.concatenate([part.rows for part in targets if part.domain == domain]))
        read = scored(part)
        with memory_hidden():
            found[domain] = Effect(read, scored(part))
    return found


def _memory(model: Model) -> GeneralMemory | None:
    encoder = model.backbone
    companion = encoder.companion if isinstance(encoder, TextEncoder) else None
    return companion if isinstance(companion, GeneralMemory) else None


def of_each(values: Tensor, x: Inputs) -> Tensor:
    """(b, d) one line an input: where a task asks for the states at places, the mean of their (b, k, d)."""
    if values.dim() == 2 or not isinstance(x, Tokens) or x.at is None:
        return values
    return _mean(values, x.at != NONE)


def _mean(values: Tensor, real: Tensor) -> Tensor:
    """(b, k) the mean of (b, t, k) over real tokens (b, t)."""
    weight = real.to(values.dtype)[..., None]
    return (values * weight).sum(1) / weight.sum(1)
