"""Every concrete name: data sets, encoders, necks, heads, methods, protocols, selections, tasks, benches, recipes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.catalog.analyses import ANALYSES
from holdfast.catalog.augmentations import AUGMENTATIONS, DEFAULT_AUGMENTATION
from holdfast.catalog.datasets import MORE_DATASETS
from holdfast.catalog.encoders import DEFAULT_ENCODER, ENCODERS, NECKS
from holdfast.catalog.entry import Entry
from holdfast.catalog.heads import HEADS
from holdfast.catalog.methods import METHODS
from holdfast.catalog.protocols import PLANS, SELECTIONS, TASKS
from holdfast.catalog.recipes import RECIPES
from holdfast.core.errors import BadInput, unknown
from holdfast.core.settings import type_error

DATASETS = {
    "vader": Entry(
        "holdfast.data.known.download:vader",
        "sentiment of tweets, film reviews, product reviews and news editorials (Hutto & Gilbert, 2014)",
    ),
    "amazon": Entry(
        "holdfast.data.known.published:AMAZON.read",
        "sentiment of reviews of four kinds of products (Blitzer et al., 2007)",
    ),
    "imdb": Entry("holdfast.data.known.published:IMDB.read", "sentiment of film reviews (Maas et al., 2011)"),
    "sst2": Entry("holdfast.data.known.published:SST2.read", "sentiment of sentences on films (Socher et al., 2013)"),
    "mnli": Entry(
        "holdfast.data.known.published:MNLI.read",
        "inference in five genres, the small cut of PADA (Ben-David et al., 2022)",
    ),
    "multinli": Entry(
        "holdfast.data.known.published:MULTINLI.read",
        "inference in five genres, all that train (Williams et al., 2018)",
    ),
    "snli": Entry("holdfast.data.known.published:SNLI.read", "inference on captions of pictures (Bowman et al., 2015)"),
    "dialogue": Entry(
        "holdfast.data.known.dialogue:read_dialogue",
        "answers in films (Danescu-Niculescu-Mizil & Lee, 2011), then Ubuntu (Lowe et al., 2015)",
    ),
    "sick": Entry("holdfast.data.known.published:SICK.read", "inference on simple sentences (Marelli et al., 2014)"),
    **MORE_DATASETS,
}
BENCHES = {
    "methods": Entry("holdfast.bench.methods:run", "a training step of each rule against a step of ERM"),
    "costs": Entry("holdfast.bench.costs:run", "the same of the rules that have no bar"),
    "loop": Entry("holdfast.bench.loop:run", "the training loop against one written by hand"),
    "cache": Entry("holdfast.bench.cache:run", "cached features of a frozen encoder against computing them"),
    "read": Entry("holdfast.bench.read:run", "reads of memories against a feed-forward layer"),
    "mil": Entry("holdfast.bench.mil:run", "a meta step of MIL and a prediction with its memory against ERM's"),
    "hma": Entry("holdfast.bench.hma:run", "a read of HMA's real memory and a step of HMA against the plain ways"),
    "experts": Entry("holdfast.bench.experts:run", "experts against a plain layer of the same work; a step of GMoE"),
    "gmap": Entry("holdfast.bench.gmap:run", "a layer and a step with a general memory against the plain ones"),
    "engines": Entry("holdfast.bench.engines:run", "200 tiny runs by Ray against local processes, and their overhead"),
    "cluster": Entry("holdfast.bench.cluster:run", "200 tiny runs on two Ray nodes against what fewer runs foretell"),
    "serve": Entry("holdfast.bench.serve:run", "a server with 32 clients against predictions offline"),
    "recurrent": Entry("holdfast.bench.recurrent:run", "an LSTM that reads a bank of slots against torch's LSTM"),
}

SECTIONS: dict[str, dict[str, Entry]] = {
    "datasets": DATASETS,
    "augmentations": AUGMENTATIONS,
    "encoders": ENCODERS,
    "necks": NECKS,
    "heads": HEADS,
    "methods": METHODS,
    "protocols": PLANS,
    "selections": SELECTIONS,
    "tasks": TASKS,
    "benches": BENCHES,
    "analyses": ANALYSES,
    "recipes": RECIPES,
}


def entry(section: str, name: str) -> Entry:
    """The entry of that name, or one sentence with the nearest name."""
    known = SECTIONS[section]
    if name in known:
        return known[name]
    for pattern, found in known.items():
        prefix = pattern.removesuffix("NAME_OR_PATH")
        if prefix != pattern and name.startswith(prefix) and len(name) > len(prefix):
            return replace(found, fixed={**found.fixed, "name": name.removeprefix(prefix)})
    raise unknown(_one_of(section), name, known)


def layers(section: str, name: str) -> list[tuple[str, Entry]]:
    """A part and what it wraps, outermost first: `swad(coral)` is swad around coral."""
    wrapped = re.fullmatch(r"([\w-]+)\((.+)\)", name)
    if wrapped is None:
        return [(name, entry(section, name))]
    outer = f"{wrapped[1]}(METHOD)"
    if outer not in SECTIONS[section]:
        raise unknown(f"wrapper of a {_one_of(section)}", wrapped[1], wrappers(section))
    return [(wrapped[1], SECTIONS[section][outer]), *layers(section, wrapped[2])]


def _one_of(section: str) -> str:
    """What a single part of a section is called."""
    return {"benches": "bench", "analyses": "analysis"}.get(section, section.removesuffix("s"))


def wrappers(section: str) -> list[str]:
    """The names that go around another: `swad` of `swad(METHOD)`."""
    return [name.removesuffix("(METHOD)") for name in SECTIONS[section] if name.endswith("(METHOD)")]


def check(section: str, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of each layer, if every one of them is known and of its kind; else one sentence with the nearest."""
    found = layers(section, name)
    free = [layer.settings() for _, layer in found]
    for key in given:
        if not any(free):
            raise without_settings(section, name, key)
        if not any(key in names for names in free):
            raise unknown(f"setting of {_one_of(section)} '{name}'", key, [key for names in free for key in names])
    chosen = [{k: v for k, v in given.items() if k in names} for names in free]
    for (own, layer), settings in zip(found, chosen, strict=True):
        if told := type_error(layer.load(), settings):
            raise BadInput(f"{_one_of(section)} '{own}': {told}")
        below = [key for key, value in settings.items() if isinstance(value, int | float) and value < 0]
        if section == "methods" and below:
            raise BadInput(f"method '{own}': {below[0]} must be at least 0, not {settings[below[0]]}")
    return chosen


