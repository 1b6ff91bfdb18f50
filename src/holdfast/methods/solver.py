"""Solver of many penalised linear models at once: L-BFGS with exact line searches, in a preconditioned space.

All problems have the same features and differ in strength, targets or training rows. They are solved in lockstep, so
that every product with the features is one matrix product for all problems. Every problem minimises
C * sum of losses + |W|^2 / 2 over weights W and a bias without penalty.

Shapes: n examples, d features, k problems, c outputs per problem, r coordinates; the last of r is the bias.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

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
    """Coordinates v (r, k, c) of weights and biases, with an inner product <v, u> = sum of v * metric(u)."""

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
    def metric(self, v: Tensor) -> Tensor:
        """Return (r, k, c) such that the sum of its products with u is the inner product of v and u."""

    @abstractmethod
    def logits(self, v: Tensor, image: Tensor) -> Tensor:
        """Return the outputs (n, k, c) of v, whose metric is `image`."""

    @abstractmethod
    def weights(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (k, c, d) and biases (k, c) of the features."""


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
        self.scale = self.penalty = x.new_ones(self.size, 1, 1)

    def precondition(self, strengths: Tensor) -> None:
        curvature = 1 + self.moments[:, None] * strengths / 4  # (d, k)
        bias = (self.rows * strengths / 4)[None]
        self.scale = torch.cat([curvature, bias]).rsqrt()[..., None]
        self.penalty = self.scale.square()
        self.penalty[-1] = 0.0

    def pull(self, residual: Tensor) -> Tensor:
        flat = residual.flatten(1)
        return torch.cat([self.x.T @ flat, flat.sum(0, keepdim=True)]).view(-1, *residual.shape[1:])

    def metric(self, v: Tensor) -> Tensor:
        return v

    def logits(self, v: Tensor, image: Tensor) -> Tensor:
        w = (self.scale * v).flatten(1)
        return torch.addmm(w[-1:], self.x, w[:-1]).view(-1, *v.shape[1:])

    def weights(self, v: Tensor) -> tuple[Tensor, Tensor]:
        w = self.scale * v
        bias, weight = w[-1], w[:-1].flatten(1)
        weight = (weight if self.axes is None else self.axes @ weight).view(-1, *v.shape[1:])
        return weight.permute(1, 2, 0), bias - torch.einsum("d,dkc->kc", self.mean, weight)


class Dual(Space):
    """Weights that are sums of examples, for sparse features or more features than examples.

    The coordinates are those sums; the metric is the centred Gram matrix, as products with the features.
    """

    def __init__(self, features: Any) -> None:
        self.features = features
        self.rows, self.size = features.rows, features.rows + 1
        self.scale = self.penalty = features.ones(self.size)[:, None, None]

    def precondition(self, strengths: Tensor) -> None:
        self.scale = torch.ones_like(self.scale)
        self.penalty = self.scale.clone()
        self.penalty[-1] = 0.0

    def pull(self, residual: Tensor) -> Tensor:
        return torch.cat([residual, residual.sum(0, keepdim=True)])

    def metric(self, v: Tensor) -> Tensor:
        flat = v.flatten(1)
        centred = flat[:-1] - flat[:-1].mean(0)
        image = self.features.forward(self.features.backward(centred))
        return torch.cat([image - image.mean(0), flat[-1:]]).view_as(v)

    def logits(self, v: Tensor, image: Tensor) -> Tensor:
        return image[:-1] + image[-1:]

    def weights(self, v: Tensor) -> tuple[Tensor, Tensor]:
        flat = v.flatten(1)
        centred = flat[:-1] - flat[:-1].mean(0)
        weight = self.features.backward(centred)  # (d, kc)
        bias = flat[-1] - self.features.forward(weight).mean(0)
        return weight.view(-1, *v.shape[1:]).permute(1, 2, 0), bias.view(v.shape[1:])


