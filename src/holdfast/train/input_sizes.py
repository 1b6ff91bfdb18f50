"""Sizes in the settings of an encoder that suit the data and the machine, unless the user sets them.

Texts have a number of tokens (`encoder.length`). Without a GPU, images have fewer pixels, and graph networks have
fewer units.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast import catalog
from holdfast.catalog.entry import EXAMPLE_TASKS, EncoderEntry, Entry
from holdfast.core.errors import BadInput
from holdfast.core.forking import import_early
from holdfast.data.dataset import Dataset
from holdfast.data.decode import open_image
from holdfast.data.splits import TEST

LENGTH, SIDE = "length", "size"
SAMPLE = 100  # texts per domain whose tokens are counted
FILES = 40  # images whose sides are read


def with_sizes(
    options: Mapping[str, Any], entry: Entry, dataset: Dataset, *, task: str, cpu: bool = False
) -> dict[str, Any]:
    """Add sizes to the settings of an encoder, unless they have them; a setting of None requests the encoder's own."""
    if not isinstance(entry, EncoderEntry):
        return dict(options)
    sizes = {} if LENGTH in options or task not in EXAMPLE_TASKS else _length(options, entry, dataset)
    if cpu:
        sizes |= entry.cpu
        sizes |= {SIDE: _side(dataset, entry.cpu_sides)} if entry.cpu_sides and SIDE not in options else {}
    merged = {**sizes, **options}
    dropped = {LENGTH, SIDE, *_names(entry)}  # with None; encoders without such a setting ignore it
    return {name: value for name, value in merged.items() if name not in dropped or value is not None}


def size_settings(encoder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with which `make_spec` keeps the sizes of a spec with this encoder and these settings."""
    try:
        entry = catalog.lookup("encoders", encoder)
    except BadInput:  # of a plug-in that this installation does not have
        return {}
    return {f"encoder.{name}": options.get(name) for name in _names(entry)}


def _names(entry: Entry) -> list[str]:
    """Return the settings of an encoder that `with_sizes` may add."""
    if not isinstance(entry, EncoderEntry):
        return []
    return [*([LENGTH] if entry.tokens else []), *entry.cpu, *([SIDE] if entry.cpu_sides else [])]


def _length(options: Mapping[str, Any], entry: EncoderEntry, dataset: Dataset) -> dict[str, Any]:
    """Return the number of tokens that suits the texts, unless it is the encoder's own."""
    if not entry.tokens:
        return {}
    import_early(entry.target.partition(":")[0])  # as the next line, imports transformers, which takes seconds
    from holdfast.nn.backbones.length import choose_length

    examples = dataset.raw.take(counted_rows(dataset))
    try:
        package = {"package": entry.packaged} if entry.packaged else {}
        length = choose_length(examples, {**package, **entry.fixed, **options})
    except BadInput:  # building the encoder raises the same error
        return {}
    return {} if length is None else {LENGTH: length}


def _side(dataset: Dataset, sides: tuple[int, ...]) -> int:
    """Return the first of some sides that half of the images do not exceed, or the last."""
    rows = counted_rows(dataset)
    rows, files = rows[:: -(-len(rows) // FILES)], dataset.raw.files()
    if files is None:
        median = max(dataset.raw.take(rows[:1]).shape[-2:])
    else:
        median = np.median([_longer_side(files[row]) for row in rows])
    return next((side for side in sides if median <= side), sides[-1])


def _longer_side(file: Any) -> int:
    """Return the pixels of the longer side that the header of an image states; 0 if it cannot be read."""
    try:
        with open_image(file) as image:
            return max(image.size)
    except Exception:  # a corrupt file can raise any exception; decoding it reports the error
        return 0


def counted_rows(dataset: Dataset) -> np.ndarray:
    """Return at most 100 rows per domain, at equal distances; rows that are marked as test rows are left out."""
    chosen = []
    for name in dataset.domains:
        rows = dataset.rows_of(name)
        rows = rows if dataset.split is None else rows[dataset.split[rows] != TEST]
        at = np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(np.int64)
        chosen.append(rows[at])
    return np.concatenate(chosen)
