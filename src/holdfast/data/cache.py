"""Features of a frozen encoder, computed once: keyed by content, written whole, shared by all runs.

n rows, d width
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core import parallel
from holdfast.core.checkpoint import load_tree, save_tree, state_digest
from holdfast.core.errors import BadInput
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
