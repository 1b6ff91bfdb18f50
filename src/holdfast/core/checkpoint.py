"""Any tree of dicts, lists, numbers and tensors as one safetensors file, whole and checked; nothing is unpickled."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import write_atomic


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
    """A safetensors file, whole or not at all, with a checksum of what it holds."""
    told = {**metadata, "checksum": _checksum(tensors, metadata)}

    def write(draft: Path) -> None:
        try:
            save_file(tensors, draft, metadata=told)
        except SafetensorError as error:
            if "os error 28" in str(error) or "No space" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise

    return write_atomic(path, write)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and what its header says of them; a file that changed since it was written is Damaged.

    A file without a checksum, such as one from elsewhere, is taken as it is: its header alone must fit its size.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path} is not a whole checkpoint or model ({error}): delete it and start again") from error
    written = metadata.pop("checksum", None)
    if written is not None and written != _checksum(tensors, metadata):
        raise Damaged(f"{path} has changed since it was written, by its checksum: delete it and start again")
    return tensors, metadata


def state_digest(state: Mapping[str, Any]) -> str:
    """A hash of every tensor of a state_dict, with its name, shape and type."""
    found = hashlib.sha256()
    for name, value in sorted(state.items()):
        if isinstance(value, Tensor):
            data = value.detach().cpu().contiguous()
            found.update(f"{name}{tuple(data.shape)}{data.dtype}".encode())
            found.update(data.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def load_tree(path: Path) -> Any:
    """Read what `save_tree` wrote."""
    tensors, metadata = load_tensors(path)
    if "tree" not in metadata:
        raise BadInput(f"{path} holds tensors but is no checkpoint of a run")
    try:
        return _unpack(json.loads(metadata["tree"]), tensors)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is not a whole checkpoint ({error}): delete it and start again") from error


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """CRC-32 of names, types, shapes, bytes and header: against faults of disks and copies, not against people."""
    found = zlib.crc32(json.dumps(dict(metadata), sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        found = zlib.crc32(f"{name}{tuple(value.shape)}{value.dtype}".encode(), found)
        found = zlib.crc32(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


_NAMES = ("empty", "zeros", "ones", "full", "rand", "randn", "empty_strided")
_MAKES = {getattr(torch.ops.aten, name) for name in _NAMES}


class AllocationLimit(TorchDispatchMode):
    """Inside, a tensor of more than `most` numbers is refused before it is made, and so are too many of them."""

    def __init__(self, most: int, *, where: str) -> None:
        super().__init__()
        self.most, self.left, self.where = most, 16 * most, where

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _MAKES and args:
            first = args[0]
            count = math.prod(first) if isinstance(first, list | tuple | torch.Size) else 0
            self.left -= count
            if count > self.most or self.left < 0:
                raise BadInput(
                    f"{self.where} asks for {count:,} numbers at once where its files hold fewer: its settings are not "
                    "those of its weights"
                )
        return func(*args, **(kwargs or {}))
