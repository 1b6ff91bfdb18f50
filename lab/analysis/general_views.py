"""Collect what a network reads from a general memory.

Shapes: b batch, n rows, t tokens, d width, h heads, l layers that read the general memory, s layers of the general
network that a gate mixes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.analysis.views import Score, Subject, masked_mean, mean_over_positions
from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.memory.general import GeneralMemory, memory_hidden
from holdfast.nn.model import Model


@dataclass(frozen=True)
class Effect:
    """Score on the test rows of a domain with the general memory, and with the memory hidden."""

    read: float | None
    hidden: float | None


@dataclass(frozen=True, eq=False)
class GeneralView:
    """Means over the tokens of each row without padding; layers are counted from 1."""

    layers: tuple[int, ...]  # layers of the domain network that read
    mass: np.ndarray  # (n, l, h) share of the attention that goes to the memory
    sources: tuple[tuple[int, ...], ...]  # layers of the general network that each of them reads
    gates: tuple[np.ndarray | None, ...]  # (n, s) share of each source layer; None for a single source
    # (n,) |z - z'| / |z'| with z' the feature with the memory hidden, mean over positions; None if it cannot be hidden
    moved: np.ndarray | None


def view_reads(subject: Subject) -> tuple[dict[str, dict[str, GeneralView]], dict[str, Effect]]:
    """Collect the reads of a general memory per side and domain, and its effect per target."""
    return subject.by_domain(view_general), view_effects(subject.model, subject.targets, subject.score)


@torch.no_grad()
def view_general(model: Model, examples: Examples, rows: np.ndarray) -> GeneralView | None:
    """Collect the reads of a general memory for these rows; None for other networks."""
    encoder, memory = model.backbone, _general_memory(model)
    if memory is None:
        return None
    assert isinstance(encoder, TextEncoder)
    layers = sorted(memory.reads)
    can_hide = memory.attention == "memory"

    def summarise(x: Inputs) -> Tensor:
        assert isinstance(x, Tokens)
        with tape() as recorded:
            z = model.encode(x)
        pieces = [masked_mean(mass.transpose(1, 2), x.mask) for mass in recorded["general/mass"]]  # (b, h) each
        pieces += [masked_mean(shares, x.mask) for shares in recorded["general/gate"]]  # (b, s) each
        if can_hide:
            with memory_hidden():
                hidden = model.encode(x)
            change = (z - hidden).norm(dim=-1) / hidden.norm(dim=-1)
            pieces.append(mean_over_positions(change[..., None], x))
        return torch.cat([piece.float() for piece in pieces], dim=1)

    values = examples.map(summarise, rows, prediction_batch=model.prediction_batch).numpy()
    heads = int(encoder.module.config.num_attention_heads)
    end = len(layers) * heads
    gates: list[np.ndarray | None] = []
    for layer in layers:
        size = len(memory.reads[layer])
        gates.append(values[:, end : end + size] if size > 1 else None)
        end += size if size > 1 else 0
    return GeneralView(
        layers=tuple(layer + 1 for layer in layers),
        mass=values[:, : len(layers) * heads].reshape(len(rows), len(layers), heads),
        sources=tuple(memory.reads[layer] for layer in layers),
        gates=tuple(gates),
        moved=values[:, end] if can_hide else None,
    )


def view_effects(model: Model, targets: Sequence[Part], score: Score | None) -> dict[str, Effect]:
    """Map target to its scores with and without a general memory; empty if there is none or it cannot be hidden."""
    memory = _general_memory(model)
    if score is None or memory is None or memory.attention != "memory":
        return {}
    effects = {}
    for domain in dict.fromkeys(part.domain for part in targets):
        part = Part(domain, np.concatenate([part.rows for part in targets if part.domain == domain]))
        read = score(part)
        with memory_hidden():
            effects[domain] = Effect(read, score(part))
    return effects


def _general_memory(model: Model) -> GeneralMemory | None:
    encoder = model.backbone
    companion = encoder.companion if isinstance(encoder, TextEncoder) else None
    return companion if isinstance(companion, GeneralMemory) else None
