"""Image files decoded once: all of a data set at one size as one array on the disk, mapped into memory when used.

n images, s pixels a side
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.files import write_whole
from holdfast.data.images import decode
from holdfast.data.raw import Raw

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
            write_whole(path, partial(_write, files=files, size=size, tick=tick))
    # private, so that whoever writes into it changes no file
    return torch.from_file(str(path), shared=False, size=count, dtype=torch.uint8).view(shape)


def _write(draft: Path, *, files: list[Path], size: int, tick: Callable[[int], None] | None) -> None:
    """Decode in threads, which run side by side because the decoder lets go of the interpreter; write in order."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, draft.open("wb") as file:
        for start in range(0, len(files), CHUNK):
            chunk = files[start : start + CHUNK]
            for image in pool.map(partial(decode, size=size), chunk):
                file.write(image.numpy().data)
            if tick is not None:
                tick(len(chunk))
