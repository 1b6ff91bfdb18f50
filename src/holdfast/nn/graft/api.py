"""graft inserts a memory, experts or a general memory into any network; ungraft removes them."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from holdfast.core.checkpoint import load_tensors, save_tensors, state_digest
from holdfast.core.errors import BadInput
from holdfast.core.files import write_folder, write_text
from holdfast.core.settings import without_retired
from holdfast.nn.backbones.companion import FrozenModule, GeneralEncoder
from holdfast.nn.backbones.pretrained import layer_stack
from holdfast.nn.experts.layer import ExpertSettings, SparseMoE
from holdfast.nn.graft import holder, targets
from holdfast.nn.graft.attention import MemoryAttention, remove_attention
from holdfast.nn.graft.holder import NAME, Entry, Grafted, find_graft, require_graft
from holdfast.nn.memory.general import GeneralMemory, GeneralSettings, check_padding
from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.memory.neck import MemoryBlend

M = TypeVar("M", bound=nn.Module)
FORMAT = 1
CONFIG, WEIGHTS = "graft.json", "graft.safetensors"


def graft(
    module: M,
    *,
    memory: int | Mapping[str, Any] | None = None,
    experts: int | Mapping[str, Any] | None = None,
    general: nn.Module | Mapping[str, Any] | None = None,
    freeze: bool = False,
) -> M:
    """Insert parts into a network, in place; its own weights and their names do not change.

    Args:
        module: Any network.
        memory: Number of slots, or settings of `KeyValueMemory` with `at` (layer numbers, "all" or dotted names),
            `share` and `width`.
        experts: Number of experts, or expert settings with `at` and, for custom blocks, `feed`.
        general: A frozen network of the same width to read, or a mapping with `network`, `strategy` and more.
        freeze: Train only the inserted parts.

    Returns:
        The same module.
    """
    entries, network = ([], None) if general is None else targets.general_memory(module, general)
    entries += [] if experts is None else targets.experts(module, experts)
    entries += [] if memory is None else targets.memories(module, memory)
    if not entries:
        raise BadInput("nothing to graft: set memory, experts or general")
    insert_parts(module, entries, network=network, freeze=freeze)
    return module


def insert_parts(module: nn.Module, entries: Sequence[Entry], *, network: nn.Module | None, freeze: bool) -> Grafted:
    """Insert randomly initialised parts for these entries."""
    if find_graft(module) is not None:
        raise BadInput(f"this {type(module).__name__} is grafted already: ungraft it and name all parts in one call")
    own = dict(module.named_parameters())
    container = Grafted(tuple(name for name, p in own.items() if p.requires_grad), freeze=freeze)
    module.add_module(NAME, container)
    general = None
    try:
        for entry in entries:
            part = _INSERT[entry["kind"]](module, entry, container, network)
            general = part if isinstance(part, GeneralMemory) else general
            container.parts.append(part)
            container.entries.append(entry)
    except BaseException:
        ungraft(module)
        raise
    if freeze:
        for parameter in own.values():
            parameter.requires_grad_(False)
    hooks = holder.ForwardHooks(general)
    container.handles.append(module.register_forward_pre_hook(hooks.before, with_kwargs=True))
    container.handles.append(module.register_forward_hook(hooks.after, always_call=True))
    container.train(module.training)
    return container


def _insert_memory(module: nn.Module, entry: Entry, container: Grafted, network: nn.Module | None) -> nn.Module:
    settings = without_retired(KeyValueMemory, entry["settings"])
    memory = _match_dtype(KeyValueMemory(entry["width"], **settings), module)
    part = MemoryBlend(memory, share=entry["share"])
    hook = holder.MemoryHook(part, width=entry["width"], at=entry["at"])
    container.handles.append(module.get_submodule(entry["at"]).register_forward_hook(hook))
    return part


def _insert_experts(module: nn.Module, entry: Entry, container: Grafted, network: nn.Module | None) -> nn.Module:
    block = module.get_submodule(entry["at"])
    up, activation, down = cast(Any, [block.get_submodule(name) for name in entry["feed"]])
    settings = ExpertSettings(**without_retired(SparseMoE, entry["settings"]))
    part = SparseMoE.from_feed_forward(up, down, copy.deepcopy(activation), settings)
    part.to(up.weight.dtype)
    for name, plain in zip(entry["feed"], (up, activation, down), strict=True):
        plain.requires_grad_(False)  # replaced modules get no gradient
        block.set_submodule(name, holder.Replacement(plain, part if plain is up else nn.Identity()))
    return part


def _insert_general(module: nn.Module, entry: Entry, container: Grafted, network: nn.Module | None) -> nn.Module:
    if network is None:
        raise BadInput("this graft reads a general network, which is not saved with it: pass it as general=NETWORK")
    second, reads = GeneralEncoder(FrozenModule(network)), {place: tuple(sources) for place, sources in entry["reads"]}
    if entry.setdefault("digest", second.digest) != second.digest:
        raise BadInput("`general` has other weights than the network that this graft was trained with")
    check_padding(entry)
    settings = {field.name: entry[field.name] for field in fields(GeneralSettings) if field.name in entry}
    return _match_dtype(GeneralMemory(module, second, reads, **settings), module)


_INSERT = {"memory": _insert_memory, "experts": _insert_experts, "general": _insert_general}


def _match_dtype(part: nn.Module, module: nn.Module) -> nn.Module:
    """Move a part to the device and dtype of the network's weights."""
    first = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(0))
    return part.to(device=first.device, dtype=first.dtype)


