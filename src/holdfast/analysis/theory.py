"""How much an expansion disturbs the states that are there: memory slots against hidden units, by Monte Carlo.

n draws, D width of the state, d width of a slot and number of added units, N old slots, M new slots

Theorem 1 of progressive memory banks (Asghar et al., 2020): let one step of a linear recurrent network read a memory,
h = W_h h' + W_x x + W_c c with h' the state before.  M more slots change its content to c_m, d more units with the
states s add W_s s.  If the new slots get no more attention than the old ones, then

    E|h_m - h|^2 = E|W_c (c_m - c)|^2  <=  E|W_s s|^2 = E|h_s - h|^2 = D d sigma^4.

What the proof assumes: h' is the same before and after; weights, slots and states are independent, with mean 0 and
variance sigma^2; the attention does not depend on the values that it weighs.  None of it holds in a trained network.
So the theorem speaks of the moment after an expansion, when what was added is still noise, and not of what training
does next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.core.errors import BadInput

AT_ONCE = 4_000_000  # numbers drawn at a time


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """What is there and what is added."""

    old: int  # N
    new: int  # M
    state: int = 50  # D
    width: int = 50  # d
    sigma: float = 0.1
    mass: float | None = None  # attention of the new slots over that of the old ones; None: keys and states decide

    def __post_init__(self) -> None:
        if min(self.old, self.new, self.state, self.width) < 1:
            raise BadInput("an expansion needs at least one old slot, one new slot and widths of at least 1")
        if not self.sigma > 0 or (self.mass is not None and not self.mass > 0):
            raise BadInput("sigma and mass must be above 0")

    @property
    def bound(self) -> float:
        """D d sigma^4: the disturbance by hidden units."""
        return self.state * self.width * self.sigma**4


@dataclass(frozen=True)
class Mean:
    """A mean over draws and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Disturbance:
    """E|h_m - h|^2 and E|h_s - h|^2, and the share of draws in which the new slots got no more than the old ones."""

    memory: Mean
    hidden: Mean
    assumed: float


def disturbance(expansion: Expansion, *, draws: int = 4000, seed: int = 0) -> Disturbance:
    """Both sides of the inequality, with softmax attention over slots and matrices that are really drawn."""
    if draws < 2:
        raise BadInput(f"a mean with an error needs at least 2 draws, not {draws}")
    chance = np.random.default_rng(seed)
    slots = expansion.old + expansion.new
    largest = max(slots * max(expansion.state, expansion.width), expansion.state * expansion.width)
    step = max(1, AT_ONCE // largest)
    parts = [_draw(expansion, min(step, draws - start), chance) for start in range(0, draws, step)]
    memory, hidden, assumed = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Disturbance(_mean(memory), _mean(hidden), float(assumed.mean()))


def change(attention: np.ndarray, old: int) -> np.ndarray:
    """beta (..., N + M) of c_m - c = sum_j beta_j v_j, for attention before normalising (..., N + M), old slots first.

    With rho the mass of the new slots over that of the old ones and alpha the attention over all of them, beta is
    alpha on new slots and -rho alpha on old ones.
    """
    rho = attention[..., old:].sum(-1, keepdims=True) / attention[..., :old].sum(-1, keepdims=True)
    alpha = attention / attention.sum(-1, keepdims=True)
    return np.concatenate([-rho * alpha[..., :old], alpha[..., old:]], axis=-1)


def exact(expansion: Expansion) -> float:
    """E|h_m - h|^2 where attention is even among the old slots and even among the new ones: bound * sum_j beta_j^2."""
    mass = expansion.new / expansion.old if expansion.mass is None else expansion.mass
    each = [1.0] * expansion.old + [mass * expansion.old / expansion.new] * expansion.new
    return expansion.bound * float((change(np.array(each), expansion.old) ** 2).sum())


def _draw(expansion: Expansion, n: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n,) each: |h_m - h|^2, |h_s - h|^2, and whether the assumption on the attention holds."""
    state, width, old = expansion.state, expansion.width, expansion.old

    def normal(*shape: int) -> np.ndarray:
        return chance.normal(0.0, expansion.sigma, shape)

    before, values = normal(n, state), normal(n, old + expansion.new, width)
    attention = np.exp(np.einsum("nsd,nd->ns", normal(n, old + expansion.new, state), before))  # (n, N + M)
    if expansion.mass is not None:
        now = attention[:, old:].sum(1) / attention[:, :old].sum(1)
        attention[:, old:] *= (expansion.mass / now)[:, None]
    shift = _content(attention, values) - _content(attention[:, :old], values[:, :old])  # (n, d)
    memory = np.einsum("nsd,nd->ns", normal(n, state, width), shift)
    hidden = np.einsum("nsd,nd->ns", normal(n, state, width), normal(n, width))
    holds = attention[:, old:].sum(1) <= attention[:, :old].sum(1) * (1 + 1e-9)
    return (memory**2).sum(1), (hidden**2).sum(1), holds


def _content(attention: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(n, d) sum_j alpha_j v_j with attention that is normalised here."""
    return np.einsum("ns,nsd->nd", attention / attention.sum(1, keepdims=True), values)


def _mean(values: np.ndarray) -> Mean:
    return Mean(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))
