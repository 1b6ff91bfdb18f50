"""M-SCL: examples of one class have similar features in all domains, contrasted with a queue of earlier features.

Shapes: b batch, m slots of the queue, d width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.settings import checked_settings, log, setting
from holdfast.core.tape import tape
from holdfast.methods.base import Method, Metrics
from holdfast.nn.memory.queue import Queue


class MemoryContrastive(Method):
    """Minimise risk + weight * supervised contrastive loss over the batch and a queue (Tan et al., 2022)."""

    @checked_settings
    class Settings:
        weight: float = setting(0.1, search=log(1e-2, 1), help="weight of the contrastive loss")
        temperature: float = setting(0.1, search=log(0.03, 0.3), help="temperature of the contrastive loss")
        slots: int = setting(1024, help="features in the queue")

    def setup(self) -> None:
        self.queue = Queue(self.settings.slots, self.model.width, 0).to(self.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any) -> None:
        """Load the state, in checkpoints of earlier versions with the queue as `keys`, `labels` and `cursor`."""
        if f"{prefix}keys" in state_dict:
            labels, extra = state_dict.pop(f"{prefix}labels"), dict(state_dict[f"{prefix}_extra_state"])
            stored = {
                "features": state_dict.pop(f"{prefix}keys"), "labels": labels.clamp(min=0), "seen": labels >= 0,
                "at": torch.tensor(extra.pop("cursor")),
            }  # fmt: skip
            state_dict |= {f"{prefix}queue.{name}": value for name, value in stored.items()}
            state_dict[f"{prefix}_extra_state"] = extra
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        risk = self.task.loss(self.model.head(z), batch.y)
        unit = F.normalize(z, dim=-1)
        labels = torch.where(self.queue.seen, self.queue.labels, -1)
        contrast = supervised_contrast(unit, batch.y, self.queue.features, labels, self.settings.temperature)
        metrics = self.minimize(risk + self.settings.weight * contrast, side, risk=risk, contrast=contrast)
        self.queue.write(*(parallel.gather_rows(t, batch.sizes) for t in (unit.detach(), batch.y)))
        return metrics


def supervised_contrast(z: Tensor, y: Tensor, keys: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """-mean over same-class others p of log[exp(z.p/t) / sum over all others exp(z.o/t)] (Khosla et al., 2020)."""
    score = z @ torch.cat([z, keys]).T / temperature  # (b, b + m)
    other = torch.cat([~torch.eye(len(z), dtype=torch.bool, device=z.device), (labels >= 0).expand(len(z), -1)], dim=1)
    same = (y[:, None] == torch.cat([y, labels])) & other
    log_share = score - score.masked_fill(~other, -torch.inf).logsumexp(dim=1, keepdim=True)
    count = same.sum(dim=1)
    losses = -log_share.masked_fill(~same, 0.0).sum(dim=1) / count.clamp(min=1)  # (b,)
    return (losses * (count > 0)).sum() / (count > 0).sum().clamp(min=1)
