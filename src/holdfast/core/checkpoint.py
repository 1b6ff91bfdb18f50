"""Checkpoints: a tree of dicts, lists, numbers and tensors in one safetensors file with a checksum, without pickle."""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import check_regular, system_errors, write_atomic


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
    raise TypeError(f"a checkpoint can contain dicts, lists, numbers and tensors, not {type(node).__name__}")


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
    """Write a tree: its structure as JSON in the file header, its tensors as the tensors of the file."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_pack(tree, tensors))
    return save_tensors(path, tensors or {"none": torch.zeros(0)}, tree=structure)


def save_tensors(path: Path, tensors: dict[str, Tensor], **metadata: str) -> Path:
    """Write a safetensors file atomically, with a checksum of its content in the header."""
    header = {**metadata, "checksum": _checksum(tensors, metadata)}

    def write(draft: Path) -> None:
        # the library writes a temporary file of its own, which stays in this folder if the process is killed
        folder = draft.with_name(f"{draft.stem}.tensors.draft")
        folder.mkdir(exist_ok=True)
        try:
            with system_errors():
                save_file(tensors, folder / "draft", metadata=header)
            os.replace(folder / "draft", draft)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return write_atomic(path, write)


def load_tensors(path: Path, *, checked: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a file; raise `Damaged` if it changed since it was written.

    The tensors are copies, so that a later change of the file has no effect. A file without a checksum, such as one
    written by another program, is only checked for a valid header; with `checked` it is damaged.
    """
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path} is not a complete checkpoint or model ({error}): delete it and start again") from error
    written = metadata.pop("checksum", None)
    if (written is not None or checked) and written != _checksum(tensors, metadata):
        raise Damaged(
            f"{path} does not match its checksum, so it changed after it was written: delete it and start again"
        )
    return tensors, metadata


def _content(tensors: Mapping[str, Tensor]) -> Iterator[Any]:
    """Yield the name, shape and type, then the bytes, of every tensor."""
    for name, value in sorted(tensors.items()):
        data = value.detach().cpu().contiguous()
        yield f"{name}{tuple(data.shape)}{data.dtype}".encode()
        yield data.flatten().view(torch.uint8).numpy().data


def state_digest(state: Mapping[str, Any]) -> str:
    """Hash the name, shape, type and values of every tensor in a state_dict."""
    digest = hashlib.sha256()
    for data in _content({name: value for name, value in state.items() if isinstance(value, Tensor)}):
        digest.update(data)
    return digest.hexdigest()


def load_tree(path: Path) -> Any:
    """Return a tree that `save_tree` wrote; raise `Damaged` if the file changed or has no checksum."""
    tensors, metadata = load_tensors(path, checked=True)
    if "tree" not in metadata:
        raise BadInput(f"{path} contains tensors but is not the checkpoint of a run")
    try:
        return _unpack(json.loads(metadata["tree"]), tensors)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is not a complete checkpoint ({error}): delete it and start again") from error


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """CRC-32 of names, types, shapes, bytes and header: detects disk and copy errors, not deliberate changes."""
    checksum = zlib.crc32(json.dumps(dict(metadata), sort_keys=True).encode())
    for data in _content(tensors):
        checksum = zlib.crc32(data, checksum)
    return f"{checksum:08x}"