def ungraft(module: M) -> M:
    """Remove all inserted parts, in place; the network's own weights stay as they are now."""
    container = require_graft(module)
    for handle in container.handles:
        handle.remove()
    for name, part in list(module.named_modules()):
        if isinstance(part, holder.Replacement):
            module.set_submodule(name, part.restore())
    if any(isinstance(part, MemoryAttention) for part in module.modules()):
        remove_attention(layer_stack(module))
    delattr(module, NAME)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in container.learned)
    return module


def grafted_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of the inserted parts, for an optimizer."""
    return [p for p in require_graft(module).parts.parameters() if p.requires_grad]


def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state_dict without the inserted parts, which loads into the plain network."""
    require_graft(module)
    return {name: value for name, value in module.state_dict().items() if not name.startswith(f"{NAME}.")}


def save_graft(module: nn.Module, folder: str | Path) -> Path:
    """Write the inserted parts and their settings; graft.json is written last and marks a complete folder."""
    container, folder = require_graft(module), Path(folder)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in container.parts.state_dict().items()}
    config = {"format": FORMAT, "network": type(module).__name__, "weights": state_digest(plain_state(module))}
    config |= {"freeze": container.freeze, "parts": container.entries}

    def write(draft: Path) -> None:
        save_tensors(draft / WEIGHTS, tensors)
        write_text(draft / CONFIG, json.dumps(config, indent=1) + "\n")

    return write_folder(folder, write, names=(CONFIG, WEIGHTS))


def load_graft(module: M, folder: str | Path, *, general: nn.Module | None = None, strict: bool = True) -> M:
    """Insert a saved graft into a network, in place.

    Args:
        module: A network with the weights that the graft was saved with.
        folder: Written by `save_graft`.
        general: The network that a general memory reads.
        strict: Raise an error if the network has other weights.

    Returns:
        The same module.
    """
    folder, kind = Path(folder), type(module).__name__
    config, tensors = _read_folder(folder)
    names = {name for name, _ in module.named_modules()}
    for entry in config["parts"]:
        required = [entry["at"]] if "at" in entry else []
        required += [f"{entry['at']}.{name}".removeprefix(".") for name in entry.get("feed", ())]
        missing = [name for name in required if name not in names]
        if missing:
            raise BadInput(f"{folder} needs a {config['network']}: this {kind} has no part '{missing[0]}'")
    if strict and NAME not in names and state_digest(module.state_dict()) != config["weights"]:
        raise BadInput(
            f"{folder} was saved with other weights than this {kind} has: load those of holdfast.plain_state first, or "
            "use strict=False"
        )
    container = insert_parts(module, config["parts"], network=general, freeze=config["freeze"])
    try:
        container.parts.load_state_dict(tensors)
    except RuntimeError as error:
        ungraft(module)
        raise BadInput(f"{folder} does not fit this {kind} ({error}): save it again") from error
    return module


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if config["format"] != FORMAT:
            raise BadInput(f"{folder} has graft format {config['format']}, this version reads format {FORMAT}")
        return config, load_tensors(folder / WEIGHTS)[0]
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise BadInput(f"{folder} has no complete graft ({error}): write it with holdfast.save_graft") from error
