"""Methods of a comparison: the default slate, `all`, and methods that are identical in the present setting.

The default slate has ERM and its moving average, one method per family (the one with the best published average on
DomainBed), and the systems with a memory or experts, each where it fits the data, the encoder and the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from holdfast import catalog
from holdfast.catalog.encoders import GENERAL, SIMPLE_ENCODER
from holdfast.catalog.entry import MethodEntry
from holdfast.catalog.methods import DEFAULT_SLATE
from holdfast.catalog.rates import default_rates
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.defaults import AUTO
from holdfast.spec import Spec
from holdfast.stats.labels import CONSTANT, SIMPLE
from holdfast.train.plan import Episode
from holdfast.train.select import source_folds
from holdfast.train.settings import min_domains, required_necks, with_general_model, with_method, with_rates
from holdfast.train.workspace import Workspace

ALL = "all"
WRAPPERS = {"moving": "moving-average", "swad": "swad"}  # methods that do what `average` does
ADAPTING = ("coral", "dann")  # added to the slate if there are unlabelled examples; a frozen encoder needs a projection
PLAIN_NECKS = ("none", "projection")  # a system of the slate replaces them by its own neck
TRANSFORMERS = ("minilm", "mpnet", "hf:", "vit")  # prefixes of encoders that can contain experts
TABLES = ("table", "mixed")  # kinds that trees are usually good at
FEW_COLUMNS = 50  # of a table of numbers only, whose kind is `vector`
LIGHT = {"words": 1, "characters": 0, "min_df": 1, "features": 1000}  # of the text encoder of a constant prediction


def training_domains(episodes: Iterable[Episode], select: str, per_step: int = 0) -> int:
    """Return the smallest number of domains that any step trains on, folds of the selection included.

    `per_step` is the most that a step has, or 0.
    """
    has_folds = catalog.lookup("selections", select).load().scored_on == "folds"
    stages = [stage for episode in episodes for stage in episode.stages]
    held_out = [max(map(len, source_folds(stage.train))) if has_folds else 0 for stage in stages]
    fewest = min(len(stage.train) - count for stage, count in zip(stages, held_out, strict=True))
    return min(fewest, per_step or fewest)


def choose_methods(names: Iterable[str], spec: Spec, workspace: Workspace) -> list[str]:
    """Return the methods to compare, `auto` and `all` resolved; notes name those of them that are left out."""
    episodes = workspace.episodes(spec)
    if not any(stage.test for episode in episodes for stage in episode.stages):
        fix = "use another, such as --plan leave-one-out, or train a model with `holdfast fit`"
        raise BadInput(f"the plan {spec.plan} tests nothing, so there is nothing to compare: {fix}")
    names = list(dict.fromkeys(names))
    domains = training_domains(episodes, spec.select, spec.domains_per_step)
    if names == [AUTO]:
        slate = [_with_own_neck(name, spec) for name in DEFAULT_SLATE]
        if workspace.dataset.unlabelled:
            frozen = spec.tune == "frozen" and spec.neck == "none"
            slate += [
                name for name in (f"projection+{each}" if frozen else each for each in ADAPTING) if name not in slate
            ]
        fitting = [name for name in slate if not exclusion_reason(name, spec, domains)]
        workspace.notes.append(f"default methods: {', '.join(fitting)} (--methods all compares every method)")
        return fitting
    if names != [ALL]:
        return names
    trained = [each for each in catalog.buildable_names("methods") if not catalog.inner_method(each).full_batch]
    reasons = {name: exclusion_reason(name, spec, domains) for name in trained}
    workspace.notes += [f"{name} left out: {reason}" for name, reason in reasons.items() if reason]
    return [name for name, reason in reasons.items() if not reason]


def _with_own_neck(name: str, spec: Spec) -> str:
    """Name the neck of a method that needs one if the others have a projection."""
    necks = () if "+" in name else required_necks(name, spec)
    return f"{necks[0]}+{name}" if necks and spec.neck == "projection" else name


def exclusion_reason(name: str, spec: Spec, domains: int) -> str:
    """Return why a method cannot be trained here or would be equal to another one, or an empty string."""
    neck, plus, name = name.rpartition("+")
    if neck == GENERAL:
        if reason := _general_reason(spec):
            return reason
        spec = with_general_model(spec)
    elif plus:
        if reason := _neck_reason(neck, spec):
            return reason
        spec = replace(spec, neck=neck, neck_args={})
    entries = [entry for _, entry in catalog.unwrap("methods", name)]
    if reason := next((reason for entry in entries if (reason := entry.unsupported(spec.task))), ""):
        return reason
    if reason := catalog.incompatibility(name, spec.encoder):
        return reason
    if min_domains(name) > domains:
        have = f"a step has {domains}" if domains == spec.domains_per_step else f"the data has {domains}"
        return f"it needs {min_domains(name)} training domains, {have}"
    necks = required_necks(name, spec)
    if necks and spec.neck not in ("none", *necks):
        return f"it needs a neck such as {necks[0]}, not {spec.neck}"
    if WRAPPERS.get(spec.average) == catalog.unwrap("methods", name)[0][0]:
        return f"the weights of every method are averaged already (average={spec.average})"
    for entry in entries:
        if entry.acts_on == "stream" and spec.plan != "stream":
            return "it differs from erm only on a stream (--plan stream)"
        if entry.acts_on and entry.acts_on != "stream" and _is_fixed(entry.acts_on, spec):
            trainable = "" if entry.acts_on == "backbone" else " or --set neck=projection"
            same = f", so that it equals {entry.equals}" if entry.equals else ""
            return f"it changes the {entry.acts_on}, which a frozen encoder keeps fixed{same} (--tune full{trainable})"
    return ""


def _neck_reason(neck: str, spec: Spec) -> str:
    """Return why a neck of the default slate does not fit, or an empty string."""
    if spec.neck not in PLAIN_NECKS:
        return f"the neck is {spec.neck}"
    if reason := catalog.lookup("necks", neck).unsupported(spec.task):
        return f"{neck}: {reason}"
    if neck == "experts" and (spec.tune == "frozen" or not spec.encoder.startswith(TRANSFORMERS)):
        return "experts need a transformer that learns"
    return ""


def _general_reason(spec: Spec) -> str:
    """Return why the encoder cannot read a general model, or an empty string."""
    if spec.tune == "frozen":
        return "a general memory needs an encoder that learns"
    try:
        with_general_model(spec)
    except BadInput as error:
        return str(error)
    return ""


def _is_fixed(part: str, spec: Spec) -> bool:
    """Whether features or backbone, on which a method acts, do not change in training."""
    return spec.tune == "frozen" and (part == "backbone" or spec.neck == "none")


def identical_to(spec: Spec) -> Spec:
    """Return the simplest spec that trains the same weights, by the rules of the catalog; the spec itself if none is.

    A method equals another one if what it acts on is not trained, or if settings switch off what distinguishes it.
    """
    name, entry = catalog.unwrap("methods", spec.method)[-1]
    if not isinstance(entry, MethodEntry) or not entry.equals:
        return spec
    fixed = bool(entry.acts_on) and (
        spec.plan != "stream" if entry.acts_on == "stream" else _is_fixed(entry.acts_on, spec)
    )
    chosen = _effective(entry, spec.method_args)
    off = bool(entry.off) and all(chosen.get(key) == value for key, value in entry.off.items())
    if not fixed and not off:
        return spec
    method, other = spec.method.replace(name, entry.equals), catalog.lookup("methods", entry.equals)
    known = {key for _, part in catalog.unwrap("methods", method) for key in part.setting_names()}
    args = {key: value for key, value in spec.method_args.items() if key in known}
    shared = _effective(other, {key: value for key, value in args.items() if key in other.setting_names()})
    if any(shared[key] != chosen.get(key) for key in other.preset):
        return spec  # both have the setting, with different values
    equal = with_method(replace(spec, method_args=args), method)
    rates = {part: factor for part, factor in spec.lr_args.items() if part in default_rates(equal)}
    return identical_to(replace(equal, lr_args=rates))


def _effective(entry: MethodEntry, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a method: its defaults, and what the entry or the user changed."""
    defaults = {each.name: each.default for each in fields(entry.load().Settings)}
    return {**defaults, **entry.preset, **entry.fixed, **args}


