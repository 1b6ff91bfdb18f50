"""MIL: a memory is learned so that what it adds hides the domain, then the task is learned with it.

b batch, d width, m slots
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput, unknown
from holdfast.core.seeds import use_shared_rng
from holdfast.core.tape import Tape, auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory, StageInfo
from holdfast.methods.bilevel import ORDERS, look_ahead, outer_gradient, twice_differentiable
from holdfast.methods.optim import Optimizer
from holdfast.nn.memory.neck import MemoryBlend, effective_slots
from holdfast.nn.model import Model
from holdfast.tasks.base import Task

INNER = ("persistent", "virtual", "undone")
LEARNS = ("all", "values")


class MIL(Method):
    """max over memory, min over critics of L_d(theta'), theta' = argmin L_t with the memory fixed (Jia & Zhang, 2023).

    Phase `meta`: one source domain at a time is held out; the network steps on the others' risk, then a critic learns
    to tell the held-out domain from them while the memory learns to prevent it. Phase `final`: network and head begin
    anew, the memory is frozen, and all source domains train them.
    """

    saved_attributes = ("optimizer", "critic", "ascent", "turn", "left")
    min_domains = 2
    phases = ("meta", "final")

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        memory_lr: float = 1e-3,
        memory_optimizer: str = "adam",
        memory_clip: float = 1.0,
        learns: str = "all",
        iterations: int = 32,
        inner: str = "persistent",
        inner_steps: int = 1,
        inner_lr: float | None = None,
        order: str = "first",
        critic_steps: int = 1,
        critic_lr: float | None = None,
        hidden: int | None = None,
        balanced: bool = True,
        blocks: bool = False,
    ) -> None:
        super().__init__()
        for what, name, known in (("inner step", inner, INNER), ("order", order, ORDERS), ("part", learns, LEARNS)):
            if name not in known:
                raise unknown(what, name, known)
        counts = (iterations, inner_steps, critic_steps, 1 if hidden is None else hidden)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise BadInput("iterations, inner_steps, critic_steps and hidden must be whole numbers of at least 1")
        if memory_lr < 0 or not all(rate is None or rate > 0 for rate in (inner_lr, critic_lr)):
            raise BadInput("memory_lr must not be negative, inner_lr and critic_lr must be above 0")
        if order == "finite" and inner_steps > 1:
            raise BadInput("finite differences go through one inner step: use inner_steps=1 or order=exact")
        self.model, self.task, self.make_optimizer = model, task, optimizer
        self.iterations, self.inner, self.inner_steps, self.order = iterations, inner, inner_steps, order
        self.critic_steps, self.critic_lr, self.hidden = critic_steps, critic_lr, hidden
        self.balanced, self.blocks = balanced, blocks
        fused = [part for part in model.modules() if isinstance(part, MemoryBlend)]
        if not fused:
            raise BadInput("method mil learns a memory, and this network has none: use --set neck=memory")
        self.above = not any(isinstance(part, MemoryBlend) for part in model.backbone.modules())
        self.remembered = [p for part in fused for p in part.parameters()]
        if memory_lr > 0 and not any(p.requires_grad for p in self.remembered):
            raise BadInput("method mil learns the memory, which neck.frozen holds: leave that out, or set memory_lr=0")
        inside = {id(t) for part in fused for t in (*part.parameters(), *part.buffers())}
        tensors = (*model.named_parameters(), *model.named_buffers())
        self.memory_names = {name for name, t in tensors if id(t) in inside}
        own = {name: p for name, p in model.named_parameters() if p.requires_grad and name not in self.memory_names}
        self.names, self.own = list(own), list(own.values())
        self.fresh = {name: t.clone() for name, t in model.state_dict().items()}
        self.optimizer = optimizer(self.own)
        recipe = replace(self.optimizer.settings, weight_decay=0.0, schedule="constant", warmup=0, clip=memory_clip)
        recipe = replace(recipe, optimizer=memory_optimizer, lr=memory_lr or 1.0)
        moved = [p for part in fused for p in _learning(part, learns)]
        self.ascent = Optimizer(recipe, moved)
        self.inner_lr = inner_lr or self.optimizer.settings.lr
        self.turn, self.left = 0, 0
        if memory_lr == 0:
            self.phases = ("final",)  # of the first phase nothing would be left

    def begin_stage(self, info: StageInfo) -> None:
        width, device = self.model.width, next(self.model.parameters()).device
        self.judges = nn.ModuleList(judge(width, self.hidden or width) for _ in info.train_domains).to(device)
        recipe = replace(self.optimizer.settings, lr=self.critic_lr or self.optimizer.settings.lr)
        self.critic = Optimizer(recipe, list(self.judges.parameters()))

    def begin_phase(self, name: str) -> None:
        self.turn, self.left = 0, 0
        self.learning_memory = name == "meta"
        for parameter in self.remembered:
            parameter.requires_grad_(self.learning_memory)
        if name == "final":
            now = self.model.state_dict()
            begin = {k: now[k] if k in self.memory_names else t.to(now[k].device) for k, t in self.fresh.items()}
            self.model.load_state_dict(begin)
            self.optimizer = self.make_optimizer(self.own)

    def step(self, batch: DomainBatch) -> Metrics:
        if self.learning_memory:
            return self._meta(batch, self._next_domain(batch))
        if self.blocks:
            batch = batch.by_domain()[self._next_domain(batch)]
        risk = self._risk(self.own, batch)
        self.optimizer.minimize(risk)
        return {"risk": risk.detach()}

    def _next_domain(self, batch: DomainBatch) -> int:
        """One domain for `iterations` steps, then another drawn."""
        if self.left == 0:
            with use_shared_rng():
                self.turn, self.left = int(torch.randint(len(batch.sizes), ())), self.iterations
        self.left -= 1
        return self.turn

    def _meta(self, batch: DomainBatch, held: int) -> Metrics:
        seen, _ = batch.hold_out(held)
        at, ahead, lr = self.own, self.own, self.inner_lr
        aside = self.inner != "persistent" or self.order != "first"

        def inner(parameters: Sequence[Tensor]) -> Tensor:
            return self._risk(parameters, seen)

        with twice_differentiable(self.order):
            if aside:
                risk, first, ahead = look_ahead(inner, at, lr=lr, steps=self.inner_steps, order=self.order)
            else:
                risk, first = self._inner_steps(seen), []
            with tape() as side:
                fused = self._features(ahead, batch)
            for _ in range(self.critic_steps - 1):
                self.critic.minimize(self.domain_loss(fused.detach(), batch, held)[0])
            loss, accuracy = self.domain_loss(fused, batch, held)
            memory, order = self.ascent.parameters, self.order
            wanted = [*memory, *self.critic.parameters]
            found = outer_gradient(loss, wanted, inner=inner, now=at, ahead=ahead, lr=lr, order=order)
        self.ascent.apply_gradients([None if g is None else -g for g in found[: len(memory)]])
        self.critic.apply_gradients(found[len(memory) :])
        if aside and self.inner != "undone":
            self.optimizer.apply_gradients(first)
        seen_loss = {"risk": risk.detach(), "domain": loss.detach(), "critic": accuracy}
        return {**seen_loss, **_usage(side)}

    def _inner_steps(self, seen: DomainBatch) -> Tensor:
        losses = []
        for _ in range(self.inner_steps):
            losses.append(self._risk(self.own, seen))
            self.optimizer.minimize(losses[-1])
        return losses[0]

    def _features(self, parameters: Sequence[Tensor], batch: DomainBatch) -> Tensor:
        """Fused features of the network with these parameters; where they are its own, only the memory learns."""
        if parameters is not self.own:
            named = {f"model.{name}": p for name, p in zip(self.names, parameters, strict=True)}
            return functional_call(_Features(self.model), named, (batch.x,))
        if not self.above:
            return self.model.features(batch.x)
        with torch.no_grad():
            z = self.model.encode(batch.x)
        return self.model.apply_neck(z)

    def domain_loss(self, fused: Tensor, batch: DomainBatch, held: int) -> tuple[Tensor, Tensor]:
        """The critic's cross-entropy for held-out against seen domains, and its accuracy; both sides count alike."""
        logits = self.judges[held](fused)[:, 0]  # (b,)
        sides = [batch.split(logits)[held], torch.cat([t for i, t in enumerate(batch.split(logits)) if i != held])]
        each = [F.softplus(-sides[0]), F.softplus(sides[1])]
        right = ((sides[0] > 0).float().mean() + (sides[1] <= 0).float().mean()) / 2
        return (each[0].mean() + each[1].mean()) / 2 if self.balanced else torch.cat(each).mean(), right.detach()

    def _risk(self, parameters: Sequence[Tensor], batch: DomainBatch) -> Tensor:
        with tape() as side:
            if parameters is self.own:
                output = self.model(batch.x)
            else:
                output = functional_call(self.model, dict(zip(self.names, parameters, strict=True)), (batch.x,))
            risk = self.task.loss(output, batch.y)
        extra = auxiliary(side)
        return risk if extra is None else risk + extra


class _Features(nn.Module):
    """The features of a model as its forward pass, for calls with other parameters than its own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.features(x)


def judge(width: int, hidden: int) -> nn.Sequential:
    """One domain against the rest, from features."""
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def _learning(part: MemoryBlend, learns: str) -> list[nn.Parameter]:
    return [p for name, p in part.memory.named_parameters() if learns == "all" or name.startswith("values")]


def _usage(side: Tape) -> Metrics:
    weights, slots = side["memory/weights"], side["memory/slots"]
    return {"slots": effective_slots(weights[-1])} if weights and not slots else {}
