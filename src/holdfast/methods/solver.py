"""Solver of many penalised linear models at once: L-BFGS with exact line searches, in a preconditioned space.

All problems have the same features and differ in strength, targets or training rows. They are solved in lockstep, so
that every product with the features is one matrix product for all problems. Every problem minimises
C * sum of losses + |W|^2 / 2 over weights W and a bias without penalty.

Shapes: n examples, d features, k problems, c outputs per problem, r coordinates; the last of r is the bias. A point
(2, r, k, c) consists of coordinates v and of their metric, such that the sum of v * metric(u) is the inner product of v
and u.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from holdfast.core.stopping import stop_if_requested

MEMORY = 6  # pairs of steps and changes of the gradient
TRIALS = 6  # steps that a line search tries
ROTATED = 2048  # features up to which the preconditioner is the inverse of the second moments
EXACT = 0.3  # largest slope at the end of a line search, relative to that at its start
SMALLEST = 1e-12


class Space(ABC):
    """Coordinates (r, k, c) of weights and biases, with an inner product."""

    rows: int
    size: int  # r
    scale: Tensor  # (r, k or 1, 1) preconditioner: the gradient in these coordinates is scale * pull
    penalty: Tensor  # (r, k or 1, 1) of the squared coordinates; 0 for the bias

    @abstractmethod
    def precondition(self, strengths: Tensor) -> None:
        """Set `scale` and `penalty` for problems with these inverse strengths (k,)."""

    @abstractmethod
    def pull(self, residual: Tensor) -> Tensor:
        """Return the sum over examples of residuals (n, k, c) by coordinate, (r, k, c)."""

    @abstractmethod
    def point(self, v: Tensor) -> Tensor:
        """Return the point (2, r, k, c) with these coordinates."""

    @abstractmethod
    def logits(self, v: Tensor) -> Tensor:
        """Return the outputs (n, k, c) of a point."""

    @abstractmethod
    def weights(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (k, c, d) and biases (k, c) of the features, for coordinates (r, k, c)."""

    def penalised(self, v: Tensor, u: Tensor) -> Tensor:
        """Return (k,) the inner product of two points without their biases."""
        return (self.penalty * v[0] * u[1]).sum((0, 2))


class Primal(Space):
    """Dense features (n, d), rotated to their principal axes and divided by the root of the curvature there.

    The curvature of a logistic loss is at most a quarter, so that the preconditioned problem is almost spherical.
    """

    def __init__(self, x: Tensor) -> None:
        self.rows, self.size = len(x), x.shape[1] + 1
        self.mean = x.mean(0)
        self.x = x - self.mean
        self.axes, self.moments = None, self.x.square().sum(0)
        if x.shape[1] <= ROTATED:
            moments, axes = torch.linalg.eigh((self.x.T @ self.x).double())
            self.axes, self.moments = axes.float(), moments.clamp(min=0).float()
            self.x = self.x @ self.axes

    def precondition(self, strengths: Tensor) -> None:
        curvature = 1 + self.moments[:, None] * strengths / 4  # (d, k)
        bias = (self.rows * strengths / 4)[None]
        self.scale = torch.cat([curvature, bias]).rsqrt()[..., None]
        self.penalty = self.scale.square()
        self.penalty[-1] = 0.0

    def pull(self, residual: Tensor) -> Tensor:
        flat = residual.flatten(1)
        return torch.cat([self.x.T @ flat, flat.sum(0, keepdim=True)]).view(-1, *residual.shape[1:])

    def point(self, v: Tensor) -> Tensor:
        return torch.stack([v, v])

    def logits(self, v: Tensor) -> Tensor:
        w = (self.scale * v[0]).flatten(1)
        return torch.addmm(w[-1:], self.x, w[:-1]).view(-1, *v.shape[2:])

    def weights(self, v: Tensor) -> tuple[Tensor, Tensor]:
        w = self.scale * v
        bias, weight = w[-1], w[:-1].flatten(1)
        weight = (weight if self.axes is None else self.axes @ weight).view(-1, *v.shape[1:])
        return weight.permute(1, 2, 0), bias - torch.einsum("d,dkc->kc", self.mean, weight)


class Dual(Space):
    """Weights that are sums of examples, for sparse features or more features than examples.

    The coordinates are those sums; the metric is the centred Gram matrix, as products with the features.
    """

    def __init__(self, x: Any) -> None:
        self.x, self.transposed = (x, x.T) if isinstance(x, Tensor) else sparse_matrices(x)
        self.rows, self.size = x.shape[0], x.shape[0] + 1

    def precondition(self, strengths: Tensor) -> None:
        self.scale, self.penalty = torch.ones(2, self.size, 1, 1)
        self.penalty[-1] = 0.0

    def pull(self, residual: Tensor) -> Tensor:
        return torch.cat([residual, residual.sum(0, keepdim=True)])

    def point(self, v: Tensor) -> Tensor:
        image, bias = product(self.x, self._columns(v)), v[-1:].flatten(1)
        return torch.stack([v, torch.cat([image - image.mean(0), bias]).view_as(v)])

    def logits(self, v: Tensor) -> Tensor:
        return v[1, :-1] + v[1, -1:]

    def weights(self, v: Tensor) -> tuple[Tensor, Tensor]:
        weight = self._columns(v)
        bias = v[-1].flatten() - product(self.x, weight).mean(0)
        return weight.view(-1, *v.shape[1:]).permute(1, 2, 0), bias.view(v.shape[1:])

    def _columns(self, v: Tensor) -> Tensor:
        """Return the weights (d, k c) of coordinates (r, k, c)."""
        examples = v[:-1].flatten(1)
        return product(self.transposed, examples - examples.mean(0))


