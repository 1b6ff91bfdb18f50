"""From what a user asks for to entries: which part goes where in a network, with every setting resolved.

d width
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from holdfast.core.errors import BadInput, unknown
from holdfast.nn.experts.graft import LAYER_CHOICES, expert_settings, feed_forward_names, layer_indices
from holdfast.nn.graft.holder import Entry
from holdfast.nn.memory.general import plan_reads
from holdfast.nn.memory.key_value import KeyValueMemory

SLOTS = tuple(name for name in inspect.signature(KeyValueMemory).parameters if name != "width")
MEMORY = ("at", "share", "width", *SLOTS)
READS = ("layers", "source", "chunks", "states")
GENERAL = ("network", "strategy", *READS, "attention", "mask", "gate", "share")
At = str | int | Sequence[str | int] | None


def memories(module: nn.Module, given: int | Mapping[str, Any]) -> list[Entry]:
    """A memory after each of some layers, or after parts by their names; a number is how many slots it has."""
    told: dict[str, Any] = {"slots": given} if isinstance(given, int) else dict(given)
    for key in told:
        if key not in MEMORY:
            raise unknown("setting of a memory", key, MEMORY)
    share, at, width = told.pop("share", 0.5), told.pop("at", None), told.pop("width", None)
    if not 0 <= share <= 1:
        raise BadInput(f"share, the memory's part in the features, lies between 0 and 1, not {share}")
    return [
        {"kind": "memory", "at": place, "width": width or _width(module, place), "share": share, "settings": told}
        for place in _places(module, at)
    ]


def experts(module: nn.Module, given: int | Mapping[str, Any]) -> list[Entry]:
    """Experts in each of some layers, or in blocks by their names; a number is how many there are."""
    told: dict[str, Any] = {"count": given} if isinstance(given, int) else dict(given)
    feed, at = told.pop("feed", None), told.pop("at", LAYER_CHOICES[0])
    options = expert_settings({"count": 6} | told)
    if options is None:
        raise BadInput("experts are at least one: leave them out to have none")
    del options["at"]
    names = [at] if isinstance(at, str) else at
    if isinstance(names, Sequence) and names and all(isinstance(n, str) and n not in LAYER_CHOICES for n in names):
        blocks = [_known(module, name) for name in names]
    else:
        stack = _stack(module)
        blocks = [stack[i] for i in layer_indices(at, len(stack))]
    found = []
    for block in blocks:
        names = feed_forward_names(module.get_submodule(block)) if feed is None else _feed(module, block, feed)
        found.append({"kind": "experts", "at": block, "feed": list(names), "settings": options})
    return found


def general_memory(module: nn.Module, given: nn.Module | Mapping[str, Any]) -> tuple[Entry, nn.Module]:
    """What chosen layers read of a general network, and that network."""
    told: dict[str, Any] = {"network": given} if isinstance(given, nn.Module) else dict(given)
    for key in told:
        if key not in GENERAL:
            raise unknown("setting of a general memory", key, GENERAL)
    network = told.pop("network", None)
    if not isinstance(network, nn.Module) or network is module:
        raise BadInput("general needs a second network, such as the model before it saw the domain, as its 'network'")
    for each in (module, network):
        if "config" not in vars(each):
            raise BadInput(f"{type(each).__name__} is no network of transformers, which a general memory is for")
    asked = {name: told.pop(name) for name in READS if name in told}
    depth = {"depth": len(_stack(module)), "general": len(_stack(network))}
    reads = plan_reads(told.pop("strategy", "chunk-gated"), **depth, **asked)
    settings = {"attention": "memory", "mask": "keys", "gate": "normal", "share": 0.0} | told
    return {"kind": "general", "reads": [[i, list(sources)] for i, sources in reads.items()], **settings}, network


def _places(module: nn.Module, at: At) -> list[str]:
    """Dotted names: of layers by their numbers, from 0 or from the end; of all of them; or as they are given."""
    if at is None:
        stack = _stack(module, needed=False)
        return [stack[-1] if stack else ""]
    if at == "all":
        return _stack(module)
    found = []
    for each in [at] if isinstance(at, str | int) else at:
        if isinstance(each, str):
            found.append(_known(module, each))
            continue
        stack = _stack(module)
        if not -len(stack) <= each < len(stack):
            raise BadInput(f"at names a layer from 0 to {len(stack) - 1}, or from the end, not {each}")
        found.append(stack[each])
    if not found or len(set(found)) < len(found):
        raise BadInput(f"at names one place or several, and each once, not {at!r}")
    return found


def _stack(module: nn.Module, *, needed: bool = True) -> list[str]:
    """The names of the layers: of the longest list of modules."""
    lists = {name: len(part) for name, part in module.named_modules() if isinstance(part, nn.ModuleList) and len(part)}
    if not lists:
        if needed:
            raise BadInput(
                f"{type(module).__name__} has no stack of layers: name the places as its named_modules() names them"
            )
        return []
    name = max(lists, key=lambda each: lists[each])
    return [f"{name}.{i}" for i in range(lists[name])]


def _known(module: nn.Module, name: str) -> str:
    names = [each for each, _ in module.named_modules()]
    if name not in names:
        raise unknown(f"part of {type(module).__name__}", name, names[1:])
    return name


def _feed(module: nn.Module, block: str, feed: Sequence[str]) -> tuple[str, ...]:
    """The names of a linear map up, an activation and a linear map down in a block, if they are that."""
    if isinstance(feed, str) or len(feed) != 3:
        raise BadInput("feed names three parts of a block: its linear map up, its activation, its linear map down")
    up, _, down = (module.get_submodule(_known(module, f"{block}.{name}" if block else name)) for name in feed)
    if not isinstance(up, nn.Linear) or not isinstance(down, nn.Linear) or up.out_features != down.in_features:
        raise BadInput(f"{feed[0]} and {feed[2]} of '{block}' are no linear maps that fit: one up, one down")
    return tuple(feed)


def _width(module: nn.Module, place: str) -> int:
    """(d) how wide what a part gives is, where its kind or the network's configuration says so."""
    if place in _stack(module, needed=False) and "config" in vars(module):
        return int(vars(module)["config"].hidden_size)
    found = _out(module.get_submodule(place))
    if found is None:
        kind = type(module.get_submodule(place)).__name__
        raise BadInput(f"how wide the output of '{place}' ({kind}) is cannot be seen: say it, memory={{'width': ...}}")
    return found


def _out(part: nn.Module) -> int | None:
    match part:
        case nn.Linear():
            return part.out_features
        case nn.LayerNorm():
            return int(part.normalized_shape[-1])
        case nn.BatchNorm1d():
            return part.num_features
        case nn.Sequential():
            known = (_out(each) for each in reversed(part))
            return next((width for width in known if width is not None), None)
    return None
