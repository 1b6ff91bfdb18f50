"""Specs from user settings: defaults by data, encoder, task and tuning mode, and settings with dotted names."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from holdfast import catalog
from holdfast.catalog.encoders import GENERAL
from holdfast.catalog.entry import EXAMPLE_TASKS, EncoderEntry
from holdfast.catalog.rates import changed_rates, default_rates
from holdfast.core import parallel
from holdfast.core.errors import BadInput, check_known, unknown
from holdfast.core.forking import import_early
from holdfast.core.inputs import Question
from holdfast.core.settings import setting_defaults
from holdfast.data.dataset import Dataset
from holdfast.data.decode import open_image
from holdfast.data.splits import TEST
from holdfast.defaults import FEWEST_SLOTS, LENGTH, SIDE, Facts, default_slots, defaults
from holdfast.nn.tuning import check_mode
from holdfast.spec import RATE_PARTS, Spec

GROUPS = ("method", "encoder", "neck", "head", "plan", "task", "predict", "lr")
DOMAIN_SETTINGS = ("targets", "sources", "order")  # of a plan: lists of domain names
UNUSED = (
    "batch", "patience", "optimizer", "lr", "weight_decay", "momentum", "schedule", "warmup", "clip", "average",
    "augment", "domains_per_step",
)  # fmt: skip
SHARED_WITH_GENERAL = ("pooling", "length", "template", "dropout")  # settings of a text encoder that G-MAP has too
PRODUCT_KEYS = "product-memory"  # its number of slots is a square
ONE_STEP = {"steps": 1, "every": 1, "accumulate": 1, **{name: getattr(Spec, name) for name in UNUSED}}
INTEGER = re.compile(r"0|-?[1-9]\d{0,15}")  # integers that keep their spelling as text
DECIMALS = re.compile(r"\[( *-?\d*\.?\d+ *(,|(?=])))+\]")  # as [.5,.5], which is not JSON


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `KEY=VALUE` texts such as `lr=0.001`, `plan.targets=a,b` or `neck.at=0,2`; values are JSON if possible."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise BadInput(f"--set takes KEY=VALUE, such as --set encoder.length=64, not '{pair}'")
        settings[key.strip()] = _parse_value(text)
    return settings


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # what is not JSON is a text, or a list of numbers or names
        if "," not in text or "{" in text:  # a template has braces and may have commas
            return text
        if DECIMALS.fullmatch(text):
            return [float(number) for number in text[1:-1].split(",")]
        # 007 or 1e3 may be names of domains, so only integers that keep their spelling become numbers
        pieces = text.split(",")
        return [int(piece) for piece in pieces] if all(map(INTEGER.fullmatch, pieces)) else pieces


def make_spec(
    dataset: Dataset,
    *,
    encoder: str = "auto",
    tune: str = "auto",
    settings: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    **values: Any,
) -> Spec:
    """Build a Spec with all defaults resolved and all settings checked.

    `settings` holds fields of a Spec, or dotted names such as `encoder.length`; `values` are fields of a Spec, where
    None means the default. Settings take precedence. The plan `auto` depends on the number of domains.
    """
    chosen: dict[str, Any] = {"encoder": encoder, "tune": tune, "lr_args": {}}
    chosen |= {key: value for key, value in values.items() if value is not None}
    # without fields that dotted names fill, and those that the program derives from data, machine or search
    derived = {"data", "fingerprint", "processes", "searched", *(f"{group}_args" for group in GROUPS)}
    known = {field.name for field in fields(Spec)} - derived
    for key, value in (settings or {}).items():
        group, dot, name = key.partition(".")
        if dot and group in GROUPS:
            chosen[f"{group}_args"] = _nested(chosen.get(f"{group}_args", {}), name, _names(group, name, value))
        elif key in known:
            chosen[key] = value
        else:
            raise unknown("setting", key, [*known, *(f"{g}.NAME" for g in GROUPS)])
    chosen["task"] = chosen.get("task") or dataset.task or Spec.task
    # values of --set are parsed as JSON, so a name may turn out to be a number
    for key in ("encoder", "tune", "task"):
        if not isinstance(chosen[key], str):
            raise BadInput(f"{key} must be a name, got {chosen[key]!r}")
    name, kind, where = chosen["task"], dataset.raw.kind, "" if device is None else device.type
    task, task_entry = catalog.build("tasks", name, options={}), catalog.lookup("tasks", name)
    chosen["encoder"] = catalog.resolve_encoder(kind, chosen["encoder"], name, cpu=where == "cpu")
    entry = catalog.lookup("encoders", chosen["encoder"])
    if not isinstance(entry, EncoderEntry):  # a broken plug-in
        raise BadInput(entry.about)
    of_task = {"metric": task.metrics[0], **task_entry.defaults}
    of_task.pop("encoder", None)
    facts = Facts(
        len(dataset), len(dataset.domains), where, where == "cuda" and torch.cuda.is_bf16_supported(),
        parallel.world_size(), partial(_suitable_length, dataset, name, entry), partial(_median_side, dataset),
    )  # fmt: skip
    chosen = defaults(facts, entry, of_task, chosen)
    data = {"data": dataset.name, "fingerprint": dataset.fingerprint, "processes": parallel.world_size()}
    spec = Spec(**data, **chosen)
    # in this order: the method may choose the neck, the neck decides on slots, and rates need the parts of both
    spec = with_slots(with_method(spec, spec.method), len(dataset))
    (spec,) = with_rates([spec], spec.lr_args)
    check_mode(spec.tune)
    if spec.tune == "lp-ft" and not task.predicts:
        raise BadInput(f"--tune lp-ft fits a head on one feature per example, not the task {spec.task}: use full")
    if task.predicts and task.predicts != (form := _target_form(dataset)):
        fix = "pass the file to compare, fit or audit with this task, or convert the data set with the task"
        raise BadInput(f"the task {spec.task} predicts {task.predicts}, but the targets of the data are {form}: {fix}")
    catalog.check_spec(spec, kind)
    catalog.build("tasks", spec.task, options=spec.task_args)
    check_known("metric", spec.metric, task.metrics)
    return spec


def _target_form(dataset: Dataset) -> str:
    """Return what the targets of a data set are: classes, numbers or labels."""
    return "classes" if dataset.targets is None else "numbers" if dataset.targets.ndim == 1 else "labels"


def spec_settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `settings` from which `make_spec` builds this spec again, without the keywords of an estimator."""
    keywords = {"data", "fingerprint", "method", "encoder", "plan", "tune", "metric", "seed", "steps", "batch", "lr"}
    skipped = (
        keywords | {f"{group}_args" for group in GROUPS} | {"precision", "processes", "searched"}
    )  # chosen per machine or search
    settings = {key: value for key, value in spec.items() if key not in skipped}
    for group in ("method", "encoder", "neck", "head", "task", "predict"):
        settings |= {f"{group}.{name}": value for name, value in spec.get(f"{group}_args", {}).items()}
    slots = setting_defaults(catalog.lookup("necks", spec.get("neck", "none")).load()).get("slots", 0)
    if slots > FEWEST_SLOTS and "slots" not in spec.get("neck_args", {}):
        settings["neck.slots"] = slots  # of the record, which the size of other data does not limit
    settings |= size_settings(spec["encoder"], spec.get("encoder_args", {}))
    omitted = {name: spec.get(name, getattr(Spec, name)) for name in ("decay", "average", "domains_per_step")}
    return settings | omitted | changed_rates(spec)


