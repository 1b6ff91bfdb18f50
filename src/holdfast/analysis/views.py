"""Collect what a trained network computes for rows of each domain: features before, inside and after the neck.

Shapes: b batch, n rows, d width, h heads, k chosen slots, m slots.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.ragged import NONE
from holdfast.core.seeds import derive
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.dataset import Dataset
from holdfast.data.splits import Part
from holdfast.nn.model import Model

MAX_ROWS = 1000  # of all sources together, and of all targets together
Score = Callable[[Part], float | None]  # score of the current network on these rows, by the metric of the run
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class View:
    """Rows of one domain; the fields of a memory are None if the network has none.

    For tasks that read several positions of a text, the features of a row are the mean over its positions.
    """

    domain: str
    backbone: np.ndarray  # (n, d) input of the neck
    features: np.ndarray  # (n, d') input of the head
    content: np.ndarray | None = None  # (n, d) content read from the memory
    usage: np.ndarray | None = None  # (m,) mean weight per slot over rows and heads
    peaks: np.ndarray | None = None  # (m,) largest weight per slot
    per_read: float | None = None  # effective number of slots per read


@dataclass(frozen=True, eq=False)
class Subject:
    """The trained network that views are computed from, and its rows on both sides."""

    model: Model
    examples: Examples
    sources: Sequence[Part]
    targets: Sequence[Part]
    seed: int
    dataset: Dataset | None = None  # with the names of rows and classes
    rows: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)  # side -> domain -> rows of its view
    score: Score | None = None

    def by_domain(self, function: Callable[[Model, Examples, np.ndarray], T | None]) -> dict[str, dict[str, T]]:
        """Map side (sources, targets) to domain to what a function returns for the rows of its view, unless None."""
        return {
            side: {
                domain: value
                for domain, rows in by_domain.items()
                if (value := function(self.model, self.examples, rows)) is not None
            }
            for side, by_domain in self.rows.items()
        }


@dataclass(frozen=True, eq=False)
class Views:
    """Views of the training domains (sources) and of the held-out domains (targets)."""

    sources: tuple[View, ...]
    targets: tuple[View, ...]
    subject: Subject | None = None
    further: dict[Callable[[Subject], Any], Any] = field(default_factory=dict)  # function -> its views

    def collect(self, function: Callable[[Subject], T]) -> T | None:
        """Return further views, computed once and with the network in evaluation mode; None without a network."""
        if function not in self.further and self.subject is not None:
            with evaluation(self.subject.model), torch.no_grad():
                self.further[function] = function(self.subject)
        return self.further.get(function)

    def __iter__(self) -> Iterator[View]:
        return iter((*self.sources, *self.targets))

    def by_domain(self, get: Callable[[View], T | None]) -> dict[str, dict[str, T]]:
        """Map side (sources, targets) to domain to a value per view; views without a value are left out."""
        sides = {"sources": self.sources, "targets": self.targets}
        return {
            side: {view.domain: value for view in views if (value := get(view)) is not None}
            for side, views in sides.items()
        }


@runtime_checkable
class HasSlots(Protocol):
    """A memory with a known size; the tape does not contain the size if only some slots are read."""

    @property
    def slots(self) -> int: ...
    def read(self, query: Tensor) -> Any: ...


def collect_views(
    model: Model, examples: Examples, sources: Sequence[Part], targets: Sequence[Part], *, seed: int,
    max_rows: int = MAX_ROWS, dataset: Dataset | None = None, score: Score | None = None,
) -> Views:  # fmt: skip
    """Collect at most `max_rows` rows per side, divided evenly between its domains and sampled by seed.

    The model is left unchanged. `score` is passed on to further views.
    """
    sides, chosen = [], {}
    with evaluation(model):
        for name, side in (("source", sources), ("target", targets)):
            domains = list(dict.fromkeys(part.domain for part in side))
            limit = -(-max_rows // max(1, len(domains)))
            own: dict[str, np.ndarray] = {}
            for domain in domains:
                rows = np.concatenate([part.rows for part in side if part.domain == domain])
                if len(rows) > limit:
                    rng = np.random.default_rng(derive(seed, "analysis", name, domain))
                    rows = np.sort(rng.choice(rows, limit, replace=False))
                rows = examples.rows_of(Part(domain, rows)).numpy()  # for long texts, the rows of all windows
                if len(rows):
                    own[domain] = rows
            sides.append(tuple(_view(model, examples, domain, rows) for domain, rows in own.items()))
            chosen[f"{name}s"] = own
    return Views(sides[0], sides[1], Subject(model, examples, sources, targets, seed, dataset, chosen, score))


@contextmanager
def evaluation(model: Model) -> Iterator[None]:
    """Put a network into evaluation mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _view(model: Model, examples: Examples, domain: str, rows: np.ndarray) -> View:
    recorder = _Recorder(model)
    outputs = examples.map(recorder, rows, prediction_batch=model.prediction_batch).numpy()
    pieces = np.split(outputs, np.cumsum(recorder.widths)[:-1], axis=1)
    usage = peaks = per_read = None
    if recorder.usage is not None and recorder.peaks is not None:
        usage, peaks = (recorder.usage / recorder.reads).numpy(), recorder.peaks.numpy()
        per_read = recorder.effective / recorder.counted if recorder.counted else None
    content = pieces[2] if len(pieces) > 2 else None
    return View(domain, pieces[0], pieces[1], content, usage, peaks, per_read)


