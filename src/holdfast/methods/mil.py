"""MIL: a memory is trained so that the features it changes hide the domain; then the network is trained with it.

The memory m gets the gradient of an outer loss O through inner gradient steps on L (bi-level optimisation):
theta' = theta - lr dL/dtheta(theta, m);  d/dm O(theta', m) = dO/dm - lr d2L/(dm dtheta) v,  v = dO/dtheta'

Shapes: b batch, d width.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput, warn
from holdfast.core.seeds import rng_state, set_rng_state, use_shared_rng
from holdfast.core.settings import checked_settings, choice, log, retired_settings, setting, whole
from holdfast.core.tape import Tape, tape, with_auxiliary
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.methods.discriminant import a_distance, fisher
from holdfast.methods.meta import Gradients, Loss, Parameters, look_ahead
from holdfast.methods.optim import Optimizer
from holdfast.nn.memory.neck import MemoryBlend, effective_slots
from holdfast.nn.model import Model

CRITICS = ("fisher", "adversarial")
HORIZON = 64  # steps over which losses are smoothed
RISE = (2.0, 0.5)  # multiple of the first risk plus a constant, which the risk of a healthy run does not reach


class MIL(Method):
    """max over memory, min over critics of L_d(theta'), theta' = argmin L_t with a fixed memory (Jia & Zhang, 2023).

    Phase `meta`: one source domain is held out at a time. The network takes a step on the risk of the others; then a
    critic learns to tell the held-out domain from them, and the memory learns to prevent it. The critic is the linear
    discriminant of the batch in closed form, or one network per domain that takes gradient steps, as published. Phase
    `final`: network and head are reset to their initial weights and trained on all source domains with the frozen
    memory.
    """

    @checked_settings
    class Settings:
        memory_lr: float | None = setting(
            1e-3,
            least=0,
            search=log(1e-5, 1e-2),
            help="rate of the memory; 0 skips phase meta, none: lr times lr.memory",
        )
        memory_schedule: str = setting(
            "same", choices=("same", "constant"), help="schedule of the memory's rate: same as the run's, or constant"
        )
        learns: str = setting("all", choices=("all", "values"), help="what is trained of the memory: all or values")
        iterations: int | None = setting(
            None,
            least=1,
            search=whole(1, 64),
            help="steps per held-out domain; 1 with critic=fisher, else 32 by default",
        )
        inner_steps: int = setting(1, least=1, help="inner steps per update of the memory")
        inner_lr: float | None = setting(
            None, above=0, help="learning rate of the inner step; that of the run by default"
        )
        order: str = setting(
            "first",
            choices=("first", "finite"),
            help="derivative through the inner step: first, or finite for finite differences",
        )
        critic: str = setting(
            "fisher",
            choices=CRITICS,
            search=choice(*CRITICS),
            help="discriminant in closed form (fisher) or trained networks (adversarial)",
        )
        critic_steps: int = setting(1, least=1, search=whole(1, 4), help="updates of the critic per step")
        critic_lr: float | None = setting(
            None, above=0, help="learning rate of the critics; lr times lr.critic by default"
        )
        hidden: int | None = setting(None, least=1, help="hidden units of a critic; the feature width by default")
        divergence: float = setting(
            0.05,
            least=0,
            help="end phase meta if the critics' mean loss exceeds that of guessing by this; 0 never ends it",
        )

        def __post_init__(self) -> None:
            if self.order == "finite" and self.inner_steps > 1:
                raise BadInput("order=finite supports one inner step: use inner_steps=1 or order=first")

        retired = retired_settings(
            memory_optimizer="adam",
            memory_clip=1.0,
            inner="persistent",
            shrinkage=None,
            balanced=True,
            blocks=False,
            keep="last",
        )

    saved_attributes = (
        "optimizer", "critic_optimizer", "memory_optimizer", "held_out", "remaining", "game_steps", "phase_ended",
    )  # fmt: skip
    min_domains = 2
    phases = ("meta", "final")
    keeps_last = ("meta",)

    def setup(self) -> None:
        options, model = self.settings, self.model
        memories = [module for module in model.modules() if isinstance(module, MemoryBlend)]
        if not memories:
            raise BadInput("method mil trains a memory, and this network has none: use --set neck=memory")
        self.above_backbone = not any(isinstance(module, MemoryBlend) for module in model.backbone.modules())
        self.memory_parameters = [p for memory in memories for p in memory.parameters()]
        if options.memory_lr != 0 and not any(p.requires_grad for part in memories for p in part.memory.parameters()):
            raise BadInput("method mil trains the memory, which neck.frozen prevents: leave it out, or set memory_lr=0")
        inside = {id(t) for memory in memories for t in (*memory.parameters(), *memory.buffers())}
        tensors = (*model.named_parameters(), *model.named_buffers())
        self.memory_names = {name for name, t in tensors if id(t) in inside}
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad and n not in self.memory_names}
        self.names, self.trained = list(trained), list(trained.values())  # of the network without the memory
        self.initial_state = {name: t.clone() for name, t in model.state_dict().items()}
        self.optimizer = self.make_optimizer(self.trained)
        updated = [item for memory in memories for item in memory.named_parameters()]
        updated = [p for name, p in updated if options.learns == "all" or name.startswith(("memory.values", "gate"))]
        changes: dict[str, Any] = {"schedule": "constant", "warmup": 0} if options.memory_schedule == "constant" else {}
        if options.memory_lr is not None:
            changes |= {"lr": options.memory_lr or 1.0, "rates": {}}
        self.memory_optimizer = self.make_optimizer(updated, weight_decay=0.0, clip=1.0, optimizer="adam", **changes)
        self.inner_lr = options.inner_lr or self.optimizer.settings.lr
        self.held_out, self.remaining = 0, 0
        self.iterations = options.iterations or (1 if options.critic == "fisher" else 32)
        self.critic_optimizer: Optimizer | None = None
        self.register_buffer("smoothed", torch.zeros(3))  # critic loss and risk over the last steps; first risk
        self.trains_memory, self.game_steps, self.phase_ended = False, 0, False
        if options.memory_lr == 0:
            self.phases = ("final",)  # phase meta would have no effect

    def begin_stage(self, info: StageInfo) -> None:
        width = self.model.width
        self.smoothed = self.smoothed.to(self.device)
        if self.settings.critic == "fisher":
            return
        hidden = self.settings.hidden or width
        self.critics = nn.ModuleList(domain_critic(width, hidden) for _ in info.train_domains).to(self.device)
        rate = self.settings.critic_lr
        changes = {} if rate is None else {"lr": rate, "rates": {}}
        self.critic_optimizer = self.make_optimizer(list(self.critics.parameters()), part="critic", **changes)

    def begin_phase(self, name: str) -> None:
        self.held_out, self.remaining = 0, 0
        self.trains_memory, self.game_steps, self.phase_ended = name == "meta", 0, False
        self.smoothed.zero_()
        for parameter in self.memory_parameters:
            parameter.requires_grad_(self.trains_memory)
        if name == "final":
            now = self.model.state_dict()
            initial = self.initial_state.items()
            reset = {k: now[k] if k in self.memory_names else t.to(now[k].device) for k, t in initial}
            self.model.load_state_dict(reset)
            self.optimizer = self.make_optimizer(self.trained)

    def step(self, batch: DomainBatch) -> Metrics:
        if self.trains_memory:
            return self._meta_step(batch, self._next_domain(batch))
        risk = self._risk(self.trained, batch)
        self.optimizer.minimize(risk)
        return {"risk": risk.detach()}

    def _next_domain(self, batch: DomainBatch) -> int:
        """Return the position in the batch of a random domain that stays the same for `iterations` steps.

        Another one is drawn earlier if a batch has some of the domains and not this one.
        """
        places = list(range(len(batch.sizes))) if batch.drawn is None else batch.drawn.tolist()
        if self.remaining == 0 or self.held_out not in places:
            with use_shared_rng():
                self.held_out, self.remaining = places[int(torch.randint(len(places), ()))], self.iterations
        self.remaining -= 1
        return places.index(self.held_out)

    def _meta_step(self, batch: DomainBatch, held_out: int) -> Metrics:
        others, _ = batch.hold_out(held_out)
        now, ahead, lr = self.trained, self.trained, self.inner_lr
        finite = self.settings.order == "finite"

        def inner(parameters: Sequence[Tensor]) -> Tensor:
            return self._risk(parameters, others)

        if finite:
            risk, first, ahead = look_ahead(inner, now, lr=lr)
        else:
            risk, first = self._inner_steps(others), []
        with tape() as side:
            fused = self._features(ahead, batch)
        critic = self.critic_optimizer
        for update in [] if critic is None else [critic.minimize] * (self.settings.critic_steps - 1):
            update(self.domain_loss(fused.detach(), batch, held_out)[0], ends_step=False)
        loss, accuracy = self.domain_loss(fused, batch, held_out)
        memory = self.memory_optimizer.parameters
        wanted = [*memory, *(critic.parameters if critic else ())]
        outer = loss if critic else loss.log()  # the gradient does not vanish where the domains are far apart
        if finite:
            grads = finite_gradient(outer, wanted, inner=inner, now=now, ahead=ahead, lr=lr)
        else:
            grads = torch.autograd.grad(outer, wanted, allow_unused=True)
        self.memory_optimizer.apply_gradients([None if g is None else -g for g in grads[: len(memory)]])
        if critic:
            critic.apply_gradients(grads[len(memory) :])
        if finite:
            self.optimizer.apply_gradients(first)
        self._smooth(loss.detach(), risk.detach())
        return {"risk": risk.detach(), "domain": loss.detach(), "critic": accuracy, **_usage(side)}

    def _smooth(self, loss: Tensor, risk: Tensor) -> None:
        """Update the means of critic loss and risk; the first risk is that with the untrained memory."""
        self.game_steps += 1
        share = 1 / min(self.game_steps, HORIZON)
        self.smoothed[:2].lerp_(torch.stack([loss, risk]).to(self.smoothed), share)
        if self.game_steps == 1:
            self.smoothed[2] = self.smoothed[1]

    def on_valid(self, step: int, scores: Mapping[str, float], losses: Mapping[str, float]) -> None:
        """End phase meta if the game diverged: critics at their minimum are never worse than guessing."""
        options = self.settings
        if not (self.trains_memory and options.divergence) or self.phase_ended or self.game_steps < HORIZON:
            return
        loss, risk, start = parallel.mean(self.smoothed).tolist()
        if options.critic == "adversarial" and loss > math.log(2) + options.divergence:
            what = f"the critics' loss is {loss:.2f}, above ln 2 = 0.69 of a critic that guesses"
            fix = "raise method.critic_lr or method.critic_steps, use method.critic=fisher"
        elif risk > RISE[0] * start + RISE[1]:
            what, fix = f"the risk rose from {start:.2f} to {risk:.2f}", "lower --lr or neck.share"
        else:
            return
        self.phase_ended = True
        fix = f"lower method.memory_lr, {fix}, or set method.divergence=0 to continue"
        warn(f"mil ended phase meta at step {step} with the memory of the validation before, because {what}: {fix}")

    @torch.no_grad()
    def end_phase(self, name: str, batches: Iterable[DomainBatch]) -> dict[str, float]:
        """Measure the A-distance between the source domains on the features that the head receives."""
        self.eval()
        features: dict[int, list[Tensor]] = {}
        for batch in batches:
            for domain, part in zip(batch.domains, batch.split(self.model.features(batch.x)), strict=True):
                features.setdefault(domain, []).append(part)
        return {"distance": a_distance([torch.cat(rows) for rows in features.values()])}

    def _inner_steps(self, others: DomainBatch) -> Tensor:
        losses = []
        for left in reversed(range(self.settings.inner_steps)):
            losses.append(self._risk(self.trained, others))
            self.optimizer.minimize(losses[-1], ends_step=left == 0)
        return losses[0]

    def _features(self, parameters: Sequence[Tensor], batch: DomainBatch) -> Tensor:
        """Return (b, d) features with the given parameters; with the current ones only the memory gets a gradient."""
        if parameters is not self.trained:
            named = {f"model.{name}": p for name, p in zip(self.names, parameters, strict=True)}
            return functional_call(_Features(self.model), named, (batch.x,))
        if not self.above_backbone:
            return self.model.features(batch.x)
        with torch.no_grad():
            z = self.model.encode(batch.x)
        return self.model.apply_neck(z)

    def domain_loss(self, fused: Tensor, batch: DomainBatch, held_out: int) -> tuple[Tensor, Tensor]:
        """Return the critic's loss for the held-out domain against the others, and its balanced accuracy.

        The loss is the cross-entropy, or for critic=fisher the smallest mean squared error of a linear critic relative
        to that of a constant: 1 / (1 + J / 4). The held-out domain has as much weight as all others.
        """
        if self.settings.critic == "fisher":
            groups = [torch.full((n,), i == held_out, device=fused.device) for i, n in enumerate(batch.sizes)]
            result = fisher(fused, torch.cat(groups))
            loss = 1 / (1 + 0.25 * result.ratio.clamp(min=0))
            return loss, _both_sides(result.margins > 0, batch, held_out)
        critic = held_out if batch.drawn is None else int(batch.drawn[held_out])
        logits = self.critics[critic](fused)[:, 0]
        sign = torch.cat([logits.new_full((n,), 1.0 if i == held_out else -1.0) for i, n in enumerate(batch.sizes)])
        losses = F.softplus(-sign * logits)
        right = torch.where(sign > 0, logits > 0, logits <= 0)
        return _both_sides(losses, batch, held_out), _both_sides(right, batch, held_out)

    def _risk(self, parameters: Sequence[Tensor], batch: DomainBatch) -> Tensor:
        with tape() as side:
            if parameters is self.trained:
                output = self.model(batch.x)
            else:
                output = functional_call(self.model, dict(zip(self.names, parameters, strict=True)), (batch.x,))
            risk = self.task.loss(output, batch.y)
        return with_auxiliary(risk, side)


class _Features(nn.Module):
    """Model whose forward pass returns features, for `functional_call`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.features(x)


def domain_critic(width: int, hidden: int) -> nn.Sequential:
    """Build a critic that maps features (b, width) to logits (b, 1): the held-out domain against the others."""
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def _both_sides(values: Tensor, batch: DomainBatch, held_out: int) -> Tensor:
    """Return the mean of the held-out domain's mean and that of all other examples; values (b,)."""
    domains = batch.split(values if values.is_floating_point() else values.float())
    rest = torch.cat([domain for i, domain in enumerate(domains) if i != held_out])
    return (domains[held_out].mean() + rest.mean()) / 2


def _usage(side: Tape) -> Metrics:
    weights, slots = side["memory/weights"], side["memory/slots"]
    return {"slots": effective_slots(weights[-1])} if weights and not slots else {}


def finite_gradient(
    outer: Tensor, wanted: Parameters, *, inner: Loss, now: Parameters, ahead: Parameters, lr: float
) -> Gradients:
    """Return d outer / d wanted by finite differences, where theta' (`ahead`) depends on `wanted` by the inner loss."""
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
