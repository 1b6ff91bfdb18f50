"""A step that does not fit into the device's memory is taken again in pieces, where that gives the same update."""

from __future__ import annotations

import torch

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput, tell
from holdfast.core.seeds import own_chance
from holdfast.core.tape import passes, told
from holdfast.methods.base import Method, Metrics
from holdfast.methods.optim import Descent


def set_pieces(method: Method, pieces: int) -> None:
    """Tell a rule, and the rules inside it, in how many pieces to take a batch."""
    for part in method.modules():
        if isinstance(part, Method):
            part.pieces = pieces


def step_in_memory(method: Method, batch: DomainBatch) -> Metrics:
    """One step; out of memory, the same with pieces of half the size, and so on. They stay for the steps to come.

    Whatever the rule, what modules told of shares is told with its metrics.
    """
    while True:
        try:
            with own_chance(), passes() as heard:
                metrics = method.step(batch)
            parallel.average_statistics(method)
            return {**metrics, **told(heard)}
        except torch.OutOfMemoryError:
            pass  # gone on with below, where the failed step's tensors are no longer held by its error
        _halve(method, batch)
        for each in descents(method):
            each.undo()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def descents(method: Method) -> list[Descent]:
    """All optimizers of a rule and of the rules inside it, in a fixed order."""
    rules = [part for part in method.modules() if isinstance(part, Method)]
    kept = [getattr(rule, name) for rule in rules for name in rule.kept]
    return [each for each in kept if isinstance(each, Descent)]


def _halve(method: Method, batch: DomainBatch) -> None:
    count, most = len(batch.y), max(batch.sizes)
    why = method.why_whole(batch) if parallel.world_size() == 1 else "other devices wait for its gradients"
    if not why and method.pieces >= most:
        why = "it is already taken one example of a domain at a time"
    if why:
        raise BadInput(
            f"the device has too little memory for a step on {count} examples, and {why}: use a smaller --batch, "
            "shorter inputs, a smaller encoder or --tune frozen"
        )
    pieces = min(2 * method.pieces, most)
    set_pieces(method, pieces)
    tell(
        f"the device has too little memory for {count} examples at once, so each batch is taken in {pieces} pieces "
        "whose gradients are added up: the update is that of the whole batch"
    )
