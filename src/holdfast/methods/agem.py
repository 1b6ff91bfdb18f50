"""Averaged gradient episodic memory: a step may not go against the gradient on examples of earlier domains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Metrics
from holdfast.methods.replay import Rehearsal

Grads = Sequence[Tensor | None]


class AGEM(Rehearsal):
    """Project the gradient g where it opposes the memory's gradient r (Chaudhry et al., 2019).

    g' = g - (g.r / r.r) r if g.r < 0, else g; r is the gradient of the risk on a draw from the buffer.
    """

    def step(self, batch: DomainBatch) -> Metrics:
        risk, grads = self._gradient(batch)
        held, turned = len(self.memory), torch.zeros_like(risk)
        if held:
            _, reference = self._gradient(self.draw(batch))
            grads, turned = project(grads, reference)
        self.optimizer.apply(grads)
        return {"risk": risk, "projected": turned, "buffer": torch.tensor(float(held))}

    def _gradient(self, batch: DomainBatch) -> tuple[Tensor, Grads]:
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        loss = risk if extra is None else risk + extra
        moving = self.optimizer.parameters
        return risk.detach(), parallel.averaged(torch.autograd.grad(loss, moving, allow_unused=True), moving)


def project(grads: Grads, reference: Grads) -> tuple[list[Tensor | None], Tensor]:
    """The gradient without its part against the reference, and 1 where there was such a part, else 0."""
    dot, square = _dot(grads, reference), _dot(reference, reference)
    # without a branch, so that the device is not waited for
    scale = dot.clamp(max=0.0) / square.clamp(min=torch.finfo(square.dtype).tiny)
    return [_minus(g, r, scale) for g, r in zip(grads, reference, strict=True)], (dot < 0).float()


def _dot(a: Grads, b: Grads) -> Tensor:
    parts = [(x * y).sum() for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return torch.stack(parts).sum()


def _minus(g: Tensor | None, r: Tensor | None, scale: Tensor) -> Tensor | None:
    if r is None:
        return g
    return -scale * r if g is None else g - scale * r
