"""Which records are repetitions of one configuration, and how a configuration is called in a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.record import RunRecord

BASELINE = "erm"
SHARED = ("encoder", "tune")  # told as soon as two of them occur: a comparison across them must be visible
BARE = (*SHARED, "data", "plan")  # the value speaks for itself
NO_NECK = ("none", "null")
FIRST = ("steps", "lr", "batch")  # before others, which may follow from them
LATE = ("data", "plan", "fingerprint")  # named only where nothing else tells two configurations apart


def configuration(record: RunRecord) -> str:
    """All of a spec but the seed: equal for two records exactly if they are repetitions."""
    return json.dumps({k: v for k, v in record.spec.items() if k != "seed"}, sort_keys=True)


def label(record: RunRecord, among: Iterable[RunRecord] = ()) -> str:
    """The method's name, and what distinguishes this configuration from the others of `among`."""
    return _labels([*among, record])[configuration(record)]


def grouped(records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Label -> its records, each run once; the baseline first, then by name."""
    once = list({r.id: r for r in records}.values())
    names = _labels(once)
    groups: dict[str, list[RunRecord]] = {}
    for record in sorted(once, key=lambda r: _order(r, names[configuration(r)])):
        groups.setdefault(names[configuration(record)], []).append(record)
    return groups


def is_plain(record: RunRecord) -> bool:
    """The baseline without anything added to its network, be it by a neck or by the encoder's own setting."""
    spec = record.spec
    bare = str(spec.get("neck") or "none") in NO_NECK and not (spec.get("encoder_args") or {}).get("experts")
    return spec["method"] == BASELINE and bare


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts slots=8 before slots=16."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p.lower()) for p in parts)


def _order(record: RunRecord, name: str) -> tuple[Any, ...]:
    method = str(record.spec["method"])
    return (
        method != BASELINE,
        natural(method),
        str(record.spec.get("neck") or "none") not in NO_NECK,
        natural(name),
        natural(str(record.spec.get("seed"))),
        record.episode,
    )


def _labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """Configuration -> label; no two configurations share one."""
    specs = {configuration(r): r.spec for r in records}
    flat = {key: _flatten(spec) for key, spec in specs.items()}
    always = [k for k in SHARED if len({f.get(k) for f in flat.values()}) > 1]
    necks = _necks(flat)
    found: dict[str, str] = {}
    for method in sorted({str(s["method"]) for s in specs.values()}):
        own = {key: flat[key] for key in sorted(specs) if str(specs[key]["method"]) == method}
        chosen = _telling(own, always, necks)
        for key, settings in own.items():
            told = ", ".join(_say(k, settings.get(k)) for k in chosen)
            name = method + necks[key] + (f" ({told})" if told else "")
            twins = sum(1 for n in found.values() if n == name or n.startswith(f"{name} #"))
            found[key] = f"{name} #{twins + 1}" if twins else name
    return found


def _necks(flat: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Configuration -> what a label says of its neck: ` + memory frozen slots=64`, nothing of the plain backbone.

    Settings are told where records with the same neck differ in them; one that was left as it is goes unsaid.
    """
    necks = {key: settings.get("neck", "none") for key, settings in flat.items()}
    necks = {key: "none" if neck in NO_NECK else neck for key, neck in necks.items()}
    found = {}
    for key, settings in flat.items():
        same = [flat[other] for other, neck in necks.items() if neck == necks[key]]
        own = sorted(k for k in settings if k.startswith("neck_args."))
        differ = [k for k in own if len({other.get(k) for other in same}) > 1]
        words = [_neck_setting(k.removeprefix("neck_args."), settings[k]) for k in differ]
        found[key] = "" if necks[key] == "none" else f" + {' '.join([necks[key], *words])}"
    return found


def _neck_setting(name: str, value: str) -> str:
    return name if value == "true" else f"{name}={value}"


def _telling(own: Mapping[str, Mapping[str, str]], always: list[str], necks: Mapping[str, str]) -> list[str]:
    """The settings that tell one method's configurations apart, each taken only if it tells more apart."""
    chosen = list(always)
    names = {k for settings in own.values() for k in settings if k != "neck" and not k.startswith("neck_args.")}
    for name in sorted(names, key=_priority):
        before = {(necks[key], *(s.get(k) for k in chosen)) for key, s in own.items()}
        after = {(necks[key], *(s.get(k) for k in (*chosen, name))) for key, s in own.items()}
        if len(after) > len(before):
            chosen.append(name)
    return chosen


def _priority(name: str) -> tuple[int, str]:
    if name in LATE:
        return 5 + LATE.index(name), name
    if name in BARE:
        return 0, name
    if name not in FIRST and "_args." not in name:
        return 4, name
    return (1 if name.startswith("method_args.") else 2 if "_args." in name else 3), name


def _flatten(spec: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by dotted name, values as JSON text; without seed and method."""
    flat: dict[str, str] = {}
    for name, value in spec.items():
        if not prefix and name in ("seed", "method"):
            continue
        if isinstance(value, dict):
            flat |= _flatten(value, "" if name == "settings" else f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return flat


def _say(name: str, value: str | None) -> str:
    """A setting in a label: `minilm`, `no data`, `slots=64`, `encoder.depth=2`, `weight=default` of none given."""
    short = name.removeprefix("method_args.").replace("_args.", ".")
    if value is None or value == "null":
        return f"no {name}" if name in BARE else f"{short}={'default' if value is None else 'none'}"
    return value if name in BARE else f"{short}={value}"