def sparse_matrices(x: sparse.csr_matrix) -> tuple[Any, Any]:
    """Return a sparse matrix (n, d) and its transpose; as tensors if torch has the kernels of MKL."""
    x = sparse.csr_matrix(x, dtype=np.float32)
    matrices = x, sparse.csr_matrix(x.T)
    if not torch.backends.mkl.is_available() or x.nnz >= 2**31:
        return matrices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that sparse tensors are in beta
        first, second = (
            torch.sparse_csr_tensor(*(torch.from_numpy(a) for a in (m.indptr, m.indices, m.data)), size=m.shape)
            for m in matrices
        )
    return first, second


def product(matrix: Tensor | sparse.csr_matrix, w: Tensor) -> Tensor:
    """Return a product of a dense or a sparse matrix."""
    return matrix @ w.contiguous() if isinstance(matrix, Tensor) else torch.from_numpy(matrix @ w.numpy())


def space_of(x: Any) -> Space:
    """Return the space of features (n, d): an array or a sparse matrix."""
    if sparse.issparse(x):
        return Dual(x)
    x = torch.as_tensor(x, dtype=torch.float32)
    return Primal(x) if x.shape[1] <= len(x) else Dual(x)


class Loss(ABC):
    """A convex loss of outputs z (n, k, c) for targets (n, k or 1, c)."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets

    def keep(self, left: Tensor) -> Self:
        """Return the loss of the problems at these indices."""
        return self if self.targets.shape[1] == 1 else type(self)(self.targets[:, left])

    @abstractmethod
    def values(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (n, k) and their gradients (n, k, c)."""

    @abstractmethod
    def curvature(self, gradient: Tensor, direction: Tensor) -> Tensor:
        """Return the second derivatives (n, k) along a direction (n, k, c), from the gradients at a point."""


