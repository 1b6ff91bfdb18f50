"""A class of its own for a layer that has experts, so that a compiler does not take plain layers for it.

Where experts are no operator, what is compiled of such a layer ends as they begin and looks no further, so it would fit
the plain layers too: they would be run in pieces, with as many calls again.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn


def set_apart(layer: nn.Module) -> None:
    """The same layer, of a class that says it has experts."""
    if not issubclass(type(layer), _Apart):
        layer.__class__ = _class_of(type(layer))


def put_back(layer: nn.Module) -> None:
    """The class that the layer had before."""
    if isinstance(layer, _Apart):
        layer.__class__ = type(layer).__bases__[1]


class _Apart:
    """What such a class adds: how to be copied and sent, as no module has its name."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _empty, (type(self).__bases__[1],), self.__getstate__()


@functools.cache
def _class_of(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"{kind.__name__}WithExperts", (_Apart, kind), {})


def _empty(kind: type[nn.Module]) -> nn.Module:
    made = _class_of(kind)
    return made.__new__(made)
