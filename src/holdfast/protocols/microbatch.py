"""Training step that splits a batch into microbatches when the device runs out of memory."""

import torch

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput, warn
from holdfast.core.seeds import use_process_rng
from holdfast.core.tape import collect_shares, mean_shares
from holdfast.methods.base import Method, Metrics
from holdfast.methods.optim import Optimizer


def set_microbatches(method: Method, count: int) -> None:
    """Set the number of microbatches of a method and of the methods that it wraps."""
    for module in method.modules():
        if isinstance(module, Method):
            module.microbatches = count


def train_step(method: Method, batch: DomainBatch) -> Metrics:
    """Take one step and return its metrics with the shares that modules recorded.

    Out of memory, the step is repeated with twice the number of microbatches, which is kept for later steps.
    """
    while True:
        try:
            with use_process_rng(), collect_shares() as passes:
                metrics = method.step(batch)
            parallel.average_batch_statistics(method)
            return {**metrics, **mean_shares(passes)}
        except torch.OutOfMemoryError:
            pass  # handled below, where the exception no longer keeps the tensors of the failed step alive
        _double_microbatches(method, batch)
        for optimizer in optimizers_of(method):
            optimizer.discard_gradients()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def optimizers_of(method: Method) -> list[Optimizer]:
    """Return the optimizers of a method and of the methods that it wraps, in a fixed order."""
    methods = [module for module in method.modules() if isinstance(module, Method)]
    values = [getattr(owner, name) for owner in methods for name in owner.saved_attributes]
    return [value for value in values if isinstance(value, Optimizer)]


def _double_microbatches(method: Method, batch: DomainBatch) -> None:
    size, limit = len(batch.y), max(batch.sizes)
    reason = method.why_not_split(batch) if parallel.world_size() == 1 else "other processes wait for its gradients"
    if not reason and method.microbatches >= limit:
        reason = "microbatches have one example per domain already"
    if reason:
        raise BadInput(
            f"the device has too little memory for a step on {size} examples, and {reason}: use a smaller --batch, "
            "shorter inputs, a smaller encoder or --tune frozen"
        )
    count = min(2 * method.microbatches, limit)
    set_microbatches(method, count)
    warn(
        f"the device has too little memory for {size} examples at once, so every batch is split into {count} "
        "microbatches whose gradients are added: the update is that of the complete batch"
    )
