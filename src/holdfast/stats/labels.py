"""Group records by configuration (all settings except the seed) and name each configuration in tables."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.catalog.encoders import GENERAL
from holdfast.catalog.methods import METHODS
from holdfast.record import RunRecord

BASELINE = "erm"
CONSTANT = ("majority", "mean")  # baselines that ignore the input
# simple baselines, which are solved at once, in the order of the table
SIMPLE = (*CONSTANT, "logistic", "ridge", "boosting", "lightgbm")
SOUP, STACK, ENSEMBLE, STACK_ENSEMBLE = "soup", "stack", "ensemble", "ensemble(stack)"  # combinations of finished runs
COMBINED = (SOUP, STACK, ENSEMBLE, STACK_ENSEMBLE)  # the simplest first: a soup is one network
ALWAYS = ("encoder", "tune")  # part of every label as soon as the records have two values
VALUE_ONLY = (*ALWAYS, "data", "plan")  # shown without the name of the setting
BY_ROWS = ("rows", "steps", "every", "patience", "lr", "searched")  # the rows and what depends on their number
ROWS = "rows"  # part of every label where it is a sample of the data
NO_NECK = ("none", "null")
NEUTRAL = " + projection"  # text on a neck that is no mechanism: not shown if all trained rows have it
FIRST = ("steps", "lr", "batch")  # before other settings, which may depend on them
LAST = ("data", "plan", "fingerprint")  # only if nothing else distinguishes two configurations

Groups = Mapping[str, Sequence[RunRecord]]  # label -> records, in the order of the table


def settings_key(spec: Mapping[str, Any], *ignored: str) -> str:
    """Serialise a spec without ignored and searched settings: equal for two runs exactly if they share all others."""
    ignored = (*ignored, *(spec.get("searched") or ()))
    return json.dumps({k: v for k, v in spec.items() if k not in ignored}, sort_keys=True)


def configuration(record: RunRecord) -> str:
    """Serialise the spec without the seed: equal for two records exactly if they repeat one configuration."""
    return settings_key(record.spec, "seed")


def without_rows(record: RunRecord) -> str:
    """Serialise the spec without the seed, the number of rows and what depends on it, the chosen rate included."""
    return settings_key(record.spec, "seed", *BY_ROWS)


def largest(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the records of every configuration on the most rows that it was trained on."""
    records = list(records)
    # a spec with 0 rows uses all of them, more than any sample
    most: dict[str, float] = {}
    for record in records:
        key, rows = without_rows(record), record.spec.get("rows") or math.inf
        most[key] = max(most.get(key, 0), rows)
    # all configurations have the same number of rows: nothing to leave out
    if len(set(most.values())) == 1 and all((r.spec.get("rows") or math.inf) in most.values() for r in records):
        return records
    return [record for record in records if (record.spec.get("rows") or math.inf) == most[without_rows(record)]]


def grouped(records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Map label to its records without repeated runs; simple baselines come first, then the baseline, then by name."""
    # a run may occur twice, for example in two folders that are read together
    unique = list({r.id: r for r in records}.values())
    names = _labels(unique)
    groups: dict[str, list[RunRecord]] = {}
    for record in sorted(unique, key=lambda r: _order(r, names[configuration(r)])):
        groups.setdefault(names[configuration(record)], []).append(record)
    return groups


def is_collapsed(group: Iterable[RunRecord]) -> bool:
    """Whether a run that adapted to unlabelled examples predicts too few of the classes for them."""
    return any((stage.get("adapted") or {}).get("collapsed") for record in group for stage in record.stages)


def is_plain(record: RunRecord) -> bool:
    """Whether the record is of the baseline without a neck, experts or general memory, or memory at prediction time."""
    has_experts = (record.spec.get("encoder_args") or {}).get("experts")
    has_recall = record.spec.get("predict", "model") != "model"
    reads = record.spec.get("encoder") == GENERAL
    return record.spec["method"] == BASELINE and not (_has_neck(record) or has_experts or has_recall or reads)


def is_simple(record: RunRecord) -> bool:
    """Whether the record is of a simple baseline: a constant prediction, a logistic or ridge regression, or trees."""
    return str(record.spec["method"]) in SIMPLE


def is_combined(record: RunRecord) -> bool:
    """Whether the record combines finished runs: stacking of baselines and network, or an average over seeds."""
    return str(record.spec["method"]) in COMBINED


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts slots=8 before slots=16."""
    pieces = re.findall(r"\d+|\D+", text)
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p.lower()) for p in pieces)


def _order(record: RunRecord, name: str) -> tuple[Any, ...]:
    method = str(record.spec["method"])
    seed = natural_key(str(record.spec.get("seed")))
    # simple baselines in the order of the table, plain training, all other methods, combinations of runs
    first = SIMPLE.index(method) if is_simple(record) else len(SIMPLE) + (method != BASELINE)
    if is_combined(record):
        first = len(SIMPLE) + 2 + COMBINED.index(method)
    return first, natural_key(method), _has_neck(record), natural_key(name), seed, record.episode


def _has_neck(record: RunRecord) -> bool:
    return str(record.spec.get("neck") or "none") not in NO_NECK


