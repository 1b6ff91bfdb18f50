"""Initialise parts of a network from training examples, before the first step of a stage.

With the tuning mode lp-ft, neck and head are fitted on the features of the encoder first. A randomly initialised head
sends large gradients into a pretrained encoder and distorts its features; a fitted head does not (Kumar et al., 2022).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.core.errors import BadInput
from holdfast.core.seeds import use_process_rng
from holdfast.core.store import TensorStore
from holdfast.core.tape import tape, with_auxiliary
from holdfast.data.batches import Batches, Examples
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.memory.initialise import Observer
from holdfast.tasks.base import Task

SETTINGS = OptimizerSettings(lr=3e-3, schedule="linear", steps=500, decay="weights")


class _Observed(Exception):
    """Ends a forward pass after the part that is observed."""


@torch.no_grad()
def initialise_parts(
    method: Method, examples: Examples, domains: Sequence[Part], size: int, *, generator: torch.Generator
) -> None:
    """Initialise the parts of the method's network that need data, in their order, and their copies in the method.

    They observe evenly spaced training rows of each domain in batches of `size` per domain, in evaluation mode except
    for batch statistics. The RNGs and the batches of the training are not used.
    """
    pending = _observers(method.model)
    copies = [(part, other) for part, other in equal_copies(method, pending) if other.examples_needed > 0]
    with batch_statistics(method):
        for part in pending:
            observed = _observe(part, method, _batches(examples, domains, size, part.examples_needed), examples)
            if observed:
                part.initialise(*observed, generator=generator)
    for part, other in copies:
        other.load_state_dict(part.state_dict())


def _observers(network: nn.Module) -> list[Any]:
    """Return the modules that need data."""
    return [module for module in network.modules() if isinstance(module, Observer) and module.examples_needed > 0]


def equal_copies(method: Method, modules: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return (module, copy) for the modules of the method outside its model that are equal to one of its modules."""
    inside = set(method.model.modules())
    others = [module for module in method.modules() if module not in inside]
    return [(a, b) for a in modules for b in others if type(a) is type(b) and _equal(a, b)]


def _equal(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def _batches(examples: Examples, domains: Sequence[Part], size: int, count: int) -> list[Tensor]:
    """Return rows in batches with the same number of rows of each domain, as far as it has them."""
    per_domain = -(-count // len(domains))
    pieces = []
    for part in domains:
        rows = examples.rows_of(part)
        rows = rows[torch.linspace(0, len(rows) - 1, min(per_domain, len(rows))).long()]
        pieces.append(rows.split(size))
    rounds = range(max(map(len, pieces)))
    return [torch.cat([piece[i] for piece in pieces if i < len(piece)]) for i in rounds]


def _observe(part: Any, method: Method, batches: Sequence[Tensor], examples: Examples) -> list[Tensor]:
    """Return what a part observes, concatenated over the batches; empty if no pass reaches it."""
    seen: list[tuple[Tensor, ...]] = []

    def hook(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        seen.append(module.observe(inputs, output))
        raise _Observed

    handle = part.register_forward_hook(hook)
    for rows in batches:
        with suppress(_Observed), tape(labels=examples.targets(rows)):
            method.model.features(examples.inputs(rows))
    handle.remove()
    return [torch.cat(tensors) for tensors in zip(*seen, strict=True)]


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Evaluation mode in which batch norm uses the statistics of the batch, as in training, and stores none."""
    training = network.training
    network.train()
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    network.eval()
    saved = [(layer, layer.momentum, layer.num_batches_tracked) for layer in layers]
    counts = [None if count is None else count.clone() for _, _, count in saved]
    for layer in layers:
        layer.train()
        layer.momentum = 0.0
    try:
        yield
    finally:
        for (layer, momentum, count), before in zip(saved, counts, strict=True):
            layer.momentum = momentum
            if count is not None and before is not None:
                count.copy_(before)
        network.train(training)


def fit_neck_and_head(
    method: Method, task: Task, examples: Examples, domains: Sequence[Part], size: int, *, generator: torch.Generator,
    domains_per_step: int = 0,
) -> None:  # fmt: skip
    """Minimise the task's loss on cached features of the training rows, `size` per domain and step.

    The backbone does not change. Copies of neck and head in the method receive the fitted parameters.
    """
    model = method.model
    fixed = set(map(id, model.backbone.parameters()))
    candidates = {id(p): p for module in (model.neck, model.head) for p in module.parameters() if p.requires_grad}
    parameters = [p for p in candidates.values() if id(p) not in fixed]
    if not parameters:
        raise BadInput("--tune lp-ft needs a neck or a head to fit before the encoder is trained: use --tune full")
    copies = equal_copies(method, [model.neck, model.head])
    training = method.training
    method.eval()
    batches = _feature_batches(method, examples, domains, size, generator, domains_per_step)
    model.neck.train()
    model.head.train()
    optimizer = Optimizer(SETTINGS, parameters)
    for _ in range(SETTINGS.steps):
        batch = next(batches)
        assert isinstance(batch.x, Tensor)
        with use_process_rng(), tape() as side:
            loss = task.loss(model.head(model.apply_neck(batch.x)), batch.y)
        optimizer.minimize(with_auxiliary(loss, side))
    for module, copy in copies:
        copy.load_state_dict(module.state_dict())
    method.train(training)


def _feature_batches(
    method: Method, examples: Examples, domains: Sequence[Part], size: int, generator: torch.Generator,
    domains_per_step: int,
) -> Batches:  # fmt: skip
    """Encode the training rows once and return batches of their features."""
    rows = [examples.rows_of(part) for part in domains]
    features = examples.map(method.model.encode, torch.cat(rows).numpy(), shared=True)  # (n, d)
    ends = np.cumsum([len(each) for each in rows])
    positions = [np.arange(end - len(each), end) for each, end in zip(rows, ends, strict=True)]
    encoded = [Part(part.domain, indices) for part, indices in zip(domains, positions, strict=True)]
    store, y = TensorStore(features), examples.targets(torch.cat(rows))
    stored = Examples(store, y, tuple(examples.index), device=examples.device)
    return Batches(stored, encoded, size, generator=generator, domains_per_step=domains_per_step)
