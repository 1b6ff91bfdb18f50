"""Experience replay and A-GEM: training with a sample of the examples of earlier domains."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from holdfast.core import inputs, parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Graphs, Inputs, Joint, Tokens
from holdfast.core.ragged import cat_padded, strip_padding
from holdfast.core.seeds import use_shared_rng
from holdfast.core.settings import checked_settings, setting, whole
from holdfast.core.tape import with_auxiliary
from holdfast.methods.base import Method, Metrics


class Rehearsal(Method):
    """Base of methods with a buffer of earlier examples, which is filled at the end of a stage."""

    @checked_settings
    class Settings:
        capacity: int = setting(200, least=1, search=whole(50, 2000), help="examples in the buffer")
        batch: int | None = setting(None, least=1, help="examples drawn per step; the size of the new batch by default")

    saved_attributes = ("optimizer", "memory")
    supports_growth = "any"
    needs_past = "examples"

    def setup(self) -> None:
        self.memory = Reservoir(self.settings.capacity)

    def draw(self, batch: DomainBatch) -> DomainBatch:
        """Draw earlier examples to go with a batch."""
        return self.memory.draw(self.settings.batch or len(batch.y), batch.y.device)

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        self.memory.fill(batches)


class Replay(Rehearsal):
    """Minimise the mean risk over the new batch and a sample of the buffer (Rolnick et al., 2019)."""

    def step(self, batch: DomainBatch) -> Metrics:
        size = len(self.memory)
        if size:
            batch = DomainBatch.cat([batch, self.draw(batch)])
        risk, side = self.risk_of(batch)
        return self.minimize(risk, side, risk=risk, buffer=torch.tensor(float(size)))


Grads = Sequence[Tensor | None]


class AGEM(Rehearsal):
    """Project the gradient g where it opposes the gradient r of the buffer (Chaudhry et al., 2019).

    g' = g - (g.r / r.r) r if g.r < 0, else g; r is the gradient of the risk on a sample of the buffer.
    """

    def step(self, batch: DomainBatch) -> Metrics:
        risk, grads = self._gradient(batch)
        size, projected = len(self.memory), torch.zeros_like(risk)
        if size:
            _, reference = self._gradient(self.draw(batch))
            grads, projected = project(grads, reference)
        self.optimizer.apply_gradients(grads)
        return {"risk": risk, "projected": projected, "buffer": torch.tensor(float(size))}

    def _gradient(self, batch: DomainBatch) -> tuple[Tensor, Grads]:
        risk, side = self.risk_of(batch)
        trained = self.optimizer.parameters
        grads = torch.autograd.grad(with_auxiliary(risk, side), trained, allow_unused=True)
        return risk.detach(), parallel.mean_gradients(grads, trained)


def project(grads: Grads, reference: Grads) -> tuple[list[Tensor | None], Tensor]:
    """Return the gradient without its component against the reference, and 1 if there was one, else 0."""
    dot, square = _dot(grads, reference), _dot(reference, reference)
    # no branch on the value, so that the CPU does not wait for the device
    scale = dot.clamp(max=0.0) / square.clamp(min=torch.finfo(square.dtype).tiny)
    return [_minus(g, r, scale) for g, r in zip(grads, reference, strict=True)], (dot < 0).float()


def _dot(a: Grads, b: Grads) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True) if x is not None and y is not None]).sum()


def _minus(g: Tensor | None, r: Tensor | None, scale: Tensor) -> Tensor | None:
    if r is None:
        return g
    return -scale * r if g is None else g - scale * r


_KINDS: dict[str, type[Tokens | Graphs | Joint]] = {"tokens": Tokens, "graphs": Graphs, "joint": Joint}


class Reservoir:
    """Uniform sample of all examples seen so far (Vitter, 1985, algorithm R)."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.seen = capacity, 0
        self.examples: list[tuple[Inputs, Tensor, int]] = []  # input and target (1, ...) without padding, and domain

    def __len__(self) -> int:
        return len(self.examples)

    def fill(self, batches: Iterable[DomainBatch]) -> None:
        """Add every example; the sample depends on the order of the examples, not on the batch size."""
        for batch in batches:
            for domain in batch.by_domain():
                self._offer(domain)

    def draw(self, k: int, device: torch.device | str) -> DomainBatch:
        """Draw up to k distinct examples, grouped by domain; processes draw different ones while there are enough."""
        assert len(self), "the reservoir is empty"
        processes = parallel.world_size()
        with use_shared_rng():
            chosen = torch.randperm(len(self))[: k * processes].tolist()
        chosen = chosen[parallel.rank() :: processes] or chosen
        return self._batch(sorted(chosen, key=lambda i: self.examples[i][2]), device)

    def singles(self, device: torch.device | str) -> Iterable[DomainBatch]:
        """Return one batch per example."""
        return (self._batch([i], device) for i in range(len(self)))

    def _offer(self, batch: DomainBatch) -> None:
        (domain,), size = batch.domains, len(batch.y)
        # the n-th example gets a random position among n; positions from the capacity on are dropped
        ends = torch.arange(self.seen + 1, self.seen + size + 1)
        positions = (torch.rand(size, dtype=torch.float64) * ends).long()
        filling = max(0, min(size, self.capacity - self.seen))
        positions[:filling] = ends[:filling] - 1
        self.seen += size
        chosen = {at: row for row, at in enumerate(positions.tolist()) if at < self.capacity}
        if not chosen:
            return
        x = inputs.to(inputs.take(batch.x, list(chosen.values())), "cpu")
        y = batch.y[list(chosen.values())].cpu()  # waits for the device, so that x has arrived too
        for i, at in enumerate(chosen):
            self.examples[at : at + 1] = [_example(x, y, i, domain)]

    def _batch(self, rows: Sequence[int], device: torch.device | str) -> DomainBatch:
        xs, ys, owners = zip(*(self.examples[i] for i in rows), strict=True)
        sizes = Counter(owners)
        return DomainBatch(
            inputs.to(inputs.cat(xs), device), cat_padded(ys).to(device), tuple(sizes), tuple(sizes.values())
        )

    def state_dict(self) -> dict[str, Any]:
        state = {"seen": self.seen, "domain": [domain for _, _, domain in self.examples]}
        if not self.examples:
            return state
        xs, ys, _ = zip(*self.examples, strict=True)
        return {**state, "x": _packed(inputs.cat(xs)), "y": cat_padded(ys)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, x = state["seen"], _unpacked(state.get("x"))
        self.examples = [_example(x, state["y"], i, domain) for i, domain in enumerate(state["domain"])]


def _example(x: Inputs, y: Tensor, i: int, domain: int) -> tuple[Inputs, Tensor, int]:
    return _trimmed(inputs.take(x, [i])), strip_padding(y[[i]]), domain


def _trimmed(x: Inputs) -> Inputs:
    """Remove the padding of a single example."""
    if isinstance(x, Joint):
        return Joint(_trimmed(x.first), _trimmed(x.second))
    if not isinstance(x, Tokens):
        return x
    length = int(x.mask[0].nonzero().max()) + 1 if bool(x.mask.any()) else 1
    types = None if x.types is None else x.types[:, :length].clone()
    at = None if x.at is None else strip_padding(x.at)
    return Tokens(x.ids[:, :length].clone(), x.mask[:, :length].clone(), types, at)


def _packed(x: Inputs) -> Any:
    if not isinstance(x, Tokens | Graphs | Joint):
        return x
    return {"kind": type(x).__name__.lower(), **{f.name: _packed(getattr(x, f.name)) for f in fields(x)}}


def _unpacked(packed: Any) -> Any:
    if not isinstance(packed, dict):
        return packed
    return _KINDS[packed["kind"]](**{name: _unpacked(value) for name, value in packed.items() if name != "kind"})
