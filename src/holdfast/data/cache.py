"""Cache features of a frozen encoder and decoded images in files that are keyed by content and shared by all runs."""

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.errors import BadInput, warn
from holdfast.core.files import write_atomic, write_text
from holdfast.core.inputs import spans
from holdfast.data.decode import decode_image
from holdfast.data.raw import Raw

CHUNK = 256  # images decoded between two progress reports
BLOCK = 1 << 22  # bytes read at once


def cached_features(
    raw: Raw, groups: Sequence[np.ndarray], compute: Callable[[np.ndarray], Tensor], *, key: str, folder: Path,
    sizes: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return features of all rows, (n, d); each group of rows (a domain) is cached in a separate file.

    If the i-th row has `sizes[i]` features, such as states of tokens, they are returned end to end.
    """
    pieces: list[Tensor] = []
    sizes = torch.ones(len(raw), dtype=torch.long) if sizes is None else sizes
    for rows in groups:
        path = _feature_path(raw, rows, key, folder)
        features = read_cached(path).get("features")
        features = None if features is None or len(features) != int(sizes[rows].sum()) else features
        if parallel.all_max(int(features is None))[0]:  # missing in one process: all of them share the computation
            missing, features = features is None, compute(rows)
            if missing and parallel.is_first():
                write_cached(path, {"features": features}, lost="computes the features")
        assert features is not None
        pieces.append(features)
    order = torch.from_numpy(np.concatenate(list(groups)))
    assert len(order) == len(raw), "groups must cover all rows once"
    stored = sizes[order].cumsum(0) - sizes[order]  # (n,) where each row of the pieces begins
    return torch.cat(pieces)[spans(stored[order.argsort()], sizes)]


def uncached_rows(raw: Raw, groups: Sequence[np.ndarray], *, key: str, folder: Path) -> int:
    """Return the number of rows whose features have no file yet."""
    return sum(len(rows) for rows in groups if not _feature_path(raw, rows, key, folder).exists())


def _feature_path(raw: Raw, rows: np.ndarray, key: str, folder: Path) -> Path:
    name = hashlib.sha256(f"{key}/{raw.digest(rows)}".encode()).hexdigest()[:32]
    return folder / "features" / f"{name}.safetensors"


def write_cached(path: Path, tensors: Mapping[str, Tensor], *, lost: str) -> None:
    """Write tensors to the cache; if that fails, warn that the next run repeats the work that is `lost`."""
    try:
        save_tree(path, dict(tensors))
    except BadInput:  # the run can continue without a cache
        consequence = f"so the next run {lost} again: set HOLDFAST_CACHE to another folder"
        warn(f"the cache {path.parent} cannot be written, {consequence}")


def read_cached(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file in the cache; none if it is absent or damaged, and will be written again."""
    if path.exists():
        with suppress(BadInput):
            return load_tree(path)
    return {}


def decoded_images(raw: Raw, size: int, folder: Path, *, tick: Callable[[int], None] | None = None) -> Tensor | None:
    """Return all images as uint8 (n, 3, size, size), equal to `raw.take`; None if the examples are not image files.

    The file name contains a hash of the images, so changed images are decoded again, and a second file has its
    checksum, which is compared first. The tensor is memory-mapped: a data set may be larger than the memory, and no
    worker processes are needed.
    """
    files = raw.files()
    if not files:
        return None
    shape = (len(files), 3, size, size)
    key = hashlib.sha256(f"{raw.digest(np.arange(len(raw)))}/{size}".encode()).hexdigest()[:32]
    path = folder / "pictures" / f"{key}-{size}.uint8"
    count = len(files) * 3 * size * size
    with parallel.local_first():
        if not _is_intact(path, count):
            with suppress(OSError):  # the checksum of other content; writing reports the reason
                _checksum_path(path).unlink(missing_ok=True)
            checksums: list[str] = []
            decode = partial(_write_decoded, files=files, size=size, tick=tick)
            write_atomic(path, lambda draft: checksums.append(decode(draft)), durable=False)
            write_text(_checksum_path(path), checksums[0])
    # a private mapping: writes to the tensor do not change the file
    return torch.from_file(str(path), shared=False, size=count, dtype=torch.uint8).view(shape)


def _checksum_path(path: Path) -> Path:
    return path.with_suffix(".crc32")


def _is_intact(path: Path, size: int) -> bool:
    """Whether a file has this size and the checksum that was stored when it was written."""
    try:
        stored = _checksum_path(path).read_text(encoding="ascii")
        return path.stat().st_size == size and stored == _checksum(path)
    except (OSError, ValueError):  # no checksum, or not the one of this program
        return False


def _checksum(path: Path) -> str:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


def _write_decoded(draft: Path, *, files: list[Path], size: int, tick: Callable[[int], None] | None) -> str:
    """Decode in threads, which run in parallel because the decoder releases the GIL; write in order.

    Returns the checksum of what was written.
    """
    checksum = 0
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, draft.open("wb") as file:
        for start in range(0, len(files), CHUNK):
            chunk = files[start : start + CHUNK]
            for image in pool.map(partial(decode_image, size=size), chunk):
                content = image.numpy().data
                file.write(content)
                checksum = zlib.crc32(content, checksum)
            if tick is not None:
                tick(len(chunk))
    return f"{checksum:08x}"