def with_rates(specs: Sequence[Spec], rates: Mapping[str, float]) -> list[Spec]:
    """Set the factors of the learning rate; each one goes to the specs that have the part, at least one of them."""
    # a rate that no spec uses is an error; in a comparison, some of the specs may lack its part
    existing = [default_rates(spec) for spec in specs]
    for part in rates:
        if not any(part in defaults for defaults in existing):
            check_known("setting of lr", part, RATE_PARTS)
            fix = "use " + " or ".join(f"lr.{name}" for name in sorted(set().union(*existing)))
            raise BadInput(f"lr.{part} has no effect, since no method or network of this run has this part: {fix}")
    return [
        replace(spec, lr_args={part: rates.get(part, factor) for part, factor in defaults.items()})
        for spec, defaults in zip(specs, existing, strict=True)
    ]


def with_method(spec: Spec, name: str) -> Spec:
    """Set the method; `memory+erm` also sets the neck, and a method that needs a neck gets its default one.

    `gmap+erm` lets the text encoder read its pretrained weights as a frozen general model.

    A method that is solved at once takes one step and trains nothing but the linear map. The weights of a method that
    averages or replaces them itself are not averaged.
    """
    spec = _with_neck(spec, name)
    *wrappers, (inner, entry) = catalog.unwrap("methods", spec.method)
    if any(wrapper.load().changes_weights for _, wrapper in wrappers):
        spec = replace(spec, average="none")
    # some methods work with one head only
    if entry.head:
        spec = replace(spec, head=entry.head, head_args={})
    if not entry.load().full_batch:
        return spec
    if wrappers:
        raise BadInput(f"method {inner} has a single step, so that {spec.method} has no effect: use {inner}")
    tune = "full" if catalog.lookup("encoders", spec.encoder).sparse else "frozen"
    return replace(spec, tune=tune, precision="fp32", **ONE_STEP)


