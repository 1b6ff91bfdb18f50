"""Data sets by name: the table `known/sets.toml`, registered functions and installed plug-ins, imported when loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from holdfast.core.errors import BadInput
from holdfast.data.known import table

if TYPE_CHECKING:
    from holdfast.data.dataset import Dataset

PLUGINS = "holdfast.datasets"  # entry-point group: NAME = "module:function", called with data_dir=PATH_OR_NONE

Reader = Callable[..., "Dataset"]
_registered: dict[str, Reader] = {}


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=PLUGINS)}


def register(name: str, reader: Reader) -> None:
    """Make a function of the running program available as a data set of this name."""
    _registered[name] = reader


class Readers(Mapping[str, Reader]):
    """Readers of all named data sets, imported on access; each takes `data_dir` and its own settings."""

    def __getitem__(self, name: str) -> Reader:
        if name in _registered:
            return _registered[name]
        if name not in table():
            point = _plugins()[name]
            try:
                value = point.load()
                load = getattr(value, "load", None)  # of an entry of the catalog
                return value if load is None else load()
            except Exception as error:  # any exception of the plug-in's code
                origin = f"the plug-in for the data set '{name}' ({point.value})"
                reason = f"{type(error).__name__}: {error}"
                raise BadInput(f"{origin} cannot be loaded ({reason}): fix or uninstall it") from error
        return importlib.import_module("holdfast.data.known.known_set").KnownSet.of(name).load_reader()

    def __iter__(self) -> Iterator[str]:
        return iter({**table(), **_registered, **_plugins()})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in table() or name in _registered or name in _plugins()


READERS = Readers()
