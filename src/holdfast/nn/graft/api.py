"""graft: a memory, experts or a general memory for any network; ungraft: the network as it was."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from holdfast.core.checkpoint import load_tensors, save_tensors, state_digest
from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.nn.backbones.companion import FrozenModule, GeneralEncoder
from holdfast.nn.backbones.pretrained import layer_stack
from holdfast.nn.experts.layer import ExpertSettings, SparseMoE
from holdfast.nn.graft import attention as attention_graft
from holdfast.nn.graft.holder import NAME, Around, Entry, Follows, Grafted, StandIn, holder_of, need_holder
from holdfast.nn.graft.targets import experts as experts_for
from holdfast.nn.graft.targets import general_memory, memories
from holdfast.nn.memory.general import GeneralMemory
from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.memory.neck import MemoryBlend

M = TypeVar("M", bound=nn.Module)


def graft(
    module: M,
    *,
    memory: int | Mapping[str, Any] | None = None,
    experts: int | Mapping[str, Any] | None = None,
    general: nn.Module | Mapping[str, Any] | None = None,
    freeze: bool = False,
) -> M:
    """Put parts into a network, which is changed and given back; its own weights and their names stay as they are.

    `memory`: slots, or settings of KeyValueMemory with `at` (numbers of layers, "all", dotted names), `share`, `width`.
    `experts`: their number, or settings of experts with `at` and, for blocks of one's own, `feed`.
    `general`: a network of the same width to read, which is frozen; or that as `network` with `strategy` and others.
    With `freeze` only what was added learns.
    """
    entries: list[Entry] = []
    network = None
    if general is not None:
        entry, network = general_memory(module, general)
        entries.append(entry)
    entries += [] if experts is None else experts_for(module, experts)
    entries += [] if memory is None else memories(module, memory)
    if not entries:
        raise BadInput("nothing to graft: name a memory, experts or a general network")
    put(module, entries, network=network, freeze=freeze)
    return module


def put(module: nn.Module, entries: Sequence[Entry], *, network: nn.Module | None, freeze: bool) -> Grafted:
    """The parts of these entries, with fresh weights, in their places."""
    if holder_of(module) is not None:
        raise BadInput(f"this {type(module).__name__} is grafted already: ungraft it, and name all parts in one call")
    own = dict(module.named_parameters())
    holder = Grafted(tuple(name for name, p in own.items() if p.requires_grad), freeze=freeze)
    module.add_module(NAME, holder)
    reads = None
    try:
        for entry in entries:
            part = _PUT[entry["kind"]](module, entry, holder, network)
            reads = part if isinstance(part, GeneralMemory) else reads
            holder.parts.append(part)
            holder.entries.append(entry)
    except BaseException:
        ungraft(module)
        raise
    if freeze:
        for parameter in own.values():
            parameter.requires_grad_(False)
    holder.handles += Around(reads).hooks(module)
    holder.train(module.training)
    return holder


def _put_memory(module: nn.Module, entry: Entry, holder: Grafted, network: nn.Module | None) -> nn.Module:
    place = module.get_submodule(entry["at"])
    part = MemoryBlend(_like(KeyValueMemory(entry["width"], **entry["settings"]), module), share=entry["share"])
    hook = Follows(part, width=entry["width"], at=entry["at"])
    holder.handles.append(place.register_forward_hook(hook))
    return part


def _put_experts(module: nn.Module, entry: Entry, holder: Grafted, network: nn.Module | None) -> nn.Module:
    block = module.get_submodule(entry["at"])
    up, activation, down = (block.get_submodule(name) for name in entry["feed"])
    assert isinstance(up, nn.Linear)
    assert isinstance(down, nn.Linear)
    part = SparseMoE.from_feed_forward(up, down, copy.deepcopy(activation), ExpertSettings(**entry["settings"]))
    part = part.to(up.weight.dtype)
    for name, plain in zip(entry["feed"], (up, activation, down), strict=True):
        plain.requires_grad_(False)  # what stands aside gets no gradient
        block.set_submodule(name, StandIn(plain, part if plain is up else nn.Identity()))
    return part


def _put_general(module: nn.Module, entry: Entry, holder: Grafted, network: nn.Module | None) -> nn.Module:
    if network is None:
        raise BadInput("this graft reads a general network, which is not kept with it: give it as general=NETWORK")
    second, reads = GeneralEncoder(FrozenModule(network)), {place: tuple(sources) for place, sources in entry["reads"]}
    if entry.setdefault("digest", second.digest) != second.digest:
        raise BadInput("the general network given has other weights than the one that this graft was trained with")
    options = {name: entry[name] for name in ("attention", "mask", "gate", "share") if name in entry}
    return _like(GeneralMemory(module, second, reads, **options), module)


_PUT = {"memory": _put_memory, "experts": _put_experts, "general": _put_general}


def _like(part: nn.Module, module: nn.Module) -> nn.Module:
    """On the device and in the type of the network's weights."""
    first = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(0))
    return part.to(device=first.device, dtype=first.dtype)


