"""A step that does not fit into the device's memory is taken again in pieces, where that gives the same update."""

from __future__ import annotations

import torch

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput, warn
from holdfast.core.seeds import use_process_rng
from holdfast.core.tape import collect_shares, mean_shares
from holdfast.methods.base import Method, Metrics
from holdfast.methods.optim import Optimizer


def set_microbatches(method: Method, pieces: int) -> None:
    """Tell a rule, and the rules inside it, in how many pieces to take a batch."""
    for part in method.modules():
        if isinstance(part, Method):
            part.microbatches = pieces


def train_step(method: Method, batch: DomainBatch) -> Metrics:
    """One step; out of memory, the same with pieces of half the size, and so on. They stay for the steps to come.

    Whatever the rule, what modules told of shares is told with its metrics.
    """
    while True:
        try:
            with use_process_rng(), collect_shares() as heard:
                metrics = method.step(batch)
            parallel.average_batch_statistics(method)
            return {**metrics, **mean_shares(heard)}
        except torch.OutOfMemoryError:
            pass  # gone on with below, where the failed step's tensors are no longer held by its error
        _halve(method, batch)
        for each in optimizers_of(method):
            each.discard_gradients()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def optimizers_of(method: Method) -> list[Optimizer]:
    """All optimizers of a rule and of the rules inside it, in a fixed order."""
    rules = [part for part in method.modules() if isinstance(part, Method)]
    kept = [getattr(rule, name) for rule in rules for name in rule.saved_attributes]
    return [each for each in kept if isinstance(each, Optimizer)]


def _halve(method: Method, batch: DomainBatch) -> None:
    count, most = len(batch.y), max(batch.sizes)
    why = method.why_not_split(batch) if parallel.world_size() == 1 else "other devices wait for its gradients"
    if not why and method.microbatches >= most:
        why = "it is already taken one example of a domain at a time"
    if why:
        raise BadInput(
            f"the device has too little memory for a step on {count} examples, and {why}: use a smaller --batch, "
            "shorter inputs, a smaller encoder or --tune frozen"
        )
    pieces = min(2 * method.microbatches, most)
    set_microbatches(method, pieces)
    warn(
        f"the device has too little memory for {count} examples at once, so each batch is taken in {pieces} pieces "
        "whose gradients are added up: the update is that of the whole batch"
    )