class DenseProducts:
    """Products of dense features (n, d) on their device."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.rows = x, len(x)

    def ones(self, count: int) -> Tensor:
        return self.x.new_ones(count)

    def forward(self, w: Tensor) -> Tensor:
        return self.x @ w

    def backward(self, a: Tensor) -> Tensor:
        return self.x.T @ a


class SparseProducts:
    """Products of a sparse matrix (n, d) on the CPU, with the kernels of MKL if torch has them."""

    def __init__(self, x: sparse.csr_matrix) -> None:
        x = sparse.csr_matrix(x, dtype=np.float32)
        self.rows = len(x.indptr) - 1
        self.matrices: tuple[Any, Any] = (x, sparse.csr_matrix(x.T))
        if torch.backends.mkl.is_available() and x.nnz < 2**31:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that sparse tensors are in beta
                first, second = (
                    torch.sparse_csr_tensor(*(torch.from_numpy(a) for a in (m.indptr, m.indices, m.data)), size=m.shape)
                    for m in self.matrices
                )
                self.matrices = first, second

    def ones(self, count: int) -> Tensor:
        return torch.ones(count)

    def forward(self, w: Tensor) -> Tensor:
        return self._product(0, w)

    def backward(self, a: Tensor) -> Tensor:
        return self._product(1, a)

    def _product(self, side: int, w: Tensor) -> Tensor:
        matrix = self.matrices[side]
        if isinstance(matrix, Tensor):
            return matrix @ w.contiguous()
        return torch.from_numpy(np.ascontiguousarray(matrix @ w.numpy()))


def space_of(x: Any) -> Space:
    """Return the space of features (n, d): a tensor, an array or a sparse matrix."""
    if sparse.issparse(x):
        return Dual(SparseProducts(x))
    x = torch.as_tensor(x, dtype=torch.float32)
    return Primal(x) if x.shape[1] <= len(x) else Dual(DenseProducts(x))


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


@dataclass
class Solution:
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
    space.precondition(strengths)
    weight = strengths if rows is None else rows * strengths  # (k,) or (n, k)
    total = strengths * space.rows if rows is None else weight.sum(0)
    v = bias.new_zeros(space.size, *bias.shape)
    v[-1] = bias / space.scale[-1]
    image = space.metric(v)
    state = _State(loss, weight, v, image, space.logits(v, image))
    state.evaluate(space)
    active, solved = torch.arange(len(strengths), device=bias.device), torch.zeros_like(strengths, dtype=torch.bool)
    final_v, final_z = torch.empty_like(v), torch.empty_like(state.z)
    for _ in range(iterations):
        stop_if_requested()
        d, d_image = state.direction(space)
        slope = (state.g * d_image).sum((0, 2))  # (k,) negative
        solved = solved | (-slope <= tolerance * total[active])
        if 2 * int(solved.sum()) > len(solved):
            final_v[:, active], final_z[:, active] = state.v, state.z
            if bool(solved.all()):
                break
            left = (~solved).nonzero()[:, 0]
            active, solved, slope = active[left], solved[left], slope[left]
            d, d_image = d[:, left], d_image[:, left]
            state.keep(left)
            space.precondition(strengths[active])
        solved = solved | ~state.move(space, d, d_image, slope)
    else:
        final_v[:, active], final_z[:, active] = state.v, state.z
    space.precondition(strengths)
    return Solution(*space.weights(final_v), final_z)


@dataclass
class _State:
    """Point, outputs and curvature of the problems that are not solved yet."""

    loss: Loss
    weight: Tensor  # (k,) or (n, k) of the losses
    v: Tensor  # (r, k, c), and its metric
    image: Tensor
    z: Tensor  # (n, k, c)
    objective: Tensor = field(init=False)  # (k,)
    residual: Tensor = field(init=False)  # (n, k, c) gradients of the losses
    g: Tensor = field(init=False)  # (r, k, c) gradient of the objective, and its metric
    g_image: Tensor = field(init=False)
    gamma: Tensor = field(init=False)  # (k,) scale of the inverse curvature
    history: list[_Pair] = field(default_factory=list)

    def evaluate(self, space: Space) -> None:
        """Compute objective and gradient of the first point."""
        losses, self.residual = self.loss.values(self.z)
        self.objective = (self.weight * losses).sum(0) + (space.penalty * self.v * self.image).sum((0, 2)) / 2
        self.gamma = torch.ones_like(self.objective)
        self._differentiate(space)

    def _differentiate(self, space: Space) -> None:
        self.g = space.scale * space.pull(self.weight[..., None] * self.residual) + space.penalty * self.v
        self.g_image = space.metric(self.g)

    def direction(self, space: Space) -> tuple[Tensor, Tensor]:
        """Return the direction of L-BFGS and its metric."""
        q, image, primal = self.g, self.g_image, self.g_image is self.g
        shares = []
        for pair in reversed(self.history):
            share = pair.inverse * (pair.step_image * q).sum((0, 2))
            q = q - share[:, None] * pair.change
            image = q if primal else image - share[:, None] * pair.change_image
            shares.append(share)
        q = self.gamma[:, None] * q
        image = q if primal else self.gamma[:, None] * image
        for pair, share in zip(self.history, reversed(shares), strict=True):
            factor = (share - pair.inverse * (pair.change_image * q).sum((0, 2)))[:, None]
            q = q + factor * pair.step
            image = q if primal else image + factor * pair.step_image
        return -q, -image

    def move(self, space: Space, d: Tensor, d_image: Tensor, slope: Tensor) -> Tensor:
        """Move to the minimum along a direction; return (k,) which objectives have decreased."""
        dz = space.logits(d, d_image)
        linear = (space.penalty * self.v * d_image).sum((0, 2))
        square = (space.penalty * d * d_image).sum((0, 2))
        start = self.objective - ((self.weight * self.loss.values(self.z)[0]).sum(0))
        t = torch.ones_like(slope)
        if not self.history:
            t = -slope / ((self.weight * self.loss.curvature(self.residual, dz)).sum(0) + square).clamp(min=SMALLEST)
        low, high = torch.zeros_like(t), torch.full_like(t, math.inf)  # bounds of the minimum
        objective, residual = self.objective, self.residual
        for trial in range(TRIALS):
            losses, residual = self.loss.values(self.z + t[:, None] * dz)
            objective = (self.weight * losses).sum(0) + start + t * linear + t.square() * square / 2
            change = (self.weight * (residual * dz).sum(-1)).sum(0) + linear + t * square  # derivative at t
            if trial == TRIALS - 1 or bool((change.abs() <= EXACT * slope.abs()).all()):
                break
            low, high = torch.where(change < 0, t, low), torch.where(change < 0, high, t)
            bend = (self.weight * self.loss.curvature(residual, dz)).sum(0) + square
            newton = t - change / bend.clamp(min=SMALLEST)
            inside = (newton > low) & (newton < high)
            middle = torch.where(high.isfinite(), (low + high) / 2, 2 * t + SMALLEST)
            better = torch.where(inside, newton, middle)
            t = torch.where(change.abs() <= EXACT * slope.abs(), t, better)
        decreased = (objective < self.objective) & (slope < 0)
        t = torch.where(decreased, t, 0.0)[:, None]
        if not bool(decreased.all()):
            residual = torch.where(decreased[:, None], residual, self.residual)
            objective = torch.where(decreased, objective, self.objective)
        step, step_image = t * d, t * d_image
        primal, old, old_image = self.g_image is self.g, self.g, self.g_image
        self.v, self.z = self.v + step, self.z + t * dz
        self.image = self.v if primal else self.image + step_image
        self.objective, self.residual = objective, residual
        self._differentiate(space)
        change, change_image = self.g - old, self.g_image - old_image
        product, square = (step_image * change).sum((0, 2)), (change * change_image).sum((0, 2))
        usable = decreased & (product > 0) & (square > 0)
        inverse = torch.where(usable, 1 / torch.where(usable, product, 1.0), 0.0)
        self.gamma = torch.where(usable, product / torch.where(usable, square, 1.0), self.gamma)
        pair = _Pair(step, step if primal else step_image, change, change if primal else change_image, inverse)
        self.history = [*self.history[1 - MEMORY :], pair]
        return decreased

    def keep(self, left: Tensor) -> None:
        """Drop the problems that are not at the indices `left`."""
        primal = self.g_image is self.g
        self.loss = self.loss.keep(left)
        self.weight = self.weight.index_select(-1, left)
        self.v, self.z, self.residual, self.g = (x[:, left] for x in (self.v, self.z, self.residual, self.g))
        self.image, self.g_image = (self.v, self.g) if primal else (self.image[:, left], self.g_image[:, left])
        self.objective, self.gamma = self.objective[left], self.gamma[left]
        self.history = [pair.keep(left) for pair in self.history]


@dataclass(frozen=True)
class _Pair:
    """A step, the change of the gradient (r, k, c), their metrics, and the inverse (k,) of their inner product."""

    step: Tensor
    step_image: Tensor
    change: Tensor
    change_image: Tensor
    inverse: Tensor

    def keep(self, left: Tensor) -> _Pair:
        step, change = self.step[:, left], self.change[:, left]
        primal = self.step_image is self.step
        images = (step, change) if primal else (self.step_image[:, left], self.change_image[:, left])
        return _Pair(step, images[0], change, images[1], self.inverse[left])
