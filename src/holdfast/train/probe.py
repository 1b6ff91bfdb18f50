"""Linear probing: fit neck and head on the features of the encoder, before the complete network is trained.

A randomly initialised head sends large gradients into a pretrained encoder and distorts its features; a fitted head
does not (Kumar et al., 2022).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.seeds import use_process_rng
from holdfast.core.store import TensorStore
from holdfast.core.tape import tape, with_auxiliary
from holdfast.data.batches import Batches, Examples
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.tasks.base import Task
from holdfast.train.initialise import equal_copies

SETTINGS = OptimizerSettings(lr=3e-3, schedule="linear", steps=500, decay="weights")


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
