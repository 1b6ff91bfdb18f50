"""HMA: a momentum encoder writes every batch into a queue, which later batches read.

Shapes: b batch, d width.
"""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, choice, retired_settings, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.averaging import blend, copy_buffers
from holdfast.methods.base import Method, Metrics
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.memory.queue import Queue, balanced_sample
from holdfast.nn.necks import MatchedControl, ParameterControl


class HMA(Method):
    """Minimise the risk, update E_m <- momentum E_m + (1 - momentum) E, write [E_m(x), y] (Qiu et al., 2023).

    A batch is read before it is written, so the queue does not contain its labels. The momentum encoder E_m is not
    saved in model folders. There is none if nothing writes the queue, if at most the class token of the encoder is
    trained, or with momentum 0; then the features of the step are written. In a distributed run every process writes
    the rows of all processes, so that the queues stay equal.

    The momentum of update t, counted from 0, is min(momentum, (1 + t) / (10 + t)), so that E_m follows the encoder in
    short runs: with a constant 0.999, as published, it still consists of 74% of the initial encoder after 300 updates.

    E_m is in evaluation mode and its batch statistics are those of the encoder.
    """

    @checked_settings
    class Settings:
        momentum: float = setting(
            0.999, least=0, below=1, search=choice(0.9, 0.99, 0.999), help="momentum of the momentum encoder"
        )
        momentum_warmup: bool = setting(
            True, help="momentum (1 + t) / (10 + t) at update t until it exceeds `momentum`; false as published"
        )

        retired = retired_settings(statistics="copied")

    saved_attributes = ("optimizer", "updates")
    updates = 0  # of the momentum encoder
    follower: nn.Module | None  # the momentum encoder

    def setup(self) -> None:
        if not isinstance(self.model.neck, HeterogeneousMemory | ParameterControl | MatchedControl):
            raise BadInput("method hma needs a heterogeneous memory: use --set neck=heterogeneous")
        self.register_module("follower", None)
        if self.queue is not None and self.settings.momentum > 0 and _is_trained(self.model.backbone):
            self.follower = copy.deepcopy(self.model.backbone).requires_grad_(False).eval()

    @property
    def memory(self) -> HeterogeneousMemory | None:
        """The neck, or None for the control without memory."""
        return self.model.neck if isinstance(self.model.neck, HeterogeneousMemory) else None

    @property
    def queue(self) -> Queue | None:
        """The queue that is written, or None."""
        queue = None if self.memory is None else self.memory.queue
        return None if queue is None or queue.noise else queue

    def step(self, batch: DomainBatch) -> Metrics:
        with tape(labels=batch.y) as side:
            z = self.model.encode(batch.x)  # (b, d)
            risk = self.task.loss(self.model.head(self.model.apply_neck(z)), batch.y)
        self.optimizer.minimize(with_auxiliary(risk, side))
        self._update_follower()
        self._write(z.detach(), batch)
        self._use_batch_as_support(side["heterogeneous/recalled"], batch)
        if self.queue is None:
            return {"risk": risk.detach()}
        reads = {"same_class": side["stat/queue/same_class"][-1], "queue_mass": side["stat/queue/mass"][-1]}
        return {"risk": risk.detach(), "held": self.queue.seen.float().mean(), **reads}  # held: filled share

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        """Set the support set to a class-balanced sample of the training data."""
        neck = self.memory
        if neck is None or neck.support is None:
            return
        training = self.training
        self.eval()
        rows = ((neck.read_queue(self.model.encode(batch.x)), batch.y) for batch in batches)
        neck.set_support(balanced_sample(rows, len(neck.support)))
        self.train(training)

    @torch.no_grad()
    def _update_follower(self) -> None:
        """Move the momentum encoder towards the encoder."""
        if self.follower is None or self.optimizer.calls % self.optimizer.settings.accumulate:
            return
        weights = zip(self.follower.parameters(), self.model.backbone.parameters(), strict=True)
        pairs = [pair for pair in weights if pair[1].requires_grad]
        parallel.average_batch_statistics(self.model.backbone)
        copy_buffers(self.follower, self.model.backbone)
        momentum, t = self.settings.momentum, self.updates
        momentum = min(momentum, (1 + t) / (10 + t)) if self.settings.momentum_warmup else momentum
        blend([average for average, _ in pairs], [new for _, new in pairs], 1 - momentum)
        self.updates += 1

    @torch.no_grad()
    def _write(self, z: Tensor, batch: DomainBatch) -> None:
        if self.memory is not None and self.queue is not None:
            z = z if self.follower is None else self.model.encode(batch.x, backbone=self.follower)
            self.memory.write(*(parallel.gather_rows(t, batch.sizes) for t in (z, batch.y)))

    def _use_batch_as_support(self, recalled: list[Tensor], batch: DomainBatch) -> None:
        """Use the newest batch as support set until the stage ends, so that validations have a context."""
        if self.memory is not None and self.memory.support is not None:
            rows = parallel.gather_rows(recalled[-1], batch.sizes)
            stride = -(-len(rows) // len(self.memory.support))  # rows are grouped by domain
            self.memory.set_support(rows[::stride])


def _is_trained(backbone: nn.Module) -> bool:
    """Whether more of the encoder is trained than its class token."""
    trained = {p for p in backbone.parameters() if p.requires_grad}
    try:
        tokens = set(backbone.class_token()) if trained and isinstance(backbone, Backbone) else set()
    except BadInput:  # it has none
        tokens = set()
    return bool(trained - tokens)