def ungraft(module: M) -> M:
    """The network as it was, less the parts that were added; its own weights are as they are now."""
    holder = need_holder(module)
    for handle in holder.handles:
        handle.remove()
    for name, part in list(module.named_modules()):
        if isinstance(part, StandIn):
            module.set_submodule(name, part.plain())
    if any(isinstance(part, attention_graft.MemoryAttention) for part in module.modules()):
        attention_graft.ungraft(layer_stack(module))
    delattr(module, NAME)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in holder.learned)
    return module


def grafted_parameters(module: nn.Module) -> list[nn.Parameter]:
    """What was added and learns, for an optimizer."""
    return [p for p in need_holder(module).parts.parameters() if p.requires_grad]


def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """The state_dict of the network without what was added, which loads into a network that was never grafted."""
    need_holder(module)
    return {name: value for name, value in module.state_dict().items() if not name.startswith(f"{NAME}.")}


FORMAT = 1
CONFIG, WEIGHTS = "graft.json", "graft.safetensors"


def save_graft(module: nn.Module, folder: str | Path) -> Path:
    """Write the added parts and their settings; graft.json comes last, so a folder that has it is whole."""
    holder, folder = need_holder(module), Path(folder)
    (folder / CONFIG).unlink(missing_ok=True)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in holder.parts.state_dict().items()}
    save_tensors(folder / WEIGHTS, tensors)
    config = {
        "format": FORMAT,
        "network": type(module).__name__,
        "weights": state_digest(plain_state(module)),
        "freeze": holder.freeze,
        "parts": holder.entries,
    }
    write_text(folder / CONFIG, json.dumps(config, indent=1) + "\n")
    return folder


def load_graft(module: M, folder: str | Path, *, general: nn.Module | None = None, strict: bool = True) -> M:
    """Put a saved graft into a network, which is changed and given back.

    The network must have the weights that the graft was saved beside, unless `strict` is false; `general` is the
    network that a general memory reads.
    """
    folder = Path(folder)
    config, tensors = _read(folder)
    names = {name for name, _ in module.named_modules()}
    for entry in config["parts"]:
        wanted = [entry["at"]] if "at" in entry else []
        wanted += [f"{entry['at']}.{name}".removeprefix(".") for name in entry.get("feed", ())]
        lacking = [name for name in wanted if name not in names]
        if lacking:
            raise BadInput(
                f"{folder} was made for a {config['network']} with a part '{lacking[0]}', which this "
                f"{type(module).__name__} has not: load it into the network that it was made for"
            )
    if strict and NAME not in names and state_digest(module.state_dict()) != config["weights"]:
        raise BadInput(
            f"{folder} was saved beside other weights than this {type(module).__name__} has: load those first (with "
            "holdfast.plain_state they can be saved), or take strict=False"
        )
    holder = put(module, config["parts"], network=general, freeze=config["freeze"])
    try:
        holder.parts.load_state_dict(tensors)
    except RuntimeError as error:
        ungraft(module)
        raise BadInput(f"{folder} does not fit this {type(module).__name__} ({error}): is it whole?") from error
    return module


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if config["format"] != FORMAT:
            raise BadInput(f"{folder} has graft format {config['format']}, this version reads {FORMAT}")
        return config, load_tensors(folder / WEIGHTS)[0]
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise BadInput(f"{folder} holds no whole graft ({error}): write it with holdfast.save_graft") from error
