"""Expected gains over the baseline: measured differences shrunk by their uncertainty.

The best of many measured differences is partly luck. With d_i the mean paired difference of method i and s_i its
standard error, gains are modelled as N(0, v) with v = max(0, mean(d_i^2) - mean(s_i^2)); the expected gain is the
posterior mean d_i v / (v + s_i^2), and the probability of a gain follows from the posterior variance (empirical Bayes).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from scipy.special import ndtr

from holdfast.stats.statistics import Paired


@dataclass(frozen=True, slots=True)
class Gain:
    """Expected difference to the baseline and the probability that it is an improvement."""

    mean: float
    probability: float


def expected_gains(differences: Mapping[str, Paired], *, lower_is_better: bool = False) -> dict[str, Gain]:
    """Return the expected gain per method; differences without a standard error are left out."""
    known = {name: pairs for name, pairs in differences.items() if pairs.stderr is not None}
    if not known:
        return {}
    squares = [(pairs.difference**2, (pairs.stderr or 0.0) ** 2) for pairs in known.values()]
    variance = max(0.0, fmean(d for d, _ in squares) - fmean(s for _, s in squares))
    gains = {}
    for (name, pairs), (_, error) in zip(known.items(), squares, strict=True):
        share = variance / (variance + error) if variance + error > 0 else 0.0
        mean, spread = share * pairs.difference, math.sqrt(share * error)
        sign = -1 if lower_is_better else 1
        probability = float(ndtr(sign * mean / spread)) if spread > 0 else 0.5 if mean == 0 else float(sign * mean > 0)
        gains[name] = Gain(mean, probability)
    return gains
