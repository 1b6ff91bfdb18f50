"""Initialise the slots of a memory from data: keys from observed queries, reads that use a few slots.

Shapes: n observed rows, m slots, d width.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.nn.memory.read import effective_slots

INITS = ("data", "published")
KEYS = ("sample", "kmeans")
TARGET = 16  # effective number of slots per read after the initialisation
ROWS_PER_CLUSTER = 4
MIN_ROWS, MAX_ROWS = 512, 4096
ITERATIONS = 10  # of k-means


@runtime_checkable
class FromData(Protocol):
    """A memory that initialises its parameters once, from observed tensors with one row per observation."""

    @property
    def examples_needed(self) -> int:
        """Number of examples to observe; 0 if it is initialised."""
        ...

    def initialise(self, *observed: Tensor, generator: torch.Generator) -> None: ...


@runtime_checkable
class Observer(FromData, Protocol):
    """A module that gets these tensors from its forward pass over training examples."""

    def observe(self, inputs: tuple[Any, ...], output: Any) -> tuple[Tensor, ...]:
        """Return the rows (n, ...) to observe, from the inputs and the output of one pass."""
        ...


def needs_no_initialisation(memory: Any, *_: Any) -> None:
    """Mark a memory as initialised, as a hook before weights are loaded."""
    memory.pending = False


def examples_for(slots: int, keys: str) -> int:
    """Return the number of rows to observe for `slots` slots."""
    return min(MAX_ROWS, max(MIN_ROWS, slots * ROWS_PER_CLUSTER)) if keys == "kmeans" else MIN_ROWS


def thin(rows: Tensor, limit: int = MAX_ROWS) -> Tensor:
    """Return at most `limit` evenly spaced rows."""
    return rows if len(rows) <= limit else rows[torch.linspace(0, len(rows) - 1, limit).long().to(rows.device)]


def choose_slots(
    rows: Tensor, slots: int, *, keys: str = "sample", generator: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """Return a function that maps observations (n, ...) of the same rows to slots (m, ...).

    `sample`: mean + sum_i g_i (x_i - mean) / sqrt(n) with normal g, which has the mean and the covariance of the rows
    and is no single row, so that a read of that row is like any other. `kmeans`: means of clusters of the rows (n, d).
    """
    n, device = len(rows), rows.device
    if keys == "kmeans" and slots < n:
        first = torch.randperm(n, generator=generator)[:slots].to(device)
        labels = kmeans(rows, first)
        mixture = torch.zeros(slots, n, device=device)
        mixture[labels, torch.arange(n, device=device)] = 1
        mixture /= mixture.sum(1, keepdim=True)
    else:
        mixture = (torch.randn(slots, n, generator=generator) / n**0.5).to(device)

    def to_slots(values: Tensor) -> Tensor:
        mean = values.mean(0)
        return mean + torch.tensordot(mixture.to(values.dtype), values - mean, dims=1)

    return to_slots


def kmeans(rows: Tensor, first: Tensor) -> Tensor:
    """Return the cluster (n,) of each row (n, d) after Lloyd's iterations that start at the rows `first` (m,)."""
    centres, clusters = rows[first], torch.arange(len(first), device=rows.device)
    labels = clusters
    for _ in range(ITERATIONS):
        labels = torch.cdist(rows, centres).argmin(1)
        labels[first] = clusters  # no cluster becomes empty
        sums = torch.zeros_like(centres).index_add_(0, labels, rows)
        centres = sums / torch.bincount(labels, minlength=len(first))[:, None]
    return labels


def normalise_queries(net: nn.Module, features: Tensor) -> None:
    """Change the query net so that its outputs for features (n, d) have mean 0 and standard deviation 1 per entry."""
    layers = list(net) if isinstance(net, nn.Sequential) else [net]
    if isinstance(layers[-1], nn.BatchNorm1d):
        layers.pop()  # it returns its inputs until it is trained
    outputs, last = nn.Sequential(*layers)(features), layers[-1]
    mean, deviation = outputs.mean(0), outputs.std(0, correction=0)
    deviation = deviation.clamp(min=1e-3 * float(deviation.max()) + 1e-12)
    assert isinstance(last, nn.Linear)
    last.weight /= deviation[:, None]
    last.bias.sub_(mean).div_(deviation)


def solve_scale(scores: Tensor) -> float:
    """Return s such that softmax(s scores) uses 16 slots per read on average, at most half of them.

    The last dimension of the scores is that of the slots. The number of effective slots decreases with s.
    """
    target = min(TARGET, max(1.0, scores.shape[-1] / 2))
    centred = scores.float() - scores.float().amax(-1, keepdim=True)
    spread = float(centred.std())
    if not spread > 0:
        return 1.0  # all scores are equal, so that every read is uniform
    low, high = 1e-3 / spread, 1e4 / spread
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if float(effective_slots((middle * centred).softmax(-1))) > target else (low, middle)
    return (low * high) ** 0.5


def relative_scale(wanted: Tensor, actual: Tensor) -> float:
    """Return the factor that gives `actual` (n, d) the mean standard deviation per entry of `wanted`, at most 100."""
    return min(100.0, float(wanted.std(-2, correction=0).mean() / actual.std(-2, correction=0).mean().clamp(min=1e-12)))
