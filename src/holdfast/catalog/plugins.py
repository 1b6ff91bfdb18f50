"""Methods, encoders and data sets from user code and from installed packages.

`register_*` adds a class or function of the running program. Installed packages declare entry points, which are
imported when a name is not built in or a section is listed: in the groups `holdfast.methods`, `holdfast.encoders` and
`holdfast.datasets` a class, a function or an entry of the catalog, in `holdfast.analyses`, `holdfast.heads`,
`holdfast.tasks`, `holdfast.benches` and `holdfast.recipes` a mapping of names to entries, and in `holdfast.commands` a
function that becomes a command.
"""

import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from holdfast.catalog.analyses import ANALYSES
from holdfast.catalog.datasets import DATASETS
from holdfast.catalog.encoders import ENCODERS
from holdfast.catalog.entry import REGISTERED, BrokenEntry, EncoderEntry, Entry, MethodEntry
from holdfast.catalog.heads import HEADS
from holdfast.catalog.methods import METHODS
from holdfast.catalog.protocols import TASKS
from holdfast.core.errors import BadInput
from holdfast.data import registry

MAPPED_SECTIONS: dict[str, dict[str, Any]] = {  # sections to which an entry point adds a mapping of entries
    "analyses": ANALYSES, "heads": HEADS, "tasks": TASKS, "benches": {}, "recipes": {},
}  # fmt: skip
OPEN_SECTIONS: dict[str, dict[str, Any]] = {"methods": METHODS, "encoders": ENCODERS, "datasets": DATASETS}
INPUT_KINDS = ("text", "image", "vector", "graph", "table", "mixed")
_added: dict[tuple[str, str], Entry] = {}  # (section, name) -> entry that is not built in


@dataclass(frozen=True)
class UserParts:
    """Registered parts and the import path of this process, to be installed in a worker process."""

    entries: Mapping[tuple[str, str], Entry]
    path: tuple[str, ...]

    def install(self) -> None:
        """Add the entries to the catalog of this process."""
        sys.path += [folder for folder in self.path if folder not in sys.path]
        for (section, name), entry in self.entries.items():
            OPEN_SECTIONS[section][name] = _added[section, name] = entry


def user_parts() -> UserParts:
    """Return what has been registered so far."""
    return UserParts(dict(_added), tuple(sys.path))


def register_method(method: type, name: str | None = None, about: str = "", **fields: Any) -> str:
    """Add a training method and return its name; `fields` are those of `MethodEntry`, such as `takes` or `tasks`."""
    if not isinstance(method, type) or not all(callable(getattr(method, need, None)) for need in ("step", "predict")):
        raise BadInput(f"{method!r} is not a training method: pass a subclass of holdfast.methods.base.Method")
    return _register("methods", MethodEntry(_target(method), about or _first_line(method), **fields), method, name)


def register_encoder(encoder: type, name: str | None = None, about: str = "", **fields: Any) -> str:
    """Add an encoder class and return its name; `fields` are those of `EncoderEntry`, such as `pretrained`."""
    build, takes = getattr(encoder, "build", None), getattr(encoder, "takes", None)
    if not isinstance(encoder, type) or not callable(build) or takes not in INPUT_KINDS:
        raise BadInput(
            f"{encoder!r} is not an encoder: pass a subclass of holdfast.nn.backbones.base.Backbone whose `takes` is "
            f"{', '.join(INPUT_KINDS[:-1])} or {INPUT_KINDS[-1]}"
        )
    entry = EncoderEntry(f"{_target(encoder)}.build", about or _first_line(encoder), takes=takes, **fields)
    return _register("encoders", entry, build, name or _kebab(encoder.__name__))


def register_dataset(read: Callable[..., Any], name: str | None = None, about: str = "") -> str:
    """Add a function `read(data_dir=None, **settings)` that returns a `Dataset`, and return its name."""
    if not callable(read):
        raise BadInput(f"{read!r} is not a data set: pass a function that returns a Dataset")
    name = _register("datasets", Entry(_target(read), about or _first_line(read)), read, name)
    registry.register(name, read)
    return name


REGISTER: dict[str, Callable[..., str]] = {
    "methods": register_method, "encoders": register_encoder, "datasets": register_dataset,
}  # fmt: skip


def _register(section: str, entry: Entry, target: Any, name: str | None) -> str:
    name = name or _kebab(target.__name__)
    kind = section.removesuffix("s")
    if not re.fullmatch(r"[\w.-]+(\(METHOD\))?", name):
        raise BadInput(f"'{name}' cannot be the name of a {kind}: use letters, digits, '-', '_' and '.'")
    if name in OPEN_SECTIONS[section] and (section, name) not in _added:
        raise BadInput(f"{kind} '{name}' exists already: register {target.__qualname__} under another name")
    REGISTERED[entry.target] = target
    OPEN_SECTIONS[section][name] = _added[section, name] = entry
    return name


@cache
def discover(section: str) -> None:
    """Add the plug-ins of installed packages to a section, once per process."""
    entries = MAPPED_SECTIONS.get(section, OPEN_SECTIONS.get(section))
    if entries is None:
        return
    for point in entry_points(group=f"holdfast.{section}"):
        origin = f"plug-in '{point.name}' of {point.dist.name if point.dist else 'an unknown package'}"
        if point.name in entries:
            if (section, point.name) not in _added:  # by the process that started this one
                logging.getLogger("holdfast").warning(f"{origin} is ignored: {section} has another '{point.name}'")
            continue
        try:
            value = point.load()
            if section in MAPPED_SECTIONS:
                entries.update(value)
            elif isinstance(value, Entry):
                entries[point.name] = _added[section, point.name] = value
            else:
                REGISTER[section](value, point.name)
        except Exception as error:  # any exception of the plug-in
            reason = f"{origin} cannot be loaded ({type(error).__name__}: {error}): fix or uninstall it"
            if section in MAPPED_SECTIONS:
                logging.getLogger("holdfast").warning(reason)
            else:
                entries[point.name] = _added[section, point.name] = BrokenEntry(point.value, reason)


def _target(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"


def _first_line(value: Any) -> str:
    return (value.__doc__ or f"registered by {value.__module__}").strip().splitlines()[0]


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", name).lower()
