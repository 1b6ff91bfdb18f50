"""`encoder.length` of a spec: the number of tokens per text, from the texts unless the user sets it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast import catalog
from holdfast.catalog.entry import EXAMPLE_TASKS, EncoderEntry, Entry
from holdfast.core.errors import BadInput
from holdfast.core.forking import import_early
from holdfast.data.dataset import Dataset
from holdfast.data.splits import TEST

LENGTH = "length"
SAMPLE = 100  # texts per domain whose tokens are counted


def with_length(options: Mapping[str, Any], entry: Entry, dataset: Dataset, *, task: str) -> dict[str, Any]:
    """Add the length that suits the texts to the settings of an encoder, unless they have one.

    The encoder's own default is not added, so that specs of short texts keep their ids; `length=None` requests it.
    """
    if LENGTH in options:
        return {name: value for name, value in options.items() if name != LENGTH or value is not None}
    if task not in EXAMPLE_TASKS or not isinstance(entry, EncoderEntry) or not entry.tokens:
        return dict(options)
    import_early(entry.target.partition(":")[0])  # as the next line, imports transformers, which takes seconds
    from holdfast.nn.backbones.length import choose_length

    examples = dataset.raw.take(counted_rows(dataset))
    try:
        package = {"package": entry.packaged} if entry.packaged else {}
        length = choose_length(examples, {**package, **entry.fixed, **options})
    except BadInput:  # building the encoder raises the same error
        return dict(options)
    return dict(options) if length is None else {**options, LENGTH: length}


def counted_rows(dataset: Dataset) -> np.ndarray:
    """Return at most 100 rows per domain, at equal distances; rows that are marked as test rows are left out."""
    chosen = []
    for name in dataset.domains:
        rows = dataset.rows_of(name)
        rows = rows if dataset.split is None else rows[dataset.split[rows] != TEST]
        at = np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(np.int64)
        chosen.append(rows[at])
    return np.concatenate(chosen)


def length_settings(encoder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the setting with which `make_spec` keeps the length of a spec with this encoder and these settings."""
    try:
        entry = catalog.lookup("encoders", encoder)
    except BadInput:  # of a plug-in that this installation does not have
        return {}
    tokens = isinstance(entry, EncoderEntry) and entry.tokens
    return {f"encoder.{LENGTH}": options.get(LENGTH)} if tokens else {}
