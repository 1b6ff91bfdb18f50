"""Collapse of an adaptation to unlabelled examples: most classes are no longer predicted for them.

Shapes: n examples, c classes.
"""

from typing import Any

import numpy as np

from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.train.evaluate import outputs
from holdfast.train.plan import rows_of

REMAINS = 0.1  # a class is still predicted if its share is at least this part of what it was
MAX_ROWS = 2000  # that are predicted


def class_mix(probabilities: np.ndarray) -> np.ndarray:
    """(c,) share of examples per predicted class."""
    return np.bincount(probabilities.argmax(axis=1), minlength=probabilities.shape[1]) / max(1, len(probabilities))


def collapsed(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether at most half of the classes that were predicted are still predicted."""
    present = before > 0
    return bool((after[present] >= REMAINS * before[present]).sum() <= present.sum() / 2) and int(present.sum()) > 1


def adaptation_mix(
    method: Method, examples: Examples, valid: tuple[Part, ...], unlabelled: tuple[Part, ...]
) -> dict[str, Any]:
    """Return the predicted class mixes of held-out source rows and of unlabelled rows, and whether it collapsed."""
    mixes = [
        class_mix(outputs(method, examples, evenly_spaced(rows_of(groups), MAX_ROWS)).numpy())
        for groups in (valid, unlabelled)
    ]
    names = ("sources", "unlabelled")
    shares = {name: mix.round(4).tolist() for name, mix in zip(names, mixes, strict=True)}
    return {"mix": shares, "collapsed": collapsed(*mixes)}


def evenly_spaced(rows: np.ndarray, limit: int) -> np.ndarray:
    """Return at most `limit` of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(limit, len(rows))).astype(np.int64)]
