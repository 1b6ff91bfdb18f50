"""HMA: after each step a momentum encoder moves and writes the batch into a queue that later batches read.

b batch, d width
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor, nn

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput, unknown
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.averaging import blend, copy_buffers
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.memory.queue import Queue, balanced_sample
from holdfast.nn.model import Model
from holdfast.nn.necks import ParameterControl
from holdfast.tasks.base import Task

STATISTICS = ("copied", "averaged", "own")


class HMA(Method):
    """Read, step down the risk, E_m <- momentum E_m + (1 - momentum) E, write [E_m(x), y] (Qiu et al., 2023).

    A batch is read with the queue as the steps before left it, so its own labels are not in it. The momentum encoder
    E_m is in no optimizer and in no model folder. There is none where the queue is not written, where the encoder does
    not learn or only its tokens do, and with momentum 0: then the features of the step itself are written. Of several
    processes each writes the rows of all, so that they hold the same queue.

    E_m has no dropout. Its batch statistics are those of the encoder, `copied` or `averaged` as the weights are; with
    `own`, as in the published code, it is in training mode and makes its own.
    """

    follower: nn.Module | None

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        momentum: float = 0.999,
        statistics: str = "copied",
    ) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise BadInput(f"momentum must be at least 0 and below 1, not {momentum}")
        if statistics not in STATISTICS:
            raise unknown("statistics of the momentum encoder", statistics, STATISTICS)
        if not isinstance(model.neck, HeterogeneousMemory | ParameterControl):
            raise BadInput("method hma writes a memory that this network has not: use --set neck=heterogeneous")
        self.model, self.task = model, task
        self.momentum, self.statistics = momentum, statistics
        self.optimizer = optimizer(model.trainable_parameters())
        self.register_module("follower", None)
        if self.queue is not None and momentum > 0 and _moves(model.backbone):
            self.follower = copy.deepcopy(model.backbone).requires_grad_(False).eval()

    @property
    def memory(self) -> HeterogeneousMemory | None:
        """The neck, unless it is the one without a memory that this one is compared with."""
        return self.model.neck if isinstance(self.model.neck, HeterogeneousMemory) else None

    @property
    def queue(self) -> Queue | None:
        """The queue that is written, if there is one."""
        found = None if self.memory is None else self.memory.queue
        return None if found is None or found.noise else found

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.follower is not None:
            self.follower.train(mode and self.statistics == "own")
        return self

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            z = self.model.encode(batch.x)  # (b, d)
            risk = self.task.loss(self.model.head(self.model.apply_neck(z)), batch.y)
        extra = auxiliary(side)
        self.optimizer.minimize(risk if extra is None else risk + extra)
        self._follow()
        self._write(z.detach(), batch)
        self._stand_in(side["heterogeneous/recalled"], batch)
        held = {} if self.queue is None else {"held": self.queue.seen.float().mean()}  # how full the queue is
        return {"risk": risk.detach(), **held}

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        """The support set: rows of all classes alike, as the trained network recalls them."""
        neck = self.memory
        if neck is None or neck.support is None:
            return
        training = self.training
        self.eval()
        offered = ((neck.read_queue(self.model.encode(batch.x)), batch.y) for batch in batches)
        neck.set_support(balanced_sample(offered, len(neck.support)))
        self.train(training)

    @torch.no_grad()
    def _follow(self) -> None:
        """The momentum encoder takes its share of the encoder as the step left it."""
        if self.follower is None or self.optimizer.calls % self.optimizer.settings.accumulate:
            return
        weights = zip(self.follower.parameters(), self.model.backbone.parameters(), strict=True)
        pairs: list[tuple[Tensor, Tensor]] = [pair for pair in weights if pair[1].requires_grad]
        parallel.average_batch_statistics(self.model.backbone)
        if self.statistics == "copied":
            copy_buffers(self.follower, self.model.backbone)
        elif self.statistics == "averaged":
            for mine, theirs in zip(self.follower.buffers(), self.model.backbone.buffers(), strict=True):
                if mine.is_floating_point():
                    pairs.append((mine, theirs))
                else:
                    mine.copy_(theirs)
        blend([mine for mine, _ in pairs], [theirs for _, theirs in pairs], 1 - self.momentum)

    @torch.no_grad()
    def _write(self, z: Tensor, batch: DomainBatch) -> None:
        if self.memory is not None and self.queue is not None:
            z = z if self.follower is None else self.model.encode(batch.x, backbone=self.follower)
            self.memory.write(*(parallel.gather_rows(t, batch.sizes) for t in (z, batch.y)))

    def _stand_in(self, recalled: list[Tensor], batch: DomainBatch) -> None:
        """Until the stage ends the support set is the newest batch, so that validations have a context of its kind."""
        if self.memory is not None and self.memory.support is not None:
            rows = parallel.gather_rows(recalled[-1], batch.sizes)
            every = -(-len(rows) // len(self.memory.support))  # a batch lies domain after domain
            self.memory.set_support(rows[::every])


def _moves(backbone: nn.Module) -> bool:
    """Whether more of the encoder learns than its tokens."""
    learning = {p for p in backbone.parameters() if p.requires_grad}
    try:
        tokens = set(backbone.class_token()) if learning and isinstance(backbone, Backbone) else set()
    except BadInput:  # it has none
        tokens = set()
    return bool(learning - tokens)
