"""Parts of a network: those that may learn at different rates, and what training must know about them."""

from typing import cast

from torch import nn

from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.memory.bank import SegmentedSlots
from holdfast.nn.memory.neck import MemoryBlend
from holdfast.nn.memory.product_key import ProductKeyMemory
from holdfast.nn.memory.queue import SyntheticMemory
from holdfast.nn.model import Model

ENCODER = "encoder"  # its rate is that of the run
MEMORIES = (MemoryBlend, SegmentedSlots, ProductKeyMemory, SyntheticMemory)


def part_names(model: Model) -> dict[nn.Parameter, str]:
    """Return the part that each parameter belongs to: a name in `RATE_PARTS`, or `encoder`.

    Memories and expert layers count as such wherever they are; a parameter that head and backbone share belongs to
    the encoder.
    """
    names = dict.fromkeys(model.head.parameters(), "head")
    names |= dict.fromkeys(model.neck.parameters(), "neck")
    names |= dict.fromkeys(model.backbone.parameters(), ENCODER)
    for module in model.modules():
        if isinstance(module, MEMORIES):
            names |= dict.fromkeys(module.parameters(), "memory")
        elif callable(learned := getattr(module, "learned", None)):  # of a general memory, without its network
            names |= dict.fromkeys(cast(nn.Module, learned()).parameters(), "memory")
        elif isinstance(module, SparseMoE):
            names |= dict.fromkeys(module.parameters(), "experts") | dict.fromkeys(module.router.parameters(), "router")
    return names


def depends_on_batch(module: nn.Module) -> bool:
    """Whether a layer compares the examples of a batch in training: a batch norm, or one that declares it."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(module, "compares_examples", False)


def undecayed(model: Model) -> set[int]:
    """Return the ids of matrices without weight decay: biases with several rows, and embeddings of positions."""
    named = ((name.split("."), p) for name, p in model.named_parameters())
    return {id(p) for names, p in named if "bias" in names[-1] or any("position" in name for name in names)}
