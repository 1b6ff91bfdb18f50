"""Mechanisms of a network and their nulls: contexts in which a memory, a queue or an expert layer carries no content.

The share of predictions that a null changes is the engagement of the mechanism.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class Mechanism(Protocol):
    """A module whose content can be replaced by a null.

    Modules with the same name in one network are replaced together. Leaving the context restores every value exactly.
    A null draws no global random numbers.
    """

    mechanism: str  # name in records, such as `memory`
    null_name: str  # what replaces the content

    def null(self) -> AbstractContextManager[None]: ...


def mechanisms(network: nn.Module) -> dict[str, list[Mechanism]]:
    """Return the mechanisms of a network by name, in the order of its modules."""
    named: dict[str, list[Mechanism]] = {}
    for module in network.modules():
        if isinstance(module, Mechanism):
            named.setdefault(module.mechanism, []).append(module)
    return named


@contextmanager
def overwritten(*pairs: tuple[Tensor, Tensor]) -> Iterator[None]:
    """Give parameters or buffers other values inside the context; each pair is a tensor and its values."""
    saved = [(tensor, tensor.detach().clone()) for tensor, _ in pairs]
    _copy(pairs)
    try:
        yield
    finally:
        _copy(saved)


@torch.no_grad()
def _copy(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for tensor, values in pairs:
        tensor.copy_(values.expand_as(tensor))
