"""Learning rates per part of a network: the parts that a spec has, and their default factors."""

from collections.abc import Mapping
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.defaults import NEW_PARTS
from holdfast.spec import RATE_PARTS, Spec

FITTED = ("neck", "head", "memory")  # before the encoder is trained, with the tuning mode lp-ft
PRETRAINED_HEADS = ("vocabulary", "words")  # they come with the encoder, so that they are not new parts
DECAY = "weights"  # default of new specs; a spec without the setting has `all`


def rate_parts(spec: Spec) -> tuple[str, ...]:
    """Return the parts of a spec's network and method that can have their own learning rate."""
    from holdfast.catalog import lookup, unwrap

    entries = [entry for _, entry in unwrap("methods", spec.method)]
    entries += [lookup("necks", spec.neck), lookup("encoders", spec.encoder)]
    names = {name for entry in entries for name in entry.learned}
    names |= {"head"} if spec.head != "none" else set()
    names |= {"router", "experts"} if spec.encoder_args.get("experts") else set()
    return tuple(name for name in RATE_PARTS if name in names)


def default_rates(spec: Spec) -> dict[str, float]:
    """Return the default factor per part: new parts learn faster than a pretrained encoder that is tuned."""
    from holdfast.catalog import lookup

    pretrained = "lr_args" in lookup("encoders", spec.encoder).defaults or bool(spec.encoder_args.get("weights"))
    equal = spec.tune == "frozen" or spec.tune.startswith("lora:")  # adapters are new parts too
    known = {} if equal or not pretrained else dict(NEW_PARTS)
    for name in FITTED if spec.tune == "lp-ft" else ("head",) if spec.head in PRETRAINED_HEADS else ():
        known.pop(name, None)
    return {name: known.get(name, 1.0) for name in rate_parts(spec)}


def changed_rates(spec: Mapping[str, Any]) -> dict[str, float]:
    """Return `lr.NAME` for the factors in which a recorded spec differs from the defaults."""
    factors = spec.get("lr_args", {})
    try:
        defaults = default_rates(Spec(**spec))
    except BadInput:  # a part that this installation does not have, such as an encoder of a plug-in
        defaults = dict.fromkeys(factors, 1.0)
    rates = {part: (factors.get(part, 1.0), default) for part, default in defaults.items()}
    return {f"lr.{part}": factor for part, (factor, default) in rates.items() if factor != default}
