"""Learning rates per part of a network: the parts that a spec has, and their default factors."""

from collections.abc import Mapping
from typing import Any

from holdfast import defaults
from holdfast.core.errors import BadInput
from holdfast.spec import RATE_PARTS, Spec


def rate_parts(spec: Spec) -> tuple[str, ...]:
    """Return the parts of a spec's network and method that can have their own learning rate."""
    from holdfast.catalog import lookup, unwrap

    entries = [entry for _, entry in unwrap("methods", spec.method)]
    entries += [lookup("necks", spec.neck), lookup("encoders", spec.encoder)]
    names = {name for entry in entries for name in entry.learned}
    names |= {"head"} if spec.head != "none" else set()
    return tuple(name for name in RATE_PARTS if name in names)


def default_rates(spec: Spec) -> dict[str, float]:
    """Return the default factor per part."""
    from holdfast.catalog import lookup

    return defaults.default_rates(spec, lookup("encoders", spec.encoder), rate_parts(spec))


def changed_rates(spec: Mapping[str, Any]) -> dict[str, float]:
    """Return `lr.NAME` for the factors in which a recorded spec differs from the defaults."""
    factors = spec.get("lr_args", {})
    try:
        known = default_rates(Spec(**spec))
    except BadInput:  # a part that this installation does not have, such as an encoder of a plug-in
        known = dict.fromkeys(factors, 1.0)
    rates = {part: (factors.get(part, 1.0), default) for part, default in known.items()}
    return {f"lr.{part}": factor for part, (factor, default) in rates.items() if factor != default}