def _with_neck(spec: Spec, name: str) -> Spec:
    # G-MAP is written like a neck but changes the encoder, so the rest of the name may have a neck of its own
    neck, plus, method = name.rpartition("+")
    if neck == GENERAL:
        return _with_neck(with_general_model(spec), method)
    if plus:
        catalog.lookup("necks", neck)
        args = spec.neck_args
        if spec.neck not in ("none", neck):  # the number of slots belongs to the other neck
            args = {name: value for name, value in args.items() if name != "slots"}
        return _with_neck_defaults(replace(spec, method=method, neck=neck, neck_args=args))
    necks = required_necks(method, spec)
    if necks and spec.neck == "none":
        return _with_neck_defaults(replace(spec, method=method, neck=necks[0]))
    if necks and spec.neck not in necks:
        fix = f"name both, as in {necks[0]}+{method}"
        raise BadInput(f"method {method} needs a neck such as {' or '.join(necks)}, not {spec.neck}: {fix}")
    return _with_neck_defaults(replace(spec, method=method))


def with_general_model(spec: Spec) -> Spec:
    """Let the text encoder of a spec read a frozen copy of itself, in the form it has before training (G-MAP)."""
    if spec.encoder == GENERAL:
        return spec
    prefix, colon, name = spec.encoder.partition(":")
    if spec.encoder != "minilm" and (prefix != "hf" or not colon):
        raise BadInput(f"{GENERAL} reads a text encoder, minilm or hf:NAME, and the encoder is {spec.encoder}")
    shared = {key: value for key, value in spec.encoder_args.items() if key in SHARED_WITH_GENERAL}
    if other := sorted(set(spec.encoder_args) - set(shared)):
        raise BadInput(f"{GENERAL} has no setting encoder.{other[0]}: leave it out, or the method with {GENERAL}")
    return replace(spec, encoder=GENERAL, encoder_args={"domain": name or prefix, **shared})


def _with_neck_defaults(spec: Spec) -> Spec:
    """Add the settings of the neck that the method changes, unless they are set."""
    entries = [entry for _, entry in catalog.unwrap("methods", spec.method) if spec.neck in entry.necks]
    # wrapper by wrapper, so that the innermost method wins; what the user set wins over both
    changed = {name: value for entry in entries for name, value in entry.neck_args.items()}
    if spec.tune != "frozen" and spec.encoder != "features":  # its features change while the memory is used
        changed |= {name: value for entry in entries for name, value in entry.tuned_neck_args.items()}
    return replace(spec, neck_args={**changed, **spec.neck_args}) if changed else spec


def with_slots(spec: Spec, rows: int) -> Spec:
    """Set the default number of slots of a memory; a number that is set stays, and a memory of a stream may grow."""
    entry = catalog.lookup("necks", spec.neck)
    own = setting_defaults(entry.load()) | entry.preset
    slots = own.get("slots")
    if not isinstance(slots, int) or "slots" in spec.neck_args or spec.plan == "stream":
        return spec
    product = spec.neck == PRODUCT_KEYS  # n * n slots for n keys per side, of which `top` are read
    keys = int(spec.neck_args.get("top", own["top"])) if product else None
    chosen = default_slots(slots, min(rows, spec.rows or rows), keys=keys)
    return spec if chosen == slots else replace(spec, neck_args={**spec.neck_args, "slots": chosen})


