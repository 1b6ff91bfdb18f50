"""From what a user says to a Spec: defaults by encoder and tuning, settings by dotted names, the device."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from holdfast import catalog
from holdfast.catalog.entry import TOKEN_TASKS
from holdfast.core import parallel
from holdfast.core.errors import BadInput, unknown
from holdfast.data.dataset import Dataset
from holdfast.nn.model import check_mode
from holdfast.spec import Spec

GROUPS = ("method", "encoder", "neck", "head", "plan", "task")
WHOLE = re.compile(r"0|-?[1-9]\d{0,15}")  # whole numbers that are written as they were once they are text again
DECIMALS = re.compile(r"\[( *-?\d*\.?\d+ *(,|(?=])))+\]")  # as [.5,.5], which is no JSON


def parse(pairs: Iterable[str]) -> dict[str, Any]:
    """`lr=0.001`, `encoder.length=64`, `plan.targets=a,b`, `neck.at=0,2` to a dict; values are JSON if they can be."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise BadInput(f"--set takes KEY=VALUE, such as --set encoder.length=64, not '{pair}'")
        found[key.strip()] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if "," not in text or "{" in text:  # a template has braces and may have commas
            return text
        if DECIMALS.fullmatch(text):
            return [float(each) for each in text[1:-1].split(",")]
        pieces = text.split(",")
        return [int(each) for each in pieces] if all(map(WHOLE.fullmatch, pieces)) else pieces


def make_spec(
    dataset: Dataset,
    *,
    encoder: str = "auto",
    tune: str = "auto",
    settings: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    **given: Any,
) -> Spec:
    """A Spec with every default resolved; `settings` holds fields of a Spec or dotted names of a part."""
    settings = dict(settings or {})
    encoder, tune = settings.pop("encoder", encoder), settings.pop("tune", tune)
    kind = settings.get("task", given.get("task")) or Spec.task
    for word, value in (("encoder", encoder), ("tune", tune), ("task", kind)):
        if not isinstance(value, str):
            raise BadInput(f"{word} takes a word, not {value!r}")
    task = catalog.build("tasks", kind, options={})
    name = catalog.resolve_encoder(dataset.raw.kind, encoder, kind)
    entry = catalog.lookup("encoders", name)
    if tune == "auto":
        tune = str(catalog.lookup("tasks", kind).defaults.get("tune", "frozen" if entry.pretrained else "full"))
    chosen: dict[str, Any] = {} if tune == "frozen" else dict(entry.defaults)
    chosen |= {"metric": task.metrics[0]} | {
        key: value for key, value in catalog.lookup("tasks", kind).defaults.items() if key not in ("encoder", "tune")
    }
    chosen |= {key: value for key, value in given.items() if value is not None}
    known = {f.name for f in fields(Spec)} - {f"{g}_args" for g in GROUPS} - {"data", "fingerprint", "processes"}
    for key, value in settings.items():
        group, dot, inner = key.partition(".")
        if dot and group in GROUPS:
            chosen[f"{group}_args"] = _with(chosen.get(f"{group}_args", {}), inner, _target(group, inner, value))
        elif key in known:
            chosen[key] = value
        else:
            raise unknown("setting", key, [*known, *(f"{g}.NAME" for g in GROUPS)])
    if chosen.get("precision", "auto") == "auto":
        able = device is not None and device.type == "cuda" and torch.cuda.is_bf16_supported()
        chosen["precision"] = "bf16" if able and tune != "frozen" else "fp32"
    told = {"data": dataset.name, "fingerprint": dataset.fingerprint, "processes": parallel.world_size()}
    spec = Spec(encoder=name, tune=tune, **told, **chosen)
    spec = with_method(spec, spec.method)
    catalog.check_settings("methods", spec.method, spec.method_args)
    catalog.check_settings("encoders", spec.encoder, spec.encoder_args)
    catalog.check_settings("necks", spec.neck, spec.neck_args)
    catalog.check_settings("heads", spec.head, spec.head_args)
    catalog.check_settings("protocols", spec.plan, spec.plan_args)
    catalog.build("tasks", spec.task, options=spec.task_args)
    catalog.lookup("selections", spec.select)
    check_mode(spec.tune)
    for section, part in (("methods", spec.method), ("encoders", name), ("necks", spec.neck), ("heads", spec.head)):
        catalog.check_task(section, part, spec.task)
    if spec.metric not in task.metrics:
        raise unknown("metric", spec.metric, task.metrics)
    return spec


def settings_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What `make_spec` needs in `settings` to make this spec again, besides what a classifier is told by name."""
    told = {"data", "fingerprint", "method", "encoder", "plan", "tune", "metric", "seed", "steps", "batch", "lr"}
    skipped = told | {f"{group}_args" for group in GROUPS} | {"precision", "processes"}  # these are the machine's
    found = {key: value for key, value in spec.items() if key not in skipped}
    for group in ("method", "encoder", "neck", "head", "task"):
        found |= {f"{group}.{name}": value for name, value in spec.get(f"{group}_args", {}).items()}
    return found


def for_one_domain(method: str) -> str:
    """The method, or, where it needs several domains, erm with the same neck."""
    neck, plus, rule = method.rpartition("+")
    least = max(layer.load().min_domains for _, layer in catalog.unwrap("methods", rule))
    return method if least <= 1 else f"{neck}{plus}erm"


def with_method(spec: Spec, name: str) -> Spec:
    """The spec with this method; `memory+erm` names a neck too, and a method that needs a neck gets its usual one."""
    neck, plus, method = name.rpartition("+")
    if plus:
        catalog.lookup("necks", neck)
        return replace(spec, method=method, neck=neck)
    needed = necks_for(method, spec)
    if needed and spec.neck == "none":
        return replace(spec, method=method, neck=needed[0])
    if needed and spec.neck not in needed:
        raise BadInput(
            f"method {method} needs a neck such as {' or '.join(needed)}, not {spec.neck}: name one with it, as in "
            f"{needed[0]}+{method}"
        )
    return replace(spec, method=method)


def necks_for(method: str, spec: Spec) -> tuple[str, ...]:
    """The necks that a method needs one of, the usual one first; slots that grow may be the encoder's own."""
    own = (
        catalog.lookup("encoders", spec.encoder).growable or "M" not in str(spec.method_args.get("expand", "M")).upper()
    )
    for _, layer in reversed(catalog.unwrap("methods", method)):
        if layer.necks and not (layer.acts_on == "stream" and own):
            return layer.necks
    return ()


