"""General memory: chosen layers of a domain's network read the states of a frozen general one (Wan et al., 2022).

b batch, t tokens, l layers, h heads, d width
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Tokens
from holdfast.core.tape import is_recording, record
from holdfast.nn.backbones.companion import GeneralEncoder
from holdfast.nn.backbones.pretrained import layer_stack
from holdfast.nn.graft.attention import MemoryStates, attend_to, graft, is_causal
from holdfast.nn.memory.substitutes import SubstituteTexts, fitted

STRATEGIES = ("single", "multi", "gated", "chunk-gated")
PUBLISHED = {"single": (9,), "gated": (9,), "chunk-gated": (6, 12)}  # of 12 layers; `multi` is all of them
GATES = ("normal", "zero")
STATES = ("layers", "legacy")
MASKS = ("keys", "legacy")
_hidden: ContextVar[bool] = ContextVar("hidden", default=False)
# a layer of the domain's network, from 0: the layers of the general one, from 1, where 0 is what goes into its first
Reads = dict[int, tuple[int, ...]]


@contextmanager
def memory_hidden() -> Iterator[None]:
    """Inside, no token sees a general memory: what a network is without what it has learned to read."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def plan_reads(
    strategy: str,
    *,
    depth: int,
    general: int,
    layers: Layers | None = None,
    source: int | None = None,
    chunks: Chunks | None = None,
    states: str = "layers",
) -> Reads:
    """Which layers of `depth` read which of the `general` network's; layers are counted from 1, "6/12" is half-way up.

    single: one layer of the general network, by default its last. multi: the layer at the same height. gated: all.
    chunk-gated: a chunk for each layer that reads, the lowest for the lowest; by default as many even ones of all.
    With the states `legacy` each stands for what goes into that layer, as in the released code: 0 is the first one's.
    """
    if strategy not in STRATEGIES:
        raise unknown("strategy of a general memory", strategy, STRATEGIES)
    if states not in STATES:
        raise unknown("states of a general memory", states, STATES)
    if source is not None and strategy != "single":
        raise BadInput(f"encoder.source names the layer that strategy single reads; {strategy} has no such setting")
    if chunks is not None and strategy != "chunk-gated":
        raise BadInput(f"encoder.chunks names what strategy chunk-gated reads; {strategy} has no such setting")
    chosen = named_layers(layers, depth) if layers is not None else _published(strategy, depth)
    source = general if source is None else source
    if not 1 <= source <= general:
        raise BadInput(f"encoder.source is a layer of the general model, from 1 to {general}, not {source}")
    match strategy:
        case "single":
            read = [(source,) for _ in chosen]
        case "multi":
            read = [(height(i / depth, general),) for i in chosen]
        case "gated":
            read = [tuple(range(1, general + 1)) for _ in chosen]
        case _:
            read = _even(len(chosen), general) if chunks is None else named_chunks(chunks, general)
    if len(read) != len(chosen):
        raise BadInput(
            f"encoder.chunks has {len(read)} chunks for {len(chosen)} layers that read: name as many encoder.layers"
        )
    before = states == "legacy"
    return {i - 1: tuple(layer - before for layer in each) for i, each in zip(chosen, read, strict=True)}