class Binary(Loss):
    """Logistic loss of one output; targets are 0 or 1."""

    def values(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return (F.softplus(z) - self.targets * z)[..., 0], z.sigmoid() - self.targets

    def curvature(self, gradient: Tensor, direction: Tensor) -> Tensor:
        p = gradient + self.targets
        return (p * (1 - p) * direction.square())[..., 0]


class Multinomial(Loss):
    """Cross-entropy of one output per class; targets are one-hot."""

    def values(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_p = z.log_softmax(-1)
        return -(log_p * self.targets).sum(-1), log_p.exp() - self.targets

    def curvature(self, gradient: Tensor, direction: Tensor) -> Tensor:
        p = gradient + self.targets
        return (p * direction.square()).sum(-1) - (p * direction).sum(-1).square()


class Squared(Loss):
    """Half the squared error."""

    def values(self, z: Tensor) -> tuple[Tensor, Tensor]:
        error = z - self.targets
        return error.square().sum(-1) / 2, error

    def curvature(self, gradient: Tensor, direction: Tensor) -> Tensor:
        return direction.square().sum(-1)


class Solution(NamedTuple):
    """Weights (k, c, d), biases (k, c) and outputs for the training features (n, k, c)."""

    weight: Tensor
    bias: Tensor
    outputs: Tensor


def solve(
    space: Space, loss: Loss, strengths: Tensor, bias: Tensor, *,
    rows: Tensor | None = None, tolerance: float = 1e-6, iterations: int = 300,
) -> Solution:  # fmt: skip
    """Solve problems with inverse strengths (k,) from zero weights and `bias` (k, c).

    `rows` (n, k) weights the examples, 0 for those that a problem must not be trained on. A problem is solved when the
    expected decrease of the mean loss of its examples is below `tolerance`.
    """
    rows = torch.ones(space.rows, 1) if rows is None else rows
    least = tolerance * strengths * rows.sum(0)  # (k,)
    state = _State(space, loss, strengths, rows * strengths, bias)
    active, solved = torch.arange(len(strengths)), torch.zeros_like(strengths, dtype=torch.bool)
    final_v, final_z = torch.empty_like(state.v[0]), torch.empty_like(state.z)
    for _ in range(iterations):
        stop_if_requested()
        d = state.direction()
        slope = _inner(state.g, d)  # (k,) negative
        solved = solved | (-slope <= least[active])
        if 2 * int(solved.sum()) > len(solved):
            final_v[:, active], final_z[:, active] = state.v[0], state.z
            if bool(solved.all()):
                break
            left = (~solved).nonzero()[:, 0]
            active, solved, slope, d = active[left], solved[left], slope[left], d[:, :, left]
            state.keep(left, strengths[active])
        solved = solved | ~state.move(d, slope)
    else:
        final_v[:, active], final_z[:, active] = state.v[0], state.z
    space.precondition(strengths)
    return Solution(*space.weights(final_v), final_z)


def _inner(v: Tensor, u: Tensor) -> Tensor:
    """Return (k,) the inner product of two points."""
    return (v[0] * u[1]).sum((0, 2))


class _State:
    """Point, outputs and curvature of the problems that are not solved yet."""

    def __init__(self, space: Space, loss: Loss, strengths: Tensor, weight: Tensor, bias: Tensor) -> None:
        space.precondition(strengths)
        v = bias.new_zeros(space.size, *bias.shape)
        v[-1] = bias / space.scale[-1]
        self.space, self.loss, self.weight = space, loss, weight  # (n, k) of the losses
        self.v = space.point(v)
        self.z = space.logits(self.v)  # (n, k, c)
        losses, self.residual = loss.values(self.z)  # (n, k, c) gradients of the losses
        self.objective = (weight * losses).sum(0) + space.penalised(self.v, self.v) / 2  # (k,)
        self.g = self.gradient()  # (2, r, k, c) of the objective
        self.gamma = torch.ones_like(self.objective)  # (k,) scale of the inverse curvature
        # steps, the changes of the gradient in them, and the inverses (k,) of their inner products
        self.history: list[tuple[Tensor, Tensor, Tensor]] = []

    def gradient(self) -> Tensor:
        pull = self.space.pull(self.weight[..., None] * self.residual)
        return self.space.point(self.space.scale * pull + self.space.penalty * self.v[0])

    def direction(self) -> Tensor:
        """Return the direction of L-BFGS."""
        q, shares = self.g, []
        for step, change, inverse in reversed(self.history):
            shares.append(inverse * _inner(q, step))
            q = q - shares[-1][:, None] * change
        q = self.gamma[:, None] * q
        for (step, change, inverse), share in zip(self.history, reversed(shares), strict=True):
            q = q + (share - inverse * _inner(q, change))[:, None] * step
        return -q

    def move(self, d: Tensor, slope: Tensor) -> Tensor:
        """Move to the minimum along a direction; return (k,) which objectives have decreased."""
        dz = self.space.logits(d)
        linear, square = self.space.penalised(self.v, d), self.space.penalised(d, d)
        start = self.objective - (self.weight * self.loss.values(self.z)[0]).sum(0)
        t = torch.ones_like(slope)
        if not self.history:
            t = -slope / self._bend(self.residual, dz, square)
        low, high = torch.zeros_like(t), torch.full_like(t, math.inf)  # bounds of the minimum
        objective, residual = self.objective, self.residual
        for trial in range(1, TRIALS + 1):
            losses, residual = self.loss.values(self.z + t[:, None] * dz)
            objective = (self.weight * losses).sum(0) + start + t * linear + t.square() * square / 2
            change = (self.weight * (residual * dz).sum(-1)).sum(0) + linear + t * square  # derivative at t
            exact = change.abs() <= EXACT * slope.abs()
            if trial == TRIALS or bool(exact.all()):
                break
            low, high = torch.where(change < 0, t, low), torch.where(change < 0, high, t)
            newton = t - change / self._bend(residual, dz, square)
            middle = torch.where(high.isfinite(), (low + high) / 2, 2 * t + SMALLEST)
            t = torch.where(exact, t, torch.where((newton > low) & (newton < high), newton, middle))
        decreased = (objective < self.objective) & (slope < 0)
        t = torch.where(decreased, t, 0.0)[:, None]
        self.residual = torch.where(decreased[:, None], residual, self.residual)
        self.objective = torch.where(decreased, objective, self.objective)
        step, old = t * d, self.g
        self.v, self.z = self.v + step, self.z + t * dz
        self.g = self.gradient()
        change = self.g - old
        along, square = _inner(change, step), _inner(change, change)
        usable = decreased & (along > 0) & (square > 0)
        inverse = torch.where(usable, 1 / torch.where(usable, along, 1.0), 0.0)
        self.gamma = torch.where(usable, along / torch.where(usable, square, 1.0), self.gamma)
        self.history = [*self.history[1 - MEMORY :], (step, change, inverse)]
        return decreased

    def _bend(self, residual: Tensor, dz: Tensor, square: Tensor) -> Tensor:
        """Return the second derivatives (k,) along a direction, from the gradients of the losses at a point."""
        return ((self.weight * self.loss.curvature(residual, dz)).sum(0) + square).clamp(min=SMALLEST)

    def keep(self, left: Tensor, strengths: Tensor) -> None:
        """Drop the problems that are not at the indices `left`; `strengths` are those of the others."""
        self.space.precondition(strengths)
        self.loss = self.loss.keep(left)
        self.v, self.g = self.v[:, :, left], self.g[:, :, left]
        self.z, self.residual, self.weight = self.z[:, left], self.residual[:, left], self.weight[:, left]
        self.objective, self.gamma = self.objective[left], self.gamma[left]
        self.history = [(step[:, :, left], change[:, :, left], inv[left]) for step, change, inv in self.history]
