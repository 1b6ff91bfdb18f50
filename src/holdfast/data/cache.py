"""Features of a frozen encoder, computed once: keyed by content, written whole, shared by all runs.

n rows, d width
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core import parallel
from holdfast.core.checkpoint import load_tree, save_tree, state_digest
from holdfast.core.errors import BadInput
from holdfast.core.files import write_atomic
from holdfast.data.decode import decode_image
from holdfast.data.raw import Raw


def weights_digest(module: nn.Module) -> str:
    """A hash of every parameter and buffer."""
    return state_digest(module.state_dict())


def cached_features(
    raw: Raw,
    groups: Sequence[np.ndarray],
    compute: Callable[[np.ndarray], Tensor],
    *,
    key: str,
    folder: Path,
) -> Tensor:
    """(n, d) features of all rows; each group of rows (a domain) has a file of its own, so one added costs one."""
    found: list[Tensor] = []
    for rows in groups:
        name = hashlib.sha256(f"{key}/{raw.digest(rows)}".encode()).hexdigest()[:32]
        path = folder / "features" / f"{name}.safetensors"
        features = _read(path, len(rows))
        if parallel.any_of(int(features is None))[0]:  # in some process, and then they share the work
            missing, features = features is None, compute(rows)
            if missing and parallel.first():
                _write(path, features)
        assert features is not None
        found.append(features)
    order = np.concatenate(list(groups))
    assert len(order) == len(raw), "groups must cover all rows once"
    return torch.cat(found)[torch.from_numpy(np.argsort(order))]


def _write(path: Path, features: Tensor) -> None:
    """A cache that cannot be written costs time and nothing else."""
    try:
        save_tree(path, {"features": features})
    except BadInput:
        told = "cannot be written, so features will be computed again the next time: name another in HOLDFAST_CACHE"
        warnings.warn(f"the cache {path.parent} {told}", stacklevel=2)


def _read(path: Path, size: int) -> Tensor | None:
    if not path.exists():
        return None
    try:
        features = load_tree(path)["features"]
    except BadInput:
        return None  # a broken file is computed and written anew
    return features if len(features) == size else None


CHUNK = 256  # images between two looks at whether to go on


def decoded(raw: Raw, size: int, folder: Path, *, tick: Callable[[int], None] | None = None) -> Tensor | None:
    """(n, 3, s, s) uint8, the same as `raw.take` gives; None where the examples are no image files.

    Its name in the folder is a hash of the files' content, so that a set that changed is decoded anew. Pages are read
    when rows are asked for, so that a set may be larger than the memory, and no worker is needed to decode.
    """
    files = raw.files()
    if not files:
        return None
    shape = (len(files), 3, size, size)
    key = hashlib.sha256(f"{raw.digest(np.arange(len(raw)))}/{size}".encode()).hexdigest()[:32]
    path = folder / "pictures" / f"{key}-{size}.uint8"
    count = len(files) * 3 * size * size
    with parallel.first_here():
        if not path.is_file() or path.stat().st_size != count:
            write_atomic(path, partial(_write_decoded, files=files, size=size, tick=tick))
    # private, so that whoever writes into it changes no file
    return torch.from_file(str(path), shared=False, size=count, dtype=torch.uint8).view(shape)


def _write_decoded(draft: Path, *, files: list[Path], size: int, tick: Callable[[int], None] | None) -> None:
    """Decode in threads, which run side by side because the decoder lets go of the interpreter; write in order."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, draft.open("wb") as file:
        for start in range(0, len(files), CHUNK):
            chunk = files[start : start + CHUNK]
            for image in pool.map(partial(decode_image, size=size), chunk):
                file.write(image.numpy().data)
            if tick is not None:
                tick(len(chunk))
