"""What a catalog holds of each part: where it lives, a line about it, its settings and where to search them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.settings import setting_names

AT_PLACES = ("tag", "span", "masked")  # tasks that ask for states at places of a text
ON_FEATURES = ("classify", *AT_PLACES)
EVERY_TASK = (*ON_FEATURES, "respond")
# what the catalog hands to a part
FROM_THE_LIBRARY = ("training", "width", "classes", "encoder", "model", "task", "optimizer", "method")


@dataclass(frozen=True, slots=True)
class Entry:
    """A part by name: imported when asked for, so that listing costs nothing."""

    target: str  # module:name
    about: str
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that make this entry what it is
    preset: Mapping[str, Any] = field(default_factory=dict)  # settings with another default than the part's own
    space: Mapping[str, Any] = field(default_factory=dict)  # settings worth a search: log, even or choice
    acts_on: str = ""  # methods: features, backbone or stream where without it they would be ERM
    necks: tuple[str, ...] = ()  # methods: the necks it needs one of, the usual one first
    encoders: tuple[str, ...] = ()  # methods: the encoders it needs one of
    takes: str = ""  # encoders, augmentations, methods for one alone: the kind of raw example
    slots: bool = False  # encoders: there is a memory inside whose slots can grow
    pretrained: bool = False  # encoders: weights that come from elsewhere, the same for every seed and training set
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what it gives to a run, such as a learning rate
    needs: str = ""  # analyses: what a run must have to be looked at so
    tasks: tuple[str, ...] = ("classify",)  # encoders, necks, heads, methods, analyses: the tasks that it serves

    def load(self) -> Any:
        module, _, name = self.target.partition(":")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def settings(self) -> list[str]:
        """What a user may set."""
        names = setting_names(self.load())
        return [name for name in names if name not in FROM_THE_LIBRARY and name not in self.fixed]

    def asks(self, name: str) -> bool:
        """Whether the part takes something of this name, from the library or from a user."""
        return name in setting_names(self.load())

    def build(self, *parts: Any, **named: Any) -> Any:
        return self.load()(*parts, **{**self.preset, **self.fixed, **named})
