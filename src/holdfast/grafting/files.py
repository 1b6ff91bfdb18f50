"""A graft as a folder: what was added to a network, and nothing of the network itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from holdfast.core.checkpoint import load_tensors, save_tensors, state_digest
from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.grafting.graft import plain_state, put, ungraft
from holdfast.grafting.holder import NAME, need_holder

FORMAT = 1
CONFIG, WEIGHTS = "graft.json", "graft.safetensors"
M = TypeVar("M", bound=nn.Module)


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
