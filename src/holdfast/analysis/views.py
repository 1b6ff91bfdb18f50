"""Rows of each domain as a trained network sees them: before, inside and after its neck, taken in one pass.

b batch, n rows, d width, h heads, k slots chosen, m slots
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.analysis.class_views import ClassView, view_classes
from holdfast.analysis.general_views import Effect, Recalled, Scored, of_each, view_effects, view_general
from holdfast.analysis.patch_views import PatchView, view_patches
from holdfast.analysis.routing_views import Routed, view_routing
from holdfast.core.inputs import Inputs
from holdfast.core.seeds import derive
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.part_locations import PartLocations
from holdfast.data.splits import Part
from holdfast.nn.model import Model

MOST = 1000  # rows of all sources together, and of all targets together


@dataclass(frozen=True, eq=False)
class View:
    """Some rows of one domain; what a memory says is None where the network has none.

    Where a task asks for several places of a text, a row's features are the mean over its places.
    """

    domain: str
    backbone: np.ndarray  # (n, d) what the neck gets
    features: np.ndarray  # (n, d') what the head gets
    content: np.ndarray | None = None  # (n, d) what the memory reads
    usage: np.ndarray | None = None  # (m,) the mean weight of each slot over rows and heads
    peaks: np.ndarray | None = None  # (m,) the largest weight that each slot had
    segments: tuple[tuple[int, int], ...] | None = None  # slots and domain of each segment of a memory that can grow
    routing: Routed | None = None  # where tokens go in a network with experts
    general: Recalled | None = None  # what is read of a general memory


@dataclass(frozen=True, eq=False)
class Views:
    """The domains that were trained on, and those that were not."""

    sources: tuple[View, ...]
    targets: tuple[View, ...]
    classes: ClassView | None = None  # what a heterogeneous memory makes of rows of the sources, class by class
    patches: PatchView | None = None  # what a vision transformer does with the patches of some images
    effects: Mapping[str, Effect] = field(default_factory=dict)  # by target, what hiding a general memory does

    def __iter__(self) -> Iterator[View]:
        return iter((*self.sources, *self.targets))


@runtime_checkable
class Slotted(Protocol):
    """A memory that knows its size: where slots are chosen, the tape does not tell it."""

    @property
    def slots(self) -> int: ...
    def read(self, query: Tensor) -> Any: ...


@runtime_checkable
class Segmented(Protocol):
    """A memory that grows by segments, each for a domain."""

    @property
    def sizes(self) -> list[int]: ...
    @property
    def owners(self) -> list[int]: ...


def collect_views(
    model: Model,
    examples: Examples,
    sources: Sequence[Part],
    targets: Sequence[Part],
    *,
    seed: int,
    most: int = MOST,
    classes: Sequence[str] = (),
    names: Sequence[str] | None = None,
    points: PartLocations | None = None,
    scored: Scored | None = None,
) -> Views:
    """At most `most` rows a side, shared evenly by its domains and drawn by seed; the model is left as it was.

    With `scored` all rows of the targets are scored too, where a general memory can be hidden.
    """
    training = model.training
    model.eval()
    sides = []
    for name, parts in (("source", sources), ("target", targets)):
        domains = list(dict.fromkeys(part.domain for part in parts))
        share = -(-most // max(1, len(domains)))
        found = []
        for domain in domains:
            rows = np.concatenate([part.rows for part in parts if part.domain == domain])
            if len(rows) > share:
                chance = np.random.default_rng(derive(seed, "analysis", name, domain))
                rows = np.sort(chance.choice(rows, share, replace=False))
            rows = examples.rows_of(Part(domain, rows)).numpy()  # of a long text, those of all its windows
            if len(rows):
                found.append(_view(model, examples, domain, rows))
        sides.append(tuple(found))
    by_class = view_classes(model, examples, sources, seed=seed, classes=classes)
    patches = view_patches(model, examples, sources, targets, seed=seed, names=names, points=points)
    effects = view_effects(model, targets, scored)
    model.train(training)
    return Views(sides[0], sides[1], by_class, patches, effects)


def _view(model: Model, examples: Examples, domain: str, rows: np.ndarray) -> View:
    listener = _Listener(model)
    both = examples.map(listener, rows, prediction_batch=model.prediction_batch).numpy()
    pieces = np.split(both, np.cumsum(listener.widths)[:-1], axis=1)
    usage = peaks = None
    if listener.usage is not None and listener.peaks is not None:
        usage, peaks = (listener.usage / listener.reads).numpy(), listener.peaks.numpy()
    content = pieces[2] if len(pieces) > 2 else None
    segments = None if usage is None else _segments(model, usage)
    routed = view_routing(model, examples, rows)
    general = view_general(model, examples, rows)
    return View(domain, pieces[0], pieces[1], content, usage, peaks, segments, routed, general)


def _segments(model: Model, usage: np.ndarray) -> tuple[tuple[int, int], ...] | None:
    """Slots and domain of each segment of the memory that was heard, if it has segments."""
    found = [part for part in model.modules() if isinstance(part, Segmented) and sum(part.sizes) == len(usage)]
    if not found:
        return None
    return tuple(zip(found[-1].sizes, found[-1].owners, strict=True))


class _Listener:
    """A forward pass whose inner features are kept: those of its rows side by side, weights of slots summed up.

    Of several memories the last is heard. One that is read at every token has no content a row, only weights,
    and padding counts among its reads.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.widths: list[int] = []
        self.usage: Tensor | None = None  # (m,) on the CPU
        self.peaks: Tensor | None = None
        self.reads = 0

    def __call__(self, x: Inputs) -> Tensor:
        with tape() as side:
            encoded = self.model.encode(x)
            features = self.model.apply_neck(encoded)
        pieces = [of_each(encoded, x), of_each(features, x)]
        if side["memory/content"] and len(side["memory/content"][-1]) == len(features):
            pieces.append(side["memory/content"][-1])
        if side["memory/weights"]:
            slots = side["memory/slots"][-1] if side["memory/slots"] else None
            self._count(side["memory/weights"][-1].float(), slots)
        self.widths = [piece.shape[1] for piece in pieces]
        return torch.cat([piece.float() for piece in pieces], dim=1)

    def _count(self, weights: Tensor, slots: Tensor | None) -> None:
        """Add the weights (b, h, m), or (b, h, k) of the slots that were chosen."""
        if slots is None:
            total, peaks = weights.sum(dim=(0, 1)), weights.amax(dim=(0, 1))  # (m,)
        else:
            size = [part.slots for part in self.model.modules() if isinstance(part, Slotted)][-1]
            flat, at = weights.flatten(), slots.flatten()
            total = flat.new_zeros(size).index_add_(0, at, flat)
            peaks = flat.new_zeros(size).scatter_reduce_(0, at, flat, "amax")
        total, peaks = total.cpu(), peaks.cpu()
        self.usage = total if self.usage is None else self.usage + total
        self.peaks = peaks if self.peaks is None else torch.maximum(self.peaks, peaks)
        self.reads += weights.shape[0] * weights.shape[1]
