"""Typed entries of the catalog: where a part is implemented, one line about it, and what it works with."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.core.settings import search_space, setting_names
from holdfast.defaults import Encoder

TOKEN_TASKS = ("tag", "span", "masked")  # tasks with one output per position
EXAMPLE_TASKS = ("classify", "ordinal", "regress", "multilabel")  # tasks with one prediction per example
NO_CLASS = ("regress", "multilabel")  # of these, the ones without one class per example
CLASS_TASKS = tuple(task for task in EXAMPLE_TASKS if task not in NO_CLASS)
FEATURE_TASKS = (*EXAMPLE_TASKS, *TOKEN_TASKS)
ANY_TASK = "any"  # every task, also those of installed packages
ALL_TASKS = (*FEATURE_TASKS, ANY_TASK)
BUILD_ARGUMENTS = ("training", "width", "classes", "encoder", "model", "task", "optimizer", "method")

REGISTERED: dict[str, Any] = {}  # target -> object, for classes and functions that user code registered


@dataclass(frozen=True)
class Entry:
    """A named part, imported on first use so that listing a section stays cheap."""

    target: str  # module:attribute
    about: str

    def load(self) -> Any:
        """Import and return the target."""
        if self.target in REGISTERED:
            return REGISTERED[self.target]
        module, _, attributes = self.target.partition(":")
        if module == "__main__" or "<locals>" in attributes:
            raise BadInput(
                f"worker processes cannot import {attributes} of {module}: move it to the top level of a module or "
                "run with one job"
            )
        target: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            target = getattr(target, attribute)
        return target

    def setting_names(self) -> list[str]:
        """Return the settings that a user may choose."""
        return [name for name in setting_names(self.load()) if name not in BUILD_ARGUMENTS]

    def accepts(self, name: str) -> bool:
        """Whether the target has a parameter or setting with this name."""
        return name in setting_names(self.load())

    def search_space(self) -> dict[str, Mapping[str, Any]]:
        """Return the settings worth searching, with their ranges."""
        return search_space(self.load())

    def build(self, *args: Any, **options: Any) -> Any:
        """Call the target."""
        return self.load()(*args, **options)

    def details(self, name: str) -> dict[str, Any]:
        """Return what `holdfast list --json` has on the entry of this name beyond `about`."""
        return {}

    def shown(self, name: str) -> Any:
        """Return what `holdfast list` shows of the entry of this name below the list, or None."""
        return None


@dataclass(frozen=True)
class Part(Entry):
    """A part of a model or method; several entries may share one target and differ in `fixed`."""

    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that define this entry; users cannot change them
    preset: Mapping[str, Any] = field(default_factory=dict)  # defaults that differ from those of the target
    space: Mapping[str, Any] = field(default_factory=dict)  # search space where it differs from that of the settings
    tasks: tuple[str, ...] = EXAMPLE_TASKS  # tasks that it supports, except for what `needs_class` excludes
    needs_class: str = ""  # why it needs one class label per example; empty if it does not
    learned: tuple[str, ...] = ()  # what it adds that can have its own learning rate: names in `spec.RATE_PARTS`
    earlier: Mapping[str, Any] = field(default_factory=dict)  # settings of model folders that do not state them

    def unsupported(self, task: str) -> str:
        """Return why it does not support a task, or an empty string if it does."""
        if self.needs_class and task in NO_CLASS and task in self.tasks:
            return f"it needs one class label per example, because {self.needs_class}"
        return "" if task in self.tasks or ANY_TASK in self.tasks else f"it does not support the task {task}"

    def setting_names(self) -> list[str]:
        return [name for name in super().setting_names() if name not in self.fixed]

    def search_space(self) -> dict[str, Mapping[str, Any]]:
        ranges = {**super().search_space(), **self.space}
        return {name: values for name, values in ranges.items() if name not in self.fixed}

    def build(self, *args: Any, **options: Any) -> Any:
        return super().build(*args, **{**self.preset, **self.fixed, **options})


@dataclass(frozen=True)
class MethodEntry(Part):
    """A training method, or a wrapper around one if its name ends in `(METHOD)`."""

    acts_on: str = ""  # features, backbone or stream: without it to train, the method is equal to `equals`
    equals: str = "erm"  # the method that it equals without what it acts on, or with the settings `off`; empty if none
    off: Mapping[str, Any] = field(default_factory=dict)  # settings that switch off what distinguishes it
    necks: tuple[str, ...] = ()  # it needs one of these necks; the first is the default
    neck_args: Mapping[str, Any] = field(default_factory=dict)  # defaults of these necks that it changes
    tuned_neck_args: Mapping[str, Any] = field(default_factory=dict)  # further ones for an encoder that learns
    encoders: tuple[str, ...] = ()  # it needs one of these encoders
    takes: str = ""  # the only kind of example that it supports
    head: str = ""  # the head that it needs, in place of the chosen one
    family: str = "other methods"  # heading in the documentation


@dataclass(frozen=True)
class EncoderEntry(Encoder, Part):
    """An encoder of one kind of example."""

    growable: bool = False  # it contains a memory that can grow
    tokens: bool = False  # its setting `length` is a number of tokens, chosen from the texts by default
    packaged: str = ""  # name in `core.packages.PACKAGED` of the package with its weights


@dataclass(frozen=True)
class AnalysisEntry(Part):
    """An analysis of a trained run."""

    needs: str = ""  # what a run must have to be analysed
    # module:function, called with the data set before the training: it raises if a file that the analysis reads is
    # invalid, and returns a note or an empty string
    check: str = ""


@dataclass(frozen=True)
class TaskEntry(Entry):
    """A kind of prediction."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # run settings
    card: str = "A model"  # first words of a model card, with the placeholders {count} and {labels} for the classes
    hub: Mapping[str, str] = field(default_factory=dict)  # kind of example -> task of the Hugging Face hub


@dataclass(frozen=True)
class AugmentationEntry(Entry):
    """A random change to training examples of one kind."""

    takes: str = ""


@dataclass(frozen=True)
class BrokenEntry(Entry):
    """A plug-in that could not be imported; `about` is the reason."""

    def load(self) -> Any:
        raise BadInput(self.about)