def without_settings(section: str, name: str, key: str) -> BadInput:
    """One sentence where a part has nothing to set, with those of its kind that have this setting."""
    kind, able = _one_of(section), [other for other, found in SECTIONS[section].items() if key in found.settings()]
    mend = f": use a {kind} that takes it, {' or '.join(able)}" if able else ""
    how = f" (--set neck={able[0]})" if able and kind == "neck" else ""
    return BadInput(f"{kind} '{name}' has no settings, so '{key}' cannot be set{mend}{how}")


def make(section: str, name: str, *parts: Any, given: Mapping[str, Any], **own: Any) -> Any:
    """Build a part: `parts` and `own` come from the library, `given` are the user's settings."""
    chosen = check(section, name, given)
    (_, core), *around = reversed(layers(section, name))
    try:
        made = core.build(*parts, **own, **chosen[-1])
        for (_, layer), settings in zip(around, reversed(chosen[:-1]), strict=True):
            made = layer.build(made, **settings)
    except (TypeError, ValueError) as error:
        if isinstance(error, BadInput) or not given:
            raise
        told = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise BadInput(f"{_one_of(section)} '{name}' cannot be made with {told}: {error}") from error
    return made


def make_neck(name: str, width: int, classes: int, *, given: Mapping[str, Any]) -> Any:
    """A neck for features of this width; one that keeps a memory by class is told how many there are."""
    told = {"classes": classes} if entry("necks", name).asks("classes") else {}
    return make("necks", name, width, given=given, **told)


def serves(section: str, name: str, task: str) -> None:
    """One sentence where a part, or one that it wraps, is not for this kind of task."""
    for own, layer in layers(section, name):
        if task not in layer.tasks:
            fitting = [n for n, e in SECTIONS[section].items() if task in e.tasks]
            raise BadInput(
                f"{_one_of(section)} '{own}' is for the task {' or '.join(layer.tasks)}, not for {task}: "
                f"use one of {', '.join(fitting)}"
            )


def encoder_for(kind: str, name: str, task: str = "classify") -> str:
    """The encoder's name, `auto` resolved by task and kind of example; one sentence where they do not fit."""
    if name == "auto":
        name = str(entry("tasks", task).defaults.get("encoder", name))
    if name == "auto":
        if kind not in DEFAULT_ENCODER:
            raise BadInput(f"there is no default encoder for {kind}s: name one with --encoder")
        return DEFAULT_ENCODER[kind]
    takes = entry("encoders", name).takes
    if takes != kind:
        fitting = [n for n, e in ENCODERS.items() if e.takes == kind and task in e.tasks]
        raise BadInput(
            f"encoder '{name}' takes {takes}s but the data holds {kind}s: use one of {', '.join(fitting) or 'none'}"
        )
    return name


def augmentation_for(kind: str, asked: bool | str) -> str:
    """The augmentation's name, `true` resolved by the kind of example; one sentence where the two do not fit."""
    fitting = [name for name, each in AUGMENTATIONS.items() if each.takes == kind]
    if not fitting:
        raise BadInput(f"there is no augmentation for {kind}s: leave augment out")
    if asked is True and kind not in DEFAULT_AUGMENTATION:
        raise BadInput(f"augment=true means nothing for {kind}s: name one of {', '.join(fitting)}")
    name = DEFAULT_AUGMENTATION[kind] if asked is True else str(asked)
    takes = entry("augmentations", name).takes
    if takes != kind:
        raise BadInput(f"augmentation '{name}' is for {takes}s, the data holds {kind}s: use {' or '.join(fitting)}")
    return name


def misfit(method: str, encoder: str) -> str:
    """Why a method cannot train with an encoder; empty where it can."""
    takes = entry("encoders", encoder).takes
    for _, layer in layers("methods", method):
        if layer.takes not in ("", takes):
            return f"it is not for {takes}s"
        if layer.encoders and encoder not in layer.encoders:
            return f"it needs an encoder such as {layer.encoders[0]} (--encoder {layer.encoders[0]})"
    return ""


def examples(section: str) -> list[str]:
    """Every name that can be built as it stands; wrappers are shown around the baseline."""
    return [name.replace("METHOD", "erm") for name in SECTIONS[section]]


def describe(section: str) -> list[dict[str, str]]:
    """Name and one line about every entry of a section."""
    return [{"name": name, "about": found.about} for name, found in SECTIONS[section].items()]
