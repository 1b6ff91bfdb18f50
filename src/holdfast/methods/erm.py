"""ERM, the baseline of all methods, and GroupDRO.

Shapes: n domains.
"""

import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.settings import checked_settings, log, setting
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.model import depends_on_batch


class ERM(Method):
    """Minimise the mean loss over all domains, plus the auxiliary losses of modules (Vapnik, 1998)."""

    supports_growth = "any"
    capturable = True

    def step(self, batch: DomainBatch) -> Metrics:
        if self.microbatches > 1:
            return self._step_in_microbatches(batch)
        risk, side = self.risk_of(batch)
        extra = auxiliary(side)
        if extra is None:
            self.optimizer.minimize(risk)
            return {"risk": risk.detach()}
        self.optimizer.minimize(risk + extra)
        return {"risk": risk.detach(), "auxiliary": extra.detach()}

    def _step_in_microbatches(self, batch: DomainBatch) -> Metrics:
        """Accumulate the losses of the microbatches, weighted by the number of terms in their means."""
        risks, total = [], self.task.loss_count(batch.y)
        for micro in batch.microbatches(self.microbatches):
            count = self.task.loss_count(micro.y)
            assert count is not None, "why_not_split excludes this task"
            assert total is not None
            risk = self.task.loss(self.model(micro.x), micro.y) * (count / total)
            self.optimizer.accumulate(risk)
            risks.append(risk.detach())
        self.optimizer.step()
        return {"risk": torch.stack(risks).sum()}

    def why_not_split(self, batch: DomainBatch) -> str:
        if self.task.loss_count(batch.y) is None:
            return "the loss of this task is not a mean over examples, so that microbatches would change the update"
        if any(depends_on_batch(module) for module in self.model.modules()):
            return "a layer of this network depends on the complete batch, so that microbatches would change it"
        return ""


class GroupDRO(Method):
    """Minimise sum_i q_i risk_i, with q_i multiplied by exp(eta * risk_i) in every step (Sagawa et al., 2020).

    If a batch has k of n domains, their weights are updated and the sum over them is multiplied by n / k.
    """

    @checked_settings
    class Settings:
        eta: float = setting(0.01, search=log(1e-3, 1e-1), help="step size of the domain weights")

    q: Tensor  # (n,) one weight per training domain
    min_domains = 2
    capturable = True

    def setup(self) -> None:
        self.register_buffer("q", torch.ones(1))

    def begin_stage(self, info: StageInfo) -> None:
        n = len(info.train_domains)
        self.q = torch.full((n,), 1.0 / n, device=self.q.device)

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            output = self.model(batch.x)
        pairs = zip(batch.split(output), batch.split(batch.y), strict=True)
        risks = torch.stack([self.task.loss(o, y) for o, y in pairs])  # (n,)
        with torch.no_grad():
            places = batch.places()
            self.q.index_copy_(0, places, self.q[places] * (self.settings.eta * parallel.mean(risks)).exp())
            self.q.div_(self.q.sum())
            weights = self.q[places] * (len(self.q) / len(risks))
        return self.minimize(risks @ weights, side, risk=risks.mean(), worst=risks.max())
