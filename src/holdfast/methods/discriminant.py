"""Fisher's linear discriminant of two groups of features, in closed form and differentiable.

w = S^-1 (mu_1 - mu_0), S the shrunk covariance within the groups; J = (mu_1 - mu_0)' S^-1 (mu_1 - mu_0).

Shapes: b batch, d width, r = min(b, d).
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

TINY = 1e-6  # smallest variance and leverage, relative to the variance of the features


class Discriminant(NamedTuple):
    """Discriminant of one batch."""

    direction: Tensor  # (d,) w, without gradient
    ratio: Tensor  # unbiased estimate of J, 0 or less if the groups have the same mean
    margins: Tensor  # (b,) leave-one-out scores, above 0 for examples on the side of their group


def fisher(x: Tensor, first: Tensor, *, shrinkage: float | None = None) -> Discriminant:
    """Separate the rows of x (b, d) with `first` (b,) from the others; numerically safe in float32 and for b < d.

    S = (1 - a) S_w + a tr(S_w)/d I with a = `shrinkage`, by default that of the oracle approximating estimator (Chen et
    al., 2010). Both groups have the same weight in S_w. J and the margins are corrected for the
    examples' influence on the means and on S_w, so that a batch with few examples does not seem separable.
    """
    x = x if x.dtype == torch.float64 else x.float()
    b, d = x.shape
    groups = torch.stack([first, ~first]).to(x.dtype)  # (2, b)
    counts = groups.sum(dim=1)  # (2,)
    means = groups @ x / counts[:, None]
    u, gap = x - groups.T @ means, means[0] - means[1]
    rows = (x - x.mean(dim=0)).detach()
    scale = rows.square().mean().sqrt().clamp(min=torch.finfo(x.dtype).tiny ** 0.5)  # J does not depend on it
    u, gap = u / scale, gap / scale
    basis = None
    if b < d:  # u and gap lie in the span of the centred rows; J depends on their inner products only
        basis = torch.linalg.qr((rows / scale).T)[0]  # (d, b)
        u, gap = u @ basis, gap @ basis
    weight = groups.T @ (0.5 / counts)  # (b,) sums to 1
    within = (u * weight[:, None]).T @ u  # (r, r)
    variance = within.diagonal().sum() / d
    a = _shrinkage(within.detach(), b, d) if shrinkage is None else within.new_tensor(shrinkage)
    ridge = (a * variance).clamp(min=TINY) * torch.eye(len(within), dtype=x.dtype, device=x.device)
    factor = torch.linalg.cholesky_ex((1 - a) * within + ridge).L  # does not wait for the device to check errors
    solved = torch.cholesky_solve(torch.cat([gap[None], u]).T, factor).T  # (1 + b, r)
    ratio, along, length = gap @ solved[0], u @ solved[0], (u * solved[1:]).sum(dim=1)
    others = groups.T @ (counts - 1).clamp(min=1)  # (b,) size of the group without the example
    influence = (1 - a) * weight * (1 + 1 / others)
    rest = (1 - influence * length).clamp(min=TINY)  # S without an example, by a rank-one update
    along_out, length_out = along / rest, length / rest
    sign = groups[0] - groups[1]
    margins = 0.5 * (ratio + influence * along * along_out) + sign * along_out
    margins = margins - (1 + 0.5 / others) / others * length_out
    noise = ((groups @ length_out) / counts / (counts - 1).clamp(min=1)).sum()  # of the means, in the metric of S
    direction = (solved[0] if basis is None else basis @ solved[0]).detach()
    return Discriminant(direction, ratio - noise, margins.detach())


def a_distance(groups: Sequence[Tensor]) -> float:
    """Return the mean A-distance of all pairs of groups (n, d): 2 (1 - 2e), e the leave-one-out error."""
    distances = []
    for one, other in combinations(groups, 2):
        first = torch.arange(len(one) + len(other), device=one.device) < len(one)
        right = (fisher(torch.cat([one, other]), first).margins > 0).float()
        distances.append(2 * (right[first].mean() + right[~first].mean()) - 2)
    return float(torch.stack(distances).mean())


def _shrinkage(within: Tensor, b: int, d: int) -> Tensor:
    """Return the weight of the identity that minimises the expected error of a Gaussian covariance."""
    square, trace = within.square().sum(), within.diagonal().sum()
    n = max(1, b - 2)
    gap = (n + 1 - 2 / d) * (square - trace.square() / d)
    return (((1 - 2 / d) * square + trace.square()) / gap.clamp(min=TINY)).clamp(min=0.01, max=1.0)