def _labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """Map configuration to a unique label."""
    specs = {configuration(r): r.spec for r in records}
    flat = {key: _flatten(spec) for key, spec in specs.items()}
    readers = _general_readers(flat)
    # trained networks alone decide what is shown: simple baselines name their encoder in any case
    trained = [flat[key] for key, spec in specs.items() if spec["method"] not in (*SIMPLE, *COMBINED)]
    always = [k for k in ALWAYS if len({settings.get(k) for settings in trained}) > 1]
    necks = {key: f" + {GENERAL}{text}" if key in readers else text for key, text in _neck_labels(specs, flat).items()}
    if {necks[key] for key, spec in specs.items() if spec["method"] not in (*SIMPLE, *COMBINED)} == {NEUTRAL}:
        necks = dict.fromkeys(necks, "")
    labels: dict[str, str] = {}
    # a label has the settings in which the configurations of one method differ; methods differ by name already
    for method in sorted({str(s["method"]) for s in specs.values()}):
        same_method = {key: flat[key] for key in sorted(specs) if str(specs[key]["method"]) == method}
        shown = ["encoder"] if method in SIMPLE else []  # in front of the name
        start = [ROWS, *([] if method in COMBINED else shown or always)]
        names = _distinguishing_settings(same_method, start, necks)
        for key, settings in same_method.items():
            texts = (_setting_text(k, settings.get(k)) for k in names if k not in shown)
            text = ", ".join(filter(None, texts))
            prefix = f"{settings.get('encoder')} + " if method in SIMPLE and method not in CONSTANT else ""
            name = prefix + method + necks[key] + (f" ({text})" if text else "")
            # configurations that differ only in what a label leaves out get a number
            duplicates = sum(1 for n in labels.values() if n == name or n.startswith(f"{name} #"))
            labels[key] = f"{name} #{duplicates + 1}" if duplicates else name
    return labels


def _general_readers(flat: dict[str, dict[str, str]]) -> set[str]:
    """Return the configurations of G-MAP next to its encoder alone; they get the name of that encoder."""
    encoders = {settings.get("encoder", "").removeprefix("hf:") for settings in flat.values()}
    domains = {
        key: settings.get("encoder_args.domain", "minilm")
        for key, settings in flat.items()
        if settings.get("encoder") == GENERAL
    }
    readers = {key for key, domain in domains.items() if domain in encoders}
    # equal encoders are not shown in labels: the mark for G-MAP alone distinguishes the two rows
    for key in readers:
        flat[key]["encoder"] = domains[key] if domains[key] == "minilm" else f"hf:{domains[key]}"
        flat[key].pop("encoder_args.domain", None)
    return readers


def _own_neck_settings(spec: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return names and values of the settings that the method itself gives to its neck."""
    entry = METHODS.get(str(spec["method"]))
    own = {} if entry is None else {**entry.neck_args, **entry.tuned_neck_args}
    return set(_flatten({"neck_args": own}).items())


def _neck_labels(specs: Mapping[str, Mapping[str, Any]], flat: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Map configuration to the text on its neck: ` + memory frozen slots=64`, empty without a neck.

    Settings of a neck are shown if records with this neck differ in them; a method's own settings for it are not.
    """
    flat = {key: dict(settings.items() - _own_neck_settings(specs[key])) for key, settings in flat.items()}
    labels = dict.fromkeys(flat, "")
    necks = {key: settings["neck"] for key, settings in flat.items() if settings.get("neck", "none") not in NO_NECK}
    for key, neck in necks.items():
        # only configurations with the same neck are compared: other necks have other settings
        same_neck = [flat[other] for other in necks if necks[other] == neck]
        texts = [neck]
        for name, value in sorted(flat[key].items()):
            if name.startswith("neck_args.") and len({other.get(name) for other in same_neck}) > 1:
                short = name.removeprefix("neck_args.")
                texts.append(short if value == "true" else f"{short}={value}")
        labels[key] = f" + {' '.join(texts)}"
    return labels


def _distinguishing_settings(
    configurations: Mapping[str, Mapping[str, str]], always: list[str], necks: Mapping[str, str]
) -> list[str]:
    """Choose the settings that distinguish one method's configurations; each must distinguish more of them."""
    chosen = list(always)
    names = {k for s in configurations.values() for k in s if k != "neck" and not k.startswith("neck_args.")}
    for name in sorted(names, key=_priority):
        # greedy: a setting is shown if it separates configurations that the neck and the settings so far leave equal
        before = {(necks[key], *(s.get(k) for k in chosen)) for key, s in configurations.items()}
        after = {(necks[key], *(s.get(k) for k in (*chosen, name))) for key, s in configurations.items()}
        if len(after) > len(before):
            chosen.append(name)
    return chosen


def _priority(name: str) -> tuple[int, str]:
    if name in LAST:
        return 5 + LAST.index(name), name
    if name in VALUE_ONLY:
        return 0, name
    if name not in FIRST and "_args." not in name:
        return 4, name
    return (1 if name.startswith("method_args.") else 2 if "_args." in name else 3), name


def _flatten(spec: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Map dotted setting names to values as JSON text, without seed and method."""
    flat: dict[str, str] = {}
    for name, value in spec.items():
        if not prefix and name in ("seed", "method"):
            continue
        if isinstance(value, dict):
            flat |= _flatten(value, "" if name == "settings" else f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return flat


def _setting_text(name: str, value: str | None) -> str:
    """Format a setting: `minilm`, `no data`, `slots=64`, `encoder.depth=2`, `weight=default` if it is not set.

    A network that predicts without a memory of examples is the normal case and not named.
    """
    if name == "predict" and value in (None, "model"):
        return ""
    if name == ROWS:
        return f"{int(value):,} rows" if value and value.isdecimal() and int(value) else ""
    short = name.removeprefix("method_args.").replace("_args.", ".")
    if value is None or value == "null":
        return f"no {name}" if name in VALUE_ONLY else f"{short}={'default' if value is None else 'none'}"
    return value if name in VALUE_ONLY else f"{short}={value}"
