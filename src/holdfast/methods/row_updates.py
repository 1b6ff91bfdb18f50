"""Updates of single rows of a large table, such as the values of a product-key memory, from its sparse gradient.

A step changes the rows that the batch read and their moments; all others stay as they are. Without momentum and weight
decay, SGD equals the dense update. Otherwise momentum, moments, bias correction and weight decay of a row count only
the steps that read it: rows that every step reads equal those of a dense update, and unread rows do not drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.kernels import kernels

EPS = 1e-6  # added to the norm of a gradient, as in torch
MOMENTS = ("exp_avg", "exp_avg_sq")  # named as in torch, whose checkpoints hold them


@torch.no_grad()
def update_rows(optimizer: torch.optim.Optimizer, divisor: Tensor | None = None) -> None:
    """Update the parameters with sparse gradients and remove these, so that `optimizer` updates all others.

    Gradients are divided by what `clip_gradients` returned.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is None or not _is_table(grad, optimizer.state.get(parameter, {})):
                continue
            rows, values = _rows_of(grad if divisor is None else grad / divisor)
            if isinstance(optimizer, torch.optim.SGD):
                _sgd(parameter, rows, values, optimizer.state[parameter], group)
            else:
                decoupled = isinstance(optimizer, torch.optim.AdamW)
                _adam(parameter, rows, values, optimizer.state[parameter], group, decoupled=decoupled)
            parameter.grad = None


def _is_table(grad: Tensor, state: dict[str, Any]) -> bool:
    """Whether a parameter is updated by row: now, or before, so that its steps are counted per row."""
    step = state.get("step")
    return grad.is_sparse or (isinstance(step, Tensor) and step.ndim > 0)


def _rows_of(grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices (r,) of the rows with a gradient and the gradients (r, d)."""
    if not grad.is_sparse:
        return torch.arange(len(grad), device=grad.device), grad
    grad = coalesced(grad)
    return grad.indices()[0], grad.values()


def coalesced(grad: Tensor) -> Tensor:
    """Return a sparse gradient whose rows are distinct and in order; it is copied only if they are not yet.

    The rows of a gradient from the kernels are, but `backward` forgets it.
    """
    if grad.is_coalesced() or not bool((grad._indices()[0].diff() > 0).all()):
        return grad.coalesce()
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_coo_tensor(grad._indices(), grad._values(), grad.shape, is_coalesced=True)


def _sgd(parameter: Tensor, rows: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * parameter[rows]
    if group["momentum"]:
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        grad = group["momentum"] * state["momentum_buffer"][rows] + grad
        state["momentum_buffer"][rows] = grad
    parameter.index_add_(0, rows, -group["lr"] * grad)


def _adam(
    parameter: Tensor, rows: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any], *, decoupled: bool
) -> None:
    """Take one step of Adam, or of AdamW if `decoupled`, for these rows; `step` counts per row."""
    if not state:
        state |= {name: torch.zeros_like(parameter) for name in MOMENTS}
        state["step"] = torch.zeros(len(parameter), dtype=torch.float32, device=parameter.device)
    elif state["step"].ndim == 0:  # earlier gradients were dense
        state["step"] = state["step"].to(parameter.device).repeat(len(parameter))
    fast = kernels("memory", parameter) if parameter.is_contiguous() else None
    if fast is not None:
        lr = group["lr"] if isinstance(group["lr"], Tensor) else torch.full((), group["lr"], device=parameter.device)
        options = {"betas": group["betas"], "eps": group["eps"], "decay": group["weight_decay"]}
        moments = state[MOMENTS[0]], state[MOMENTS[1]]
        fast.adam_rows(parameter, moments, state["step"], rows, grad, lr=lr, decoupled=decoupled, **options)
    else:
        adam_rows(parameter, rows, grad, state, group, decoupled=decoupled)


def adam_rows(
    parameter: Tensor, rows: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any], *, decoupled: bool
) -> None:
    """Update rows by torch operations, in place where possible: the reference of the kernel."""
    (beta, beta_square), lr, decay = group["betas"], group["lr"], group["weight_decay"]
    values = parameter[rows]
    if decay and decoupled:
        values.mul_(1 - lr * decay)
    elif decay:
        grad = grad + decay * values
    mean, square, steps = (state[name][rows] for name in (*MOMENTS, "step"))
    mean.lerp_(grad, 1 - beta)
    square.mul_(beta_square).addcmul_(grad, grad, value=1 - beta_square)
    steps += 1
    for name, value in zip((*MOMENTS, "step"), (mean, square, steps), strict=True):
        state[name].index_copy_(0, rows, value)
    first, second = (1 - b ** steps[:, None].double() for b in (beta, beta_square))  # bias corrections (r, 1)
    spread = square.div_(second.to(square.dtype)).sqrt_().add_(group["eps"])
    values -= mean.div_(first.to(mean.dtype)).div_(spread).mul_(lr)
    parameter.index_copy_(0, rows, values)


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], most: float) -> Tensor | None:
    """Scale all gradients, sparse ones too, so that their joint norm is at most `most`.

    Dense gradients on a GPU stay as they are: a fused update divides them by the returned tensor, in the same pass.
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    if not any(grad.is_sparse for grad in grads):
        if grads and _on_gpu(grads):
            return ((nn.utils.get_total_norm(grads) + EPS) / most).clamp(min=1.0)
        nn.utils.clip_grad_norm_(parameters, most)
        return None
    values = []
    for p in parameters:
        if p.grad is not None:
            p.grad = coalesced(p.grad) if p.grad.is_sparse else p.grad
            values.append(p.grad.values() if p.grad.is_sparse else p.grad)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in values]))
    scale = (most / (norm + EPS)).clamp(max=1.0)
    for value in values:
        value.mul_(scale)
    return None


def _on_gpu(grads: Sequence[Tensor]) -> bool:
    return all(grad.is_cuda for grad in grads)