def merge_identical(specs: Sequence[Spec]) -> tuple[list[Spec], dict[str, str]]:
    """Return the specs to run, and method -> identical method for those that would repeat another one of them."""
    numbers = {str(spec): spec for spec in specs}
    chosen: dict[str, Spec] = {}
    same: dict[str, str] = {}
    for spec in sorted(specs, key=lambda each: str(identical_to(each)) != str(each)):  # the simplest first
        first = chosen.setdefault(str(identical_to(spec)), spec)
        if first is not spec and str(first) != str(spec):
            same[spec.method] = first.method
    run = {str(spec) for spec in chosen.values()}
    return [spec for key, spec in numbers.items() if key in run], same


def baseline_specs(base: Spec, dataset: Dataset, seeds: Sequence[int]) -> list[Spec]:
    """Return the specs of the baselines for the spec of a comparison; none for streams and other tasks."""
    kind = dataset.raw.kind
    fitting = [name for name in SIMPLE if not catalog.lookup("methods", name).unsupported(base.task)]
    constant = next((name for name in fitting if name in CONSTANT), None)
    trees = [name for name in fitting if catalog.lookup("methods", name).head]
    regressions = [name for name in fitting if name not in (*CONSTANT, *trees)]
    if constant is None or base.plan == "stream":
        return []
    plain = replace(base, neck="none", neck_args={}, head="linear", head_args={}, method_args={})
    plain = replace(plain, predict=Spec.predict, predict_args={})
    simple = replace(plain, encoder=SIMPLE_ENCODER[kind], encoder_args={})
    entry = catalog.lookup("encoders", base.encoder)
    useful = entry.pretrained or entry.tune == "frozen" or bool(base.encoder_args.get("weights"))
    frozen = [plain] if useful and "template" not in base.encoder_args else []
    first, *others = [*frozen, simple]
    counts = LIGHT if kind == "text" else {}
    specs = [with_method(replace(simple, encoder_args=counts), constant)]  # nothing large is loaded or counted for it
    specs += [with_method(each, name) for name in regressions for each in (first, *others)]
    if trees and (kind in TABLES or (kind == "vector" and 0 < len(dataset.columns or ()) <= FEW_COLUMNS)):
        specs.append(with_method(simple, trees[0]))
    return [replace(spec, seed=seed) for spec in with_rates(specs, {}) for seed in seeds]
