"""Bi-level optimisation: inner gradient steps, and the gradient of an outer loss through them.

theta' = theta - lr dL/dtheta(theta, m);  d/dm O(theta', m) = dO/dm - lr d2L/(dm dtheta) v,  v = dO/dtheta'
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdfast.core import parallel
from holdfast.core.seeds import rng_state, set_rng_state

ORDERS = ("first", "exact", "finite")  # without the second term, with it, or with it by finite differences

Parameters = Sequence[Tensor]
Loss = Callable[[Parameters], Tensor]
Gradients = Sequence[Tensor | None]


def look_ahead(
    inner: Loss, now: Parameters, *, lr: float, steps: int, order: str
) -> tuple[Tensor, Gradients, Parameters]:
    """Return (first inner loss, its gradient, theta' after `steps` steps); theta' has a graph for order `exact`."""
    exact = order == "exact"
    ahead, history = list(now), []
    for _ in range(steps):
        loss = inner(ahead)
        grads = torch.autograd.grad(loss, ahead, create_graph=exact, allow_unused=True)
        grads = parallel.mean_gradients(grads, ahead)
        ahead = [p if g is None else p - lr * g for p, g in zip(ahead, grads, strict=True)]
        if not exact:
            ahead = [p.detach().requires_grad_() for p in ahead]
        history.append((loss, grads))
    loss, grads = history[0]
    return loss.detach(), [None if g is None else g.detach() for g in grads], ahead


def outer_gradient(
    outer: Tensor, wanted: Parameters, *, inner: Loss, now: Parameters, ahead: Parameters, lr: float, order: str
) -> Gradients:
    """Return d outer / d wanted, where theta' (`ahead`) depends on `wanted` through the inner loss."""
    if order != "finite":
        return list(torch.autograd.grad(outer, wanted, allow_unused=True))
    grads = torch.autograd.grad(outer, [*wanted, *ahead], allow_unused=True)
    direct, v = list(grads[: len(wanted)]), parallel.mean_gradients(grads[len(wanted) :], ahead)
    if all(g is None for g in v):
        return direct  # the outer loss does not depend on the parameters of the inner step
    length = torch.stack([g.norm() for g in v if g is not None]).norm()
    reach = 0.01 / length.clamp(min=1e-12)
    state = rng_state()
    sides = []
    for sign in (1.0, -1.0):
        set_rng_state(state)  # equal dropout masks on both sides
        moved = [p.detach() if g is None else p.detach() + sign * reach * g for p, g in zip(now, v, strict=True)]
        sides.append(torch.autograd.grad(inner(moved), wanted, allow_unused=True))
    return [
        d if a is None or b is None else (0 if d is None else d) - lr * (a - b) / (2 * reach)
        for d, a, b in zip(direct, *sides, strict=True)
    ]


def twice_differentiable(order: str) -> AbstractContextManager[object]:
    """Select the attention kernel that can be differentiated twice, if the order needs it."""
    return sdpa_kernel(SDPBackend.MATH) if order == "exact" else nullcontext()
