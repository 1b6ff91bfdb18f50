"""Is the memory of a network used? One that nothing reads is a mistake that scores alone would never show."""

from __future__ import annotations

import torch

from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.data.examples import Examples
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.nn.memory.base import Remembering

ROWS = 8  # a few are enough: every example reads


class Unused(BadInput):
    """A memory is there and plays no part."""


@torch.no_grad()
def check_memory(method: Method, examples: Examples, part: Part) -> None:
    """Let a few examples through the network and listen: every memory must tell of a read, with finite numbers."""
    expected = {part.tells for part in method.deployed.modules() if isinstance(part, Remembering) and part.tells}
    if not expected or not len(part.rows):
        return
    training = method.training
    method.eval()
    with tape() as heard:
        method.predict(examples.inputs(torch.from_numpy(part.rows[:ROWS])))
    method.train(training)
    for name in sorted(expected):
        if not heard[name]:
            raise Unused(
                f"this network has a memory that was never read ({name}), since no example passes it: give it another "
                "place or leave it out"
            )
        if not all(bool(torch.isfinite(value).all()) for value in heard[name]):
            raise Unused(f"reads of this network's memory are no numbers ({name}): lower --lr or set clip")
