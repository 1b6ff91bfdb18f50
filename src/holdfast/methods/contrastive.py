"""M-SCL: examples of one class close together, whatever their domain, against a memory of earlier features.

b batch, m slots of the memory, d width
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class MemoryContrastive(Method):
    """risk + weight * supervised contrastive loss over the batch and a queue of source features (Tan et al., 2022)."""

    keys: Tensor  # (m, d)
    labels: Tensor  # (m,) -1 where the queue is not yet filled

    saved_attributes = ("optimizer", "cursor")

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        weight: float = 0.1,
        temperature: float = 0.1,
        slots: int = 1024,
    ) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.weight, self.temperature = weight, temperature
        self.optimizer = optimizer(model.trainable_parameters())
        device = next(model.head.parameters()).device
        self.register_buffer("keys", torch.zeros(slots, model.width, device=device))
        self.register_buffer("labels", torch.full((slots,), -1, dtype=torch.long, device=device))
        self.cursor = 0

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        risk = self.task.loss(self.model.head(z), batch.y)
        near = F.normalize(z, dim=-1)
        contrast = supervised_contrast(near, batch.y, self.keys, self.labels, self.temperature)
        loss, extra = risk + self.weight * contrast, auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        self._write(*(parallel.gather_rows(t, batch.sizes) for t in (near.detach(), batch.y)))
        return {"risk": risk.detach(), "contrast": contrast.detach()}

    def _write(self, keys: Tensor, labels: Tensor) -> None:
        """The newest features overwrite the oldest."""
        slots = len(self.keys)
        keys, labels = keys[-slots:], labels[-slots:]
        at = (self.cursor + torch.arange(len(keys), device=keys.device)) % slots
        self.keys[at], self.labels[at] = keys.to(self.keys.dtype), labels
        self.cursor = (self.cursor + len(keys)) % slots


def supervised_contrast(z: Tensor, y: Tensor, keys: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """-mean over same-class others p of log[exp(z.p/t) / sum over all others exp(z.o/t)] (Khosla et al., 2020)."""
    score = z @ torch.cat([z, keys]).T / temperature  # (b, b + m)
    other = torch.cat([~torch.eye(len(z), dtype=torch.bool, device=z.device), (labels >= 0).expand(len(z), -1)], dim=1)
    same = (y[:, None] == torch.cat([y, labels])) & other
    log_share = score - score.masked_fill(~other, -torch.inf).logsumexp(dim=1, keepdim=True)
    count = same.sum(dim=1)
    each = -log_share.masked_fill(~same, 0.0).sum(dim=1) / count.clamp(min=1)
    return (each * (count > 0)).sum() / (count > 0).sum().clamp(min=1)
