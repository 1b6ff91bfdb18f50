"""Resolve a user's graft request to entries: which part is inserted where, with all settings."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from holdfast.core.errors import BadInput, check_known
from holdfast.core.settings import setting_names, type_error
from holdfast.nn.experts.graft import LAYER_CHOICES, feed_forward_names, layer_indices
from holdfast.nn.experts.layer import ExpertSettings, SparseMoE
from holdfast.nn.graft.holder import Entry
from holdfast.nn.memory.general import GeneralSettings, ReadSettings, plan_reads
from holdfast.nn.memory.key_value import KeyValueSettings
from holdfast.nn.memory.neck import BlendSettings

At = str | int | Sequence[str | int] | None


def memories(module: nn.Module, request: int | Mapping[str, Any]) -> list[Entry]:
    """Return one entry per memory, given a number of slots or settings with `at`, `share` and `width`."""
    settings: dict[str, Any] = {"slots": request} if isinstance(request, int) else dict(request)
    _check_names("setting of a memory", settings, ("at", "share", "width", *setting_names(KeyValueSettings)))
    share, at, width = settings.pop("share", 0.5), settings.pop("at", None), settings.pop("width", None)
    BlendSettings(share=share)  # raises unless the share lies between 0 and 1
    return [
        {"kind": "memory", "at": name, "width": width or _width(module, name), "share": share, "settings": settings}
        for name in _module_names(module, at)
    ]


def experts(module: nn.Module, request: int | Mapping[str, Any]) -> list[Entry]:
    """Return one entry per expert layer, given a number of experts or settings with `at` and `feed`."""
    settings: dict[str, Any] = {"count": request} if isinstance(request, int) else dict(request)
    feed, at = settings.pop("feed", None), settings.pop("at", LAYER_CHOICES[0])
    _check_names("setting of experts", settings, setting_names(ExpertSettings))
    if wrong := type_error(SparseMoE, settings):
        raise BadInput(f"experts: {wrong}")
    options = asdict(ExpertSettings(**settings))
    names = [at] if isinstance(at, str) else at
    if isinstance(names, Sequence) and names and all(isinstance(n, str) and n not in LAYER_CHOICES for n in names):
        blocks = [_existing(module, name) for name in names]
    else:
        stack = _stack(module)
        blocks = [stack[i] for i in layer_indices(at, len(stack))]
    feeds = (feed_forward_names(module.get_submodule(b)) if feed is None else _feed(module, b, feed) for b in blocks)
    return [
        {"kind": "experts", "at": block, "feed": list(names), "settings": options}
        for block, names in zip(blocks, feeds, strict=True)
    ]


def general_memory(module: nn.Module, request: nn.Module | Mapping[str, Any]) -> tuple[list[Entry], nn.Module]:
    """Return the entry of a general memory, in a list, and the general network."""
    settings: dict[str, Any] = {"network": request} if isinstance(request, nn.Module) else dict(request)
    _check_names(
        "setting of a general memory",
        settings,
        ("network", *setting_names(ReadSettings), *setting_names(GeneralSettings)),
    )
    network = settings.pop("network", None)
    if not isinstance(network, nn.Module) or network is module:
        raise BadInput("`general` needs a second network as its `network`, e.g. the model before domain adaptation")
    for net in (module, network):
        if "config" not in vars(net):
            raise BadInput(f"a general memory needs transformers models, got {type(net).__name__}")
    plan = {name: settings.pop(name) for name in setting_names(ReadSettings) if name in settings}
    depth = {"depth": len(_stack(module)), "general": len(_stack(network))}
    reads = plan_reads(plan.pop("strategy", ReadSettings.strategy), **depth, **plan)
    entry = {"kind": "general", "reads": [[i, list(sources)] for i, sources in reads.items()]}
    return [{**entry, **asdict(GeneralSettings(**settings))}], network


def _check_names(what: str, settings: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in settings:
        check_known(what, name, known)


def _module_names(module: nn.Module, at: At) -> list[str]:
    """Return dotted module names for layer numbers (from 0 or from the end), "all", or names."""
    if at is None:
        stack = _stack(module, required=False)
        return [stack[-1] if stack else ""]
    if at == "all":
        return _stack(module)
    names = []
    for item in [at] if isinstance(at, str | int) else at:
        if isinstance(item, str):
            names.append(_existing(module, item))
            continue
        stack = _stack(module)
        if not -len(stack) <= item < len(stack):
            raise BadInput(f"`at` must name a layer from 0 to {len(stack) - 1}, or count from the end; got {item}")
        names.append(stack[item])
    if not names or len(set(names)) < len(names):
        raise BadInput(f"`at` must name at least one module and no duplicates, got {at!r}")
    return names


def _stack(module: nn.Module, *, required: bool = True) -> list[str]:
    """Return the names of the layers: the items of the longest ModuleList."""
    lists = [(name, len(part)) for name, part in module.named_modules() if isinstance(part, nn.ModuleList)]
    name, count = max(lists, key=lambda item: item[1], default=("", 0))
    if required and not count:
        raise BadInput(f"{type(module).__name__} has no list of layers: set `at` to names from its named_modules()")
    return [f"{name}.{i}" for i in range(count)]


def _existing(module: nn.Module, name: str) -> str:
    check_known(f"part of {type(module).__name__}", name, dict(module.named_modules()))
    return name


def _feed(module: nn.Module, block: str, feed: Sequence[str]) -> tuple[str, ...]:
    """Check the names of the first linear layer, the activation and the second linear layer of a block."""
    if isinstance(feed, str) or len(feed) != 3:
        raise BadInput(f"`feed` must name three modules of a block: linear, activation, linear; got {feed!r}")
    up, _, down = (module.get_submodule(_existing(module, f"{block}.{name}" if block else name)) for name in feed)
    if not isinstance(up, nn.Linear) or not isinstance(down, nn.Linear) or up.out_features != down.in_features:
        raise BadInput(f"`feed`: {feed[0]} and {feed[2]} of '{block}' must be linear layers of matching width")
    return tuple(feed)


def _width(module: nn.Module, name: str) -> int:
    """Return the output width of a module, from its type or from the network's configuration."""
    if name in _stack(module, required=False) and "config" in vars(module):
        return int(vars(module)["config"].hidden_size)
    part = module.get_submodule(name)
    if (width := _output_width(part)) is None:
        raise BadInput(f"the output width of '{name}' ({type(part).__name__}) is unknown: set memory={{'width': ...}}")
    return width


def _output_width(module: nn.Module) -> int | None:
    match module:
        case nn.Linear():
            return module.out_features
        case nn.LayerNorm():
            return int(module.normalized_shape[-1])
        case nn.BatchNorm1d():
            return module.num_features
        case nn.Sequential():
            widths = (_output_width(child) for child in reversed(module))
            return next((width for width in widths if width is not None), None)
    return None