def with_methods(
    spec: Spec, names: Sequence[str], *, method_args: Mapping[str, Any], neck_args: Mapping[str, Any]
) -> list[Spec]:
    """One spec a method; methods and necks take those of the settings that they have, and one must have each."""
    own = [_shared("methods", name.rpartition("+")[2], method_args) for name in names]
    _all_taken("method", method_args, own, [name.rpartition("+")[2] for name in names])
    specs = [with_method(replace(spec, method_args=args), name) for name, args in zip(names, own, strict=True)]
    necks = [_shared("necks", each.neck, neck_args) for each in specs]
    _all_taken("neck", neck_args, necks, [each.neck for each in specs])
    return [replace(each, neck_args=args) for each, args in zip(specs, necks, strict=True)]


def _shared(section: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that a part, or one that it wraps, has."""
    free = {key for _, layer in catalog.unwrap(section, name) for key in layer.setting_names()}
    return {key: value for key, value in given.items() if key in free}


def _all_taken(kind: str, given: Mapping[str, Any], taken: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    for key in given:
        if not any(key in args for args in taken):
            free = {n for name in names for _, layer in catalog.unwrap(f"{kind}s", name) for n in layer.setting_names()}
            if not free:
                raise catalog.no_settings_error(f"{kind}s", "' and '".join(dict.fromkeys(names)), key)
            raise unknown(f"setting of a {kind}", key, sorted(free))


def _with(args: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The settings of a part with one more; `experts.top` is one inside the setting `experts`."""
    outer, dot, inner = name.partition(".")
    if not dot:
        return {**args, name: value}
    held = args.get(outer, {})
    if not isinstance(held, Mapping):
        raise BadInput(f"{outer}={held} and {name} cannot be set together: set all of {outer} by names with a dot")
    return {**args, outer: {**held, inner: value}}


def _target(group: str, name: str, value: Any) -> Any:
    """Names of domains as a list of texts, also where they look like numbers."""
    if group != "plan" or name not in ("targets", "sources", "order"):
        return value
    return [str(each) for each in (value if isinstance(value, list | tuple) else [value])]


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise BadInput(f"unknown device '{name}': use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("device cuda was asked for but torch sees no GPU: use --device cpu")
    return torch.device(name)


def choose_analyses(names: Iterable[str], tasks: Iterable[str] = ()) -> list[str]:
    """The analyses to make of runs with these tasks; `all` is every one that they allow."""
    wanted, places = list(dict.fromkeys(names)), sorted(set(tasks) & set(TOKEN_TASKS))
    if "all" in wanted:
        return [name for name, each in catalog.ANALYSES.items() if set(places) <= set(each.tasks)]
    for name in wanted:
        if name not in catalog.ANALYSES:
            raise unknown("analysis", name, [*catalog.ANALYSES, "all"])
        if many := [task for task in places if task not in catalog.ANALYSES[name].tasks]:
            raise BadInput(
                f"analysis '{name}' looks at one feature an example, and {', '.join(many)} has many: leave it out"
            )
    return wanted


def choose_methods(names: Iterable[str], spec: Spec, sources: int) -> tuple[list[str], list[str]]:
    """The methods to run, and a sentence for each that `all` leaves out because of the data or the settings."""
    wanted = list(dict.fromkeys(names))
    if wanted != ["all"]:
        for name in wanted:
            catalog.check_task("methods", with_method(spec, name).method, spec.task)
            if reason := catalog.incompatibility(with_method(spec, name).method, spec.encoder):
                raise BadInput(f"method {name} cannot be trained with the encoder {spec.encoder}: {reason}")
        return wanted, []
    chosen, left = [], []
    for name in catalog.buildable_names("methods"):
        reason = unfit(name, spec, sources)
        if reason:
            left.append(f"{name} left out: {reason}")
        else:
            chosen.append(name)
    return chosen, left


def unfit(name: str, spec: Spec, sources: int) -> str:
    """Why a method lacks domains or a neck, or would train exactly as ERM here; empty where it would not."""
    found = catalog.unwrap("methods", name)
    if any(spec.task not in layer.tasks for _, layer in found):
        return f"it is not for the task {spec.task}"
    if reason := catalog.incompatibility(name, spec.encoder):
        return reason
    least = max(layer.load().min_domains for _, layer in found)
    if least > sources:
        return f"it needs {least} training domains, here are {sources}"
    needed = necks_for(name, spec)
    if needed and spec.neck not in ("none", *needed):
        return f"it needs a neck such as {needed[0]}, not {spec.neck}"
    for _, layer in found:
        if layer.acts_on == "stream" and spec.plan != "stream":
            return "it differs from erm over a stream only (--plan stream)"
        still = layer.acts_on == "backbone" or (layer.acts_on == "features" and spec.neck == "none")
        if spec.tune == "frozen" and still:
            mend = "" if layer.acts_on == "backbone" else " or --set neck=projection"
            return f"it moves {layer.acts_on}, and a frozen encoder's do not move (--tune full{mend})"
    return ""
