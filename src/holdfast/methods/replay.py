"""Experience replay: some examples of the earlier domains are kept and trained on again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from holdfast.core import inputs, parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Inputs, Tokens
from holdfast.core.ragged import cat_targets, strip_padding
from holdfast.core.seeds import use_shared_rng
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class Rehearsal(Method):
    """A rule with a buffer of earlier examples, which takes a stage's training data when the stage ends.

    While a domain is learned, the buffer holds earlier ones only.
    """

    saved_attributes = ("optimizer", "memory")
    supports_growth = "any"
    needs_past = "examples"

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        capacity: int = 200,
        batch: int | None = None,  # examples drawn a step; as many as there are new ones unless given
    ) -> None:
        super().__init__()
        if batch is not None and batch < 1:
            raise BadInput(f"batch, the examples drawn from the buffer a step, must be at least 1, not {batch}")
        self.model, self.task = model, task
        self.memory, self.batch = Reservoir(capacity), batch
        self.optimizer = optimizer(model.trainable_parameters())

    def draw(self, batch: DomainBatch) -> DomainBatch:
        """Earlier examples to go with this batch."""
        return self.memory.draw(self.batch or len(batch.y), batch.y.device)

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        self.memory.fill(batches)


class Replay(Rehearsal):
    """Minimise the mean risk over the new batch and a draw from the buffer together (Rolnick et al., 2019)."""

    def step(self, batch: DomainBatch) -> Metrics:
        held = len(self.memory)
        if held:
            batch = DomainBatch.cat([batch, self.draw(batch)])
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        self.optimizer.minimize(risk if extra is None else risk + extra)
        return {"risk": risk.detach(), "buffer": torch.tensor(float(held))}


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
        self.optimizer.apply_gradients(grads)
        return {"risk": risk, "projected": turned, "buffer": torch.tensor(float(held))}

    def _gradient(self, batch: DomainBatch) -> tuple[Tensor, Grads]:
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        loss = risk if extra is None else risk + extra
        moving = self.optimizer.parameters
        return risk.detach(), parallel.mean_gradients(torch.autograd.grad(loss, moving, allow_unused=True), moving)


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


_KINDS: dict[str, type[Tokens] | type[Graphs]] = {"tokens": Tokens, "graphs": Graphs}


class Reservoir:
    """Each example seen so far is held with the same probability, capacity / seen (Vitter, 1985, algorithm R)."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise BadInput(f"capacity must be at least 1 example, not {capacity}")
        self.capacity, self.seen = capacity, 0
        self.x: list[Inputs] = []  # one example each, texts without padding
        self.y: list[Tensor] = []  # (1, ...) each
        self.domain: list[int] = []

    def __len__(self) -> int:
        return len(self.y)

    def fill(self, batches: Iterable[DomainBatch]) -> None:
        """Offer every example of these batches once; who stays depends on their order, not on how they are cut."""
        for batch in batches:
            for part in batch.by_domain():
                self._offer(part)

    def draw(self, k: int, device: torch.device | str) -> DomainBatch:
        """Up to k distinct examples, domain after domain; other processes draw others, as long as there are some."""
        assert len(self), "nothing is held yet"
        processes = parallel.world_size()
        with use_shared_rng():
            chosen = torch.randperm(len(self))[: k * processes].tolist()
        chosen = chosen[parallel.rank() :: processes] or chosen
        return self._batch(sorted(chosen, key=lambda i: self.domain[i]), device)

    def singles(self, device: torch.device | str) -> Iterable[DomainBatch]:
        """All that is held, one example a batch."""
        return (self._batch([i], device) for i in range(len(self)))

    def _offer(self, part: DomainBatch) -> None:
        (domain,), size = part.domains, len(part.y)
        # the n-th example of all goes to a place among n; places from the capacity on are outside
        ends = torch.arange(self.seen + 1, self.seen + size + 1)
        places = (torch.rand(size, dtype=torch.float64) * ends).long()
        filling = max(0, min(size, self.capacity - self.seen))
        places[:filling] = ends[:filling] - 1
        self.seen += size
        kept = {place: row for row, place in enumerate(places.tolist()) if place < self.capacity}
        if not kept:
            return
        x = inputs.to(inputs.take(part.x, list(kept.values())), "cpu")
        y = part.y[list(kept.values())].cpu()  # waits for the device, so that x has arrived too
        for i, place in enumerate(kept):
            new = (_trimmed(inputs.take(x, [i])), strip_padding(y[[i]]), domain)
            if place < len(self):
                self.x[place], self.y[place], self.domain[place] = new
            else:
                self.x.append(new[0])
                self.y.append(new[1])
                self.domain.append(new[2])

    def _batch(self, places: list[int], device: torch.device | str) -> DomainBatch:
        owners = [self.domain[i] for i in places]
        domains = tuple(dict.fromkeys(owners))
        return DomainBatch(
            x=inputs.to(inputs.cat([self.x[i] for i in places]), device),
            y=cat_targets([self.y[i] for i in places]).to(device),
            domains=domains,
            sizes=tuple(owners.count(d) for d in domains),
        )

    def state_dict(self) -> dict[str, Any]:
        held = {"x": _packed(inputs.cat(self.x)), "y": cat_targets(self.y)} if len(self) else {}
        return {"seen": self.seen, "domain": list(self.domain), **held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.domain = state["seen"], list(state["domain"])
        self.x, self.y = [], []
        if self.domain:
            x = _unpacked(state["x"])
            self.x = [_trimmed(inputs.take(x, [i])) for i in range(len(self.domain))]
            self.y = [strip_padding(state["y"][[i]]) for i in range(len(self.domain))]


def _trimmed(x: Inputs) -> Inputs:
    """One example without the padding that its batch gave it."""
    if not isinstance(x, Tokens):
        return x
    length = int(x.mask[0].nonzero().max()) + 1 if bool(x.mask.any()) else 1
    types = None if x.types is None else x.types[:, :length].clone()
    at = None if x.at is None else strip_padding(x.at)
    return Tokens(x.ids[:, :length].clone(), x.mask[:, :length].clone(), types, at)


def _packed(x: Inputs) -> Any:
    if isinstance(x, Tensor):
        return x
    return {"kind": type(x).__name__.lower(), **{f.name: getattr(x, f.name) for f in fields(x)}}


def _unpacked(packed: Any) -> Inputs:
    if isinstance(packed, Tensor):
        return packed
    return _KINDS[packed["kind"]](**{name: value for name, value in packed.items() if name != "kind"})