def mean_over_positions(values: Tensor, x: Inputs) -> Tensor:
    """Return one vector per input (b, d): for states at several positions (b, k, d), their mean."""
    if values.dim() == 2 or not isinstance(x, Tokens) or x.at is None:
        return values
    return masked_mean(values, x.at != NONE)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean (b, k) of values (b, t, k) over the positions of mask (b, t)."""
    weight = mask.to(values.dtype)[..., None]
    return (values * weight).sum(1) / weight.sum(1)


class _Recorder:
    """Forward pass that concatenates the features of each row and sums the weights of slots.

    The last of several memories counts. A memory that is read at every token has weights but no content per row, and
    padding counts among its reads.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.widths: list[int] = []
        self.usage: Tensor | None = None  # (m,) on the CPU
        self.peaks: Tensor | None = None
        self.reads = 0
        self.effective = 0.0  # sum over rows of the effective slots per read
        self.counted = 0  # rows

    def __call__(self, x: Inputs) -> Tensor:
        with tape() as recorded:
            encoded = self.model.encode(x)
            features = self.model.apply_neck(encoded)
        pieces = [mean_over_positions(encoded, x), mean_over_positions(features, x)]
        if recorded["memory/content"] and len(recorded["memory/content"][-1]) == len(features):
            pieces.append(recorded["memory/content"][-1])
        if recorded["memory/weights"]:
            slots = recorded["memory/slots"][-1] if recorded["memory/slots"] else None
            self._count(recorded["memory/weights"][-1].float(), slots)
        if recorded["stat/memory/effective_slots"]:
            self.effective += float(recorded["stat/memory/effective_slots"][-1]) * len(features)
            self.counted += len(features)
        self.widths = [piece.shape[1] for piece in pieces]
        return torch.cat([piece.float() for piece in pieces], dim=1)

    def _count(self, weights: Tensor, slots: Tensor | None) -> None:
        """Add weights (b, h, m), or (b, h, k) of the chosen `slots`."""
        if slots is None:
            total, peaks = weights.sum(dim=(0, 1)), weights.amax(dim=(0, 1))  # (m,)
        else:
            size = [m.slots for m in self.model.modules() if isinstance(m, HasSlots)][-1]
            flat, index = weights.flatten(), slots.flatten()
            total = flat.new_zeros(size).index_add_(0, index, flat)
            peaks = flat.new_zeros(size).scatter_reduce_(0, index, flat, "amax")
        total, peaks = total.cpu(), peaks.cpu()
        self.usage = total if self.usage is None else self.usage + total
        self.peaks = peaks if self.peaks is None else torch.maximum(self.peaks, peaks)
        self.reads += weights.shape[0] * weights.shape[1]
