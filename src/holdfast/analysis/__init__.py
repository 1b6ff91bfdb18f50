"""Analyses of trained models: each module computes results for the records and draws their section of the report."""

from typing import Any

import numpy as np


def random_generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return the RNG of one analysis, with a seed derived from the names."""
    from holdfast.core.seeds import derive  # imports torch, which drawing does not need

    return np.random.default_rng(derive(seed, *names))


def rounded(values: Any, digits: int = 4) -> list[Any]:
    """Convert an array of any shape to nested lists of rounded numbers."""
    return [rounded(v, digits) if np.ndim(v) else round(float(v), digits) for v in values]
