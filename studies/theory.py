"""Theorem 1 of progressive memory banks (Asghar et al., 2020): disturbance of states by an expansion, by Monte Carlo.

Shapes: n draws, D width of the state, d width of a slot and number of added units, N old slots, M new slots.

One step of a linear recurrent network reads a memory: h = W_h h' + W_x x + W_c c, with h' the previous state. M more
slots change the content c to c_m; d more units with states s add W_s s. If the new slots receive at most as much
attention as the old ones, then

    E|h_m - h|^2 = E|W_c (c_m - c)|^2  <=  E|W_s s|^2 = E|h_s - h|^2 = D d sigma^4.

Assumptions of the proof: h' is equal before and after; weights, slots and states are independent with mean 0 and
variance sigma^2; the attention does not depend on the values that it weights. A trained network meets none of them, so
the theorem describes the moment after an expansion, when the new parameters are random, and not the training after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.core.errors import BadInput

CHUNK = 4_000_000  # numbers drawn at a time


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """Sizes before and after an expansion."""

    old: int  # N
    new: int  # M
    state: int = 50  # D
    width: int = 50  # d
    sigma: float = 0.1
    mass: float | None = None  # attention to new slots divided by attention to old ones; None: random keys and states

    def __post_init__(self) -> None:
        if min(self.old, self.new, self.state, self.width) < 1:
            raise BadInput("`old`, `new`, `state` and `width` of an expansion must be at least 1")
        if not self.sigma > 0 or (self.mass is not None and not self.mass > 0):
            raise BadInput("`sigma` and `mass` of an expansion must be positive")

    @property
    def bound(self) -> float:
        """D d sigma^4, the disturbance by hidden units."""
        return self.state * self.width * self.sigma**4


@dataclass(frozen=True)
class Mean:
    """Mean over draws and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Disturbance:
    """E|h_m - h|^2, E|h_s - h|^2, and the share of draws that meet the assumption on the attention."""

    memory: Mean
    hidden: Mean
    assumed: float


def disturbance(expansion: Expansion, *, draws: int = 4000, seed: int = 0) -> Disturbance:
    """Estimate both sides of the inequality with softmax attention over slots and sampled matrices."""
    if draws < 2:
        raise BadInput(f"`draws` must be at least 2 for a standard error; got {draws}")
    rng = np.random.default_rng(seed)
    slots = expansion.old + expansion.new
    largest = max(slots * max(expansion.state, expansion.width), expansion.state * expansion.width)
    step = max(1, CHUNK // largest)
    chunks = [_draw(expansion, min(step, draws - start), rng) for start in range(0, draws, step)]
    memory, hidden, assumed = (np.concatenate(values) for values in zip(*chunks, strict=True))
    return Disturbance(_mean(memory), _mean(hidden), float(assumed.mean()))


def change(attention: np.ndarray, old: int) -> np.ndarray:
    """Return beta (..., N + M) of c_m - c = sum_j beta_j v_j from unnormalised attention (..., N + M), old slots first.

    With rho the attention to new slots divided by that to old ones and alpha the attention over all slots, beta is
    alpha on new slots and -rho alpha on old ones.
    """
    rho = attention[..., old:].sum(-1, keepdims=True) / attention[..., :old].sum(-1, keepdims=True)
    alpha = attention / attention.sum(-1, keepdims=True)
    return np.concatenate([-rho * alpha[..., :old], alpha[..., old:]], axis=-1)


def exact(expansion: Expansion) -> float:
    """Return E|h_m - h|^2 for uniform attention among old slots and among new slots: bound * sum_j beta_j^2."""
    mass = expansion.new / expansion.old if expansion.mass is None else expansion.mass
    attention = [1.0] * expansion.old + [mass * expansion.old / expansion.new] * expansion.new
    return expansion.bound * float((change(np.array(attention), expansion.old) ** 2).sum())


def _draw(expansion: Expansion, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return |h_m - h|^2, |h_s - h|^2, and whether the assumption on the attention holds, (n,) each."""
    state, width, old = expansion.state, expansion.width, expansion.old

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0.0, expansion.sigma, shape)

    before, values = normal(n, state), normal(n, old + expansion.new, width)
    attention = np.exp(np.einsum("nsd,nd->ns", normal(n, old + expansion.new, state), before))  # (n, N + M)
    if expansion.mass is not None:
        mass = attention[:, old:].sum(1) / attention[:, :old].sum(1)
        attention[:, old:] *= (expansion.mass / mass)[:, None]
    shift = _content(attention, values) - _content(attention[:, :old], values[:, :old])  # (n, d)
    memory = np.einsum("nsd,nd->ns", normal(n, state, width), shift)
    hidden = np.einsum("nsd,nd->ns", normal(n, state, width), normal(n, width))
    holds = attention[:, old:].sum(1) <= attention[:, :old].sum(1) * (1 + 1e-9)
    return (memory**2).sum(1), (hidden**2).sum(1), holds


def _content(attention: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return sum_j alpha_j v_j (n, d) with normalised attention."""
    return np.einsum("ns,nsd->nd", attention / attention.sum(1, keepdims=True), values)


def _mean(values: np.ndarray) -> Mean:
    return Mean(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))
