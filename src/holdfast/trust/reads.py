"""How undecided a network's memory is about an example: the entropy of its reads.

b batch, h heads, m slots
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.core.tape import Tape

HEARD = ("memory/weights", "heterogeneous/across")  # one read an example, with weights (b, h, m)


def read_entropy(heard: Tape, count: int) -> Tensor | None:
    """(b,) the mean entropy of reads over heads and memories, 1 where all slots are alike; None without such reads."""
    found = []
    for name in HEARD:
        for weights in heard[name]:
            if len(weights) == count and weights.shape[-1] > 1:
                each = torch.special.entr(weights.float()).sum(dim=-1) / math.log(weights.shape[-1])  # (b, h)
                found.append(each.flatten(1).mean(dim=1))
    return torch.stack(found).mean(dim=0) if found else None