def required_necks(method: str, spec: Spec) -> tuple[str, ...]:
    """Return the necks of which a method needs one, the default first; a growable memory may be in the encoder."""
    grows = "M" in str(spec.method_args.get("expand", "M")).upper()
    for _, entry in reversed(catalog.unwrap("methods", method)):
        # innermost first; a method for streams needs no neck if it grows no memory, or one inside the encoder
        inside = entry.acts_on == "stream" and (not grows or catalog.lookup("encoders", spec.encoder).growable)
        if entry.necks and not inside:
            return entry.necks
    return ()


def min_domains(method: str) -> int:
    """Return the number of training domains that a method needs."""
    return max(entry.load().min_domains for _, entry in catalog.unwrap("methods", method.rpartition("+")[2]))


def _nested(options: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Add a setting to the options of a part; `experts.top` is a setting inside the setting `experts`."""
    outer, dot, inner = name.partition(".")
    if not dot:
        return {**options, name: value}
    nested = options.get(outer, {})
    if not isinstance(nested, Mapping):
        raise BadInput(f"{outer}={nested} and {name} cannot be combined: set all of {outer} with dotted names")
    return {**options, outer: {**nested, inner: value}}


def _names(group: str, name: str, value: Any) -> Any:
    """Return names of domains as a list of strings, even if they look like numbers."""
    if group != "plan" or name not in DOMAIN_SETTINGS:
        return value
    return [str(domain) for domain in (value if isinstance(value, list | tuple) else [value])]


SAMPLE = 100  # texts per domain whose tokens are counted
CHARACTERS_PER_TOKEN, OVERLAP = 4, 1.5  # of English texts; tokens of windows per token of a text
FILES = 40  # images whose sides are read


def _suitable_length(dataset: Dataset, task: str, encoder: EncoderEntry, options: Mapping[str, Any]) -> int | None:
    """Return the number of tokens that suits the texts, unless it is the encoder's own."""
    if not encoder.tokens or task not in EXAMPLE_TASKS:
        return None
    import_early(encoder.target.partition(":")[0])  # as the next line, imports transformers: seconds
    from holdfast.nn.backbones.length import choose_length

    package = {"package": encoder.packaged} if encoder.packaged else {}
    try:
        return choose_length(dataset.raw.take(counted_rows(dataset)), {**package, **encoder.fixed, **options})
    except BadInput:  # building the encoder raises the same error
        return None


def _median_side(dataset: Dataset) -> float:
    """Return the median of the longer sides of some images."""
    rows, files = counted_rows(dataset), dataset.raw.files()
    rows = rows[:: -(-len(rows) // FILES)]
    if files is None:
        return max(dataset.raw.take(rows[:1]).shape[-2:])
    return float(np.median([_longer_side(files[row]) for row in rows]))


def tokens_to_encode(dataset: Dataset, spec: Spec) -> int:
    """Return the tokens of a text that an encoder reads: at most its length, of questions all windows of the text."""
    examples = dataset.raw.take(counted_rows(dataset)) if spec.task not in EXAMPLE_TASKS else ()
    characters = [len(each.context) for each in examples if isinstance(each, Question)]
    if characters:
        return round(np.mean(characters) / CHARACTERS_PER_TOKEN * OVERLAP)
    return spec.encoder_args.get(LENGTH) or 0


def size_settings(encoder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with which `make_spec` keeps the sizes of a spec with this encoder and these settings."""
    try:
        entry = catalog.lookup("encoders", encoder)
    except BadInput:  # of a plug-in that this installation does not have
        return {}
    if not isinstance(entry, EncoderEntry):
        return {}
    names = [*([LENGTH] if entry.tokens else []), *entry.cpu, *([SIDE] if entry.cpu_sides else [])]
    return {f"encoder.{name}": options.get(name) for name in names}


def _longer_side(file: Any) -> int:
    """Return the pixels of the longer side that the header of an image states; 0 if it cannot be read."""
    try:
        with open_image(file) as image:
            return max(image.size)
    except Exception:  # a corrupt file can raise any exception; decoding it reports the error
        return 0


def counted_rows(dataset: Dataset) -> np.ndarray:
    """Return at most 100 rows per domain, at equal distances; rows that are marked as test rows are left out."""
    chosen = []
    for name in dataset.domains:
        rows = dataset.rows_of(name)
        rows = rows if dataset.split is None else rows[dataset.split[rows] != TEST]
        at = np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(np.int64)
        chosen.append(rows[at])
    return np.concatenate(chosen)
