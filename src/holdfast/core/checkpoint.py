"""Any tree of dicts, lists, numbers and tensors as one safetensors file, written whole; nothing is unpickled."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.files import write_whole


def _pack(node: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = node.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(node, dict):
        return {"dict": [[key, _pack(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return {"tuple" if isinstance(node, tuple) else "list": [_pack(value, tensors) for value in node]}
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise TypeError(f"a checkpoint holds dicts, lists, numbers and tensors, not {type(node).__name__}")


def _unpack(node: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "dict" in node:
        return {key: _unpack(value, tensors) for key, value in node["dict"]}
    if "tuple" in node:
        return tuple(_unpack(value, tensors) for value in node["tuple"])
    return [_unpack(value, tensors) for value in node["list"]]


def save_tree(path: Path, tree: Any) -> Path:
    """Write the tree; its shape is JSON in the file's header, its tensors are the file's tensors."""
    tensors: dict[str, Tensor] = {}
    shape = json.dumps(_pack(tree, tensors))

    return save_tensors(path, tensors or {"none": torch.zeros(0)}, tree=shape)


def save_tensors(path: Path, tensors: dict[str, Tensor], **metadata: str) -> Path:
    """A safetensors file, whole or not at all."""

    def write(draft: Path) -> None:
        try:
            save_file(tensors, draft, metadata=metadata)
        except SafetensorError as error:
            if "os error 28" in str(error) or "No space" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise

    return write_whole(path, write)


def load_tree(path: Path) -> Any:
    """Read what `save_tree` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            shape = (file.metadata() or {}).get("tree")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise BadInput(f"{path} is not a whole checkpoint ({error}): delete it and start again") from error
    if shape is None:
        raise BadInput(f"{path} holds tensors but is no checkpoint of a run")
    return _unpack(json.loads(shape), tensors)
