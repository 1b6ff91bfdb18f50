"""One door to all data: a known name, a folder of images, a table or arrays."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from holdfast.core.errors import BadInput
from holdfast.data import formats
from holdfast.data.arrays import read_arrays
from holdfast.data.domain import Dataset
from holdfast.data.images import read_images
from holdfast.data.table import read_table


def read(
    data: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    need: Collection[str] = ("label", "domain"),
    data_dir: Path | None = None,
    known: Mapping[str, Callable[..., Dataset]],
) -> Dataset:
    """The data set of this name in `known`, else the file or folder of this path."""
    if isinstance(data, str) and data in known:
        return known[data](data_dir=data_dir)
    path = Path(data).expanduser()
    if not path.exists():
        raise _not_found(str(data), known)
    if path.is_dir():
        if columns:
            raise BadInput(f"{path} is a folder of images, which has no columns: leave --column out")
        return read_images(path, need=need)
    if path.suffix.lower() == ".npz":
        return read_arrays(path, columns=columns, need=need)
    if path.suffix.lower() in formats.SUFFIXES:
        return read_table(path, columns=columns, need=need)
    raise BadInput(
        f"{path} has the suffix '{path.suffix}', which is not known: use one of "
        f"{', '.join(formats.SUFFIXES)}, .npz, or a folder of images"
    )


def _not_found(data: str, known: Collection[str]) -> BadInput:
    near = difflib.get_close_matches(data, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known data sets: {', '.join(sorted(known)) or 'none'}"
    return BadInput(f"'{data}' is neither a file, nor a folder, nor a known data set: {hint}")
