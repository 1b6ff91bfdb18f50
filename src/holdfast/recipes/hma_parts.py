"""HMA (Qiu et al., 2023): the rows that its tables share, and the controls that they lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.recipes.base import Row

NECKS = {
    "rma": "RMA",
    "abd": "ABD",
    "abd-rma": "ABD+RMA",
    "abd-syn": "ABD+SYN",
    "heterogeneous": "HMA",
}
TOGETHER = (
    "as published, test rows are predicted in batches and see each other, in an order drawn by neck.shuffle; in the "
    "row of examples one by one training rows stand in their place"
)
READS = "in the released commands the queue was seldom written, so the printed rows with RMA may have read noise"


def hma(name: str, label: str, *, neck: str = "heterogeneous", over: Mapping[str, Any] | None = None) -> Row:
    """A row with some of the memories, whose examples see each other when they are scored."""
    return Row(
        name=name, label=label, settings={"method": "hma", "neck": neck, "neck.context": "batch", **(over or {})}
    )


def ablations(*necks: str) -> tuple[Row, ...]:
    """One row for each of these parts of HMA."""
    return tuple(hma("hma" if neck == "heterogeneous" else neck, NECKS[neck], neck=neck) for neck in necks)


def param(*, before: str = "", label: str = "PARAM", over: Mapping[str, Any] | None = None) -> Row:
    """Both blocks with nothing to look at: what the parameters alone are good for."""
    return Row(name=f"{before}param", label=label, settings={"method": "erm", "neck": "param", **(over or {})})


def controls(*, before: str = "", called: str = "HMA", over: Mapping[str, Any] | None = None) -> tuple[Row, ...]:
    """Not printed: a queue of noise, slots that never learn, and no batch-mates when an example is predicted."""
    kinds = {
        "noise-queue": ("a queue of noise that is never written", {"neck.written": False}),
        "untrained-slots": ("slots that never learn", {"neck.frozen": True}),
        "one-by-one": ("examples predicted one by one", {"neck.context": "support"}),
    }
    return tuple(
        hma(f"{before}{name}", f"{called}, {words} (control)", over={**(over or {}), **changed})
        for name, (words, changed) in kinds.items()
    )


def sizes(*, real: int, slots: int, batch: int) -> dict[str, Any]:
    """Rows of the queue, slots of a class, and how many test rows are predicted at once: as many as train."""
    return {"neck.real": real, "neck.slots": slots, "neck.support": batch}
