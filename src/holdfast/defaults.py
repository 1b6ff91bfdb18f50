"""Defaults that a comparison decides from the data, each with its reason."""

from __future__ import annotations

import torch

from holdfast import catalog
from holdfast.spec import Spec

LIMIT = 300.0  # seconds of a comparison, a search or a training, unless --budget is set
# rows of the first sample of large data, on which plain training takes seconds: by what a run computes
CACHED_ROWS = {"text": 2000, "image": 2000}  # features of a frozen encoder, whose encoding is the larger part
COLUMN_ROWS = 8000  # tables, vectors and graphs, and frozen features that are cheap
TUNED_ROWS = {"cpu": 2000, "cuda": 8000}  # an encoder of texts or images that learns


def first_sample(spec: Spec, kind: str, device: torch.device) -> int:
    """Return the number of rows of the first sample for the baseline of a comparison."""
    entry = catalog.lookup("encoders", spec.encoder)
    if kind not in CACHED_ROWS or (not entry.pretrained and spec.tune == "frozen"):
        return COLUMN_ROWS
    return CACHED_ROWS[kind] if spec.tune == "frozen" else TUNED_ROWS[device.type]
