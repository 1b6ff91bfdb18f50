"""Layers as a user names them: by number from 1, by height as "6/12", and in chunks such as 1-6,7-12."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from holdfast.core.errors import BadInput

Layers = int | str | Sequence[int | str]
Chunks = int | str | Sequence[Layers]


def named_layers(asked: Layers, depth: int) -> list[int]:
    """The layers that read, of `depth`, in their order."""
    given = [asked] if isinstance(asked, int | str) else list(asked)
    layers = [int(i) if str(i).isdigit() else i for i in given]
    found = [_layer(i, depth) for i in layers]
    for layer, said in zip(found, layers, strict=True):
        if layer is None:
            raise BadInput(f"encoder.layers names layers that read the memory, from 1 to {depth}, not {said!r}")
    if not layers or len(set(layers)) < len(layers):
        raise BadInput(f"encoder.layers needs at least one layer, and each once, not {layers}")
    return sorted({layer for layer in found if layer is not None})  # two heights may be one layer of a few


def named_chunks(asked: Chunks, general: int) -> list[tuple[int, ...]]:
    """The layers of each chunk of the `general` network's; a chunk is a layer, a stretch as "1-6", or a list of them.

    Chunks need not be apart, nor hold every layer.
    """
    given: list[Any] = [asked] if isinstance(asked, int | str) else list(asked)
    found = []
    for each in given:
        parts = [each] if isinstance(each, int | str) else list(each) if isinstance(each, Sequence) else []
        layers = [_stretch(part, general) for part in parts]
        if not layers or None in layers:
            raise BadInput(
                f"encoder.chunks names layers of the general model, from 1 to {general}, for each layer that reads, as "
                f"1-6,7-12 does, not {each!r}"
            )
        found.append(tuple(sorted({i for part in layers if part is not None for i in part})))
    return found


def height(share: float, depth: int) -> int:
    """The layer at this share of the way up, a half rounded up."""
    return max(1, int(share * depth + 0.5))


def _stretch(asked: Any, depth: int) -> range | None:
    """`1-6` are six layers, `6` or `6/12` is one; None where there are none such."""
    low, dash, high = str(asked).partition("-") if isinstance(asked, str) else (asked, "", "")
    ends = [_layer(int(i) if str(i).isdigit() else i, depth) for i in ((low, high) if dash else (low, low))]
    if ends[0] is None or ends[1] is None or ends[1] < ends[0]:
        return None
    return range(ends[0], ends[1] + 1)


def _layer(asked: Any, depth: int) -> int | None:
    """A layer by its number, or by its height: `6/12` is the sixth of a network with twelve; None where none is."""
    share = re.fullmatch(r"(\d+)/(\d+)", asked) if isinstance(asked, str) else None
    if share is not None and 1 <= int(share[1]) <= int(share[2]):
        return height(int(share[1]) / int(share[2]), depth)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= depth:
        return None
    return asked