def _even(count: int, general: int) -> list[tuple[int, ...]]:
    """As many chunks of all layers, the lowest first."""
    if count > general:
        raise BadInput(f"{count} layers cannot read a chunk each of {general} layers: name fewer encoder.layers")
    ends = [general * k // count for k in range(count + 1)]
    return [tuple(range(ends[k] + 1, ends[k + 1] + 1)) for k in range(count)]


def _published(strategy: str, depth: int) -> list[int]:
    if strategy == "multi":
        return list(range(1, depth + 1))
    return sorted({height(i / 12, depth) for i in PUBLISHED[strategy]})


class Gate(nn.Module):
    """sum_l a_l m_l, a = softmax over layers of w m_l, token by token; a bias would cancel."""

    def __init__(self, width: int, *, init: str = "normal") -> None:
        super().__init__()
        if init not in GATES:
            raise unknown("start of a gate", init, GATES)
        self.weight = nn.Parameter(torch.zeros(width))
        if init == "normal":
            nn.init.normal_(self.weight, std=0.02)

    def shares(self, states: Sequence[Tensor]) -> Tensor:
        """(b, t, l) how much each layer gives to each token."""
        return torch.stack([m @ self.weight.to(m.dtype) for m in states], dim=-1).float().softmax(-1)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        shares = self.shares(states)
        if is_recording() and not self.training:
            record("general/gate", shares.detach())
        mixed = torch.zeros_like(states[0])
        for m, share in zip(states, shares.to(mixed.dtype).unbind(-1), strict=True):
            mixed = torch.addcmul(mixed, share[..., None], m)
        return mixed  # (b, t, d)


class GeneralMemory(nn.Module):
    """Grafts a network so that it reads a general one; its own are the gates over layers and the shares of `gate`.

    With `others` what is read are the states of another text, up to as many tokens as both have. The mask `keys` hides
    padding; `legacy` is the released code's, with which tokens see the padding, and a text's states depend on it.
    """

    tape_name = "general/mass"  # what every read leaves on a tape

    def __init__(
        self,
        network: Any,
        second: GeneralEncoder,
        reads: Reads,
        *,
        attention: str = "memory",
        gate: str = "normal",
        share: float = 0.0,
        mask: str = "keys",
        others: SubstituteTexts | None = None,
    ) -> None:
        super().__init__()
        layers, config = layer_stack(network), network.config
        self.width = int(config.hidden_size)
        if second.width != self.width:
            raise BadInput(
                f"the general model is {second.width} wide and the domain's {self.width}: "
                "the same projections serve both, so take two of one width"
            )
        if mask not in MASKS:
            raise unknown("mask of a general memory", mask, MASKS)
        if is_causal(layers) and not is_causal(layer_stack(second.module)):
            raise BadInput("through this general model a causal network would see what comes later: take a causal one")
        if is_causal(layers) and mask == "legacy":
            raise BadInput("with encoder.mask=legacy a causal network would see what comes later: use keys")
        graft(layers, reads, attention=attention)
        self.second, self.reads, self.attention, self.others = second, reads, attention, others
        self.mask = mask
        gated = [place for place, sources in reads.items() if len(sources) > 1]
        self.gates = nn.ModuleDict({str(i): Gate(self.width, init=gate) for i in gated})
        asked = reads if attention == "gate" else ()
        self.shares = nn.ParameterDict({str(i): torch.full((int(config.num_attention_heads),), share) for i in asked})
        self.settings: dict[str, Any] = {
            "reads": [[place, list(sources)] for place, sources in reads.items()],
            "attention": attention,
            "frozen": second.frozen is not None,
            "digest": second.digest,
        }
        if mask != "keys":
            self.settings["mask"] = mask
        if others is not None:
            self.settings["others"] = others.digest

    def memory_states(self, x: Tokens) -> MemoryStates:
        """What each of the layers reads of these tokens."""
        needed = sorted({i for sources in self.reads.values() for i in sources})
        keep = None
        seen = x if self.others is None else self.others.replacements(x)
        found = self.second.states(seen, needed)
        if seen is not x:
            found = [fitted(each, x.ids.shape[1]) for each in found]
            keep = fitted(seen.mask, x.ids.shape[1])
        if _hidden.get():
            assert self.attention == "memory", "what reads nothing else cannot do without"
            keep = torch.zeros_like(x.mask)
        states = dict(zip(needed, found, strict=True))
        memory: dict[int, Tensor] = {}
        for place, sources in self.reads.items():
            found = [states[i] for i in sources]
            memory[place] = found[0] if len(found) == 1 else self.gates[str(place)](found)
        shares = {int(place): share for place, share in self.shares.items()}
        return MemoryStates(memory, keep, share=shares, released=x.mask if self.mask == "legacy" else None)

    def forward(self, run: Callable[[], Tensor], x: Tokens) -> Tensor:
        with attend_to(self.memory_states(x)):
            return run()  # (b, t, d)

    def learned(self) -> nn.Module:
        return nn.ModuleList([self.gates, self.shares])

    def save(self, folder: Path) -> None:
        self.second.save(folder)
        if self.others is not None:
            self.others.save(folder)


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
