"""General memory (G-MAP): chosen layers of a domain network read the states of a frozen general network.

Shapes: b batch, t tokens, l layers, h heads, d width.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.settings import checked_settings, setting
from holdfast.core.tape import ScopedValue, is_recording, record
from holdfast.nn.backbones.companion import GeneralEncoder
from holdfast.nn.backbones.pretrained import layer_stack
from holdfast.nn.graft.attention import ATTENTIONS, MemoryStates, attend_to, insert_attention, is_causal
from holdfast.nn.memory.substitutes import SubstituteTexts, fit_length

STRATEGIES = ("single", "multi", "gated", "chunk-gated")
PUBLISHED = {"single": (9,), "gated": (9,), "chunk-gated": (6, 12)}  # of 12 layers; `multi` uses all of them
# layer of the domain network, from 0 -> layers of the general network, from 1; 0 is the input of its first layer
Reads = dict[int, tuple[int, ...]]
Layers = int | str | Sequence[int | str]


@checked_settings
class ReadSettings:
    """Settings that decide which layers read which states of the general network.

    Layers are counted from 1; "6/12" is the layer half-way up. Strategies: `single` reads the last layer of the general
    network, `multi` the layer at the same height, `gated` a gated sum of all, `chunk-gated` a gated sum of one of equal
    chunks per reading layer, the lowest chunk for the lowest layer.
    """

    strategy: str = setting("chunk-gated", choices=STRATEGIES)
    layers: Layers | None = None  # reading layers; default: the published ones


def plan_reads(strategy: str, *, depth: int, general: int, layers: Layers | None = None) -> Reads:
    """Return which of `depth` layers read which layers of the general network, as in `ReadSettings`."""
    options = ReadSettings(strategy=strategy, layers=layers)
    if options.layers is not None:
        chosen = reading_layers(options.layers, depth)
    elif strategy == "multi":
        chosen = list(range(1, depth + 1))
    else:
        chosen = sorted({height(i / 12, depth) for i in PUBLISHED[strategy]})
    if strategy == "chunk-gated":
        read = _equal_chunks(len(chosen), general)
    elif strategy == "multi":
        read = [(height(i / depth, general),) for i in chosen]
    else:
        read = [(general,) if strategy == "single" else tuple(range(1, general + 1))] * len(chosen)
    return {i - 1: layers for i, layers in zip(chosen, read, strict=True)}


def _equal_chunks(count: int, general: int) -> list[tuple[int, ...]]:
    if count > general:
        raise BadInput(f"{count} encoder.layers cannot read one chunk each of {general} layers: name at most {general}")
    ends = [general * k // count for k in range(count + 1)]
    return [tuple(range(ends[k] + 1, ends[k + 1] + 1)) for k in range(count)]


def reading_layers(layers: Layers, depth: int) -> list[int]:
    """Return the reading layers of `depth`, sorted."""
    numbers = [layers] if isinstance(layers, int | str) else list(layers)
    chosen = [_layer(number, depth) for number in numbers]
    if None in chosen:
        raise BadInput(f"encoder.layers must name layers from 1 to {depth}, got {numbers[chosen.index(None)]!r}")
    if not numbers or len(set(map(str, numbers))) < len(numbers):
        raise BadInput(f"encoder.layers needs at least one layer and no duplicates, got {numbers}")
    return sorted({layer for layer in chosen if layer is not None})  # in a shallow network two heights may coincide


def height(share: float, depth: int) -> int:
    """Return the layer at this share of the depth; halves are rounded up."""
    return max(1, int(share * depth + 0.5))


def _layer(number: Any, depth: int) -> int | None:
    """Parse a layer number or a height such as `6/12`; None if invalid."""
    number = int(number) if str(number).isdigit() else number
    share = re.fullmatch(r"(\d+)/(\d+)", number) if isinstance(number, str) else None
    if share is not None and 1 <= int(share[1]) <= int(share[2]):
        return height(int(share[1]) / int(share[2]), depth)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= depth:
        return None
    return number


class Gate(nn.Module):
    """sum_l a_l m_l with a = softmax over layers of w m_l, per token; a bias would cancel."""

    rate_part = "memory"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width).normal_(std=0.02))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        shares = torch.stack([m @ self.weight.to(m.dtype) for m in states], dim=-1).float().softmax(-1)  # (b, t, l)
        if is_recording() and not self.training:
            record("general/gate", shares.detach())
        mixed = torch.zeros_like(states[0])
        for m, share in zip(states, shares.to(mixed.dtype).unbind(-1), strict=True):
            mixed = torch.addcmul(mixed, share[..., None], m)
        return mixed  # (b, t, d)


class MemoryShares(nn.ParameterDict):
    """Memory share (h,) per reading layer of attention `gate`, before the sigmoid."""

    rate_part = "memory"


@checked_settings
class GeneralSettings:
    """Settings of a general memory besides its reads."""

    attention: str = setting("memory", choices=ATTENTIONS)  # see `graft.attention.MemoryAttention`
    share: float = 0.0  # initial memory share of attention `gate`, before the sigmoid


def check_padding(saved: Mapping[str, Any]) -> None:
    """Raise if a memory was saved with the mask of the released code, with which padding changes the states."""
    if saved.get("mask", "keys") != "keys":
        raise BadInput("this general memory was trained with mask=legacy, which does not hide padding: train it again")


_hidden = ScopedValue[bool]()
memory_hidden = partial(_hidden.bind, True)  # context in which general memories are hidden from all tokens


class GeneralMemory(nn.Module):
    """Lets layers of a domain network attend to the states of a frozen general network (Wan et al., 2022).

    `holdfast.graft(network, general=...)` builds one. Its own parameters are the gates over layers and, with
    attention `gate`, the memory shares.

    Args:
        network: A Hugging Face transformer, whose attention layers are replaced in place.
        second: The general network, of the same width.
        reads: Layer of `network`, from 0, to the layers of the general network it reads, from 1.
        others: Read the states of substitute texts instead (a control).
        **settings: Fields of `GeneralSettings`: `attention`, `share`.

    Shape:
        `memory_states`: tokens (b, t) to one memory (b, t, d) per reading layer.

    Example:
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
        >>> domain, general = (BertModel(BertConfig(**sizes, num_hidden_layers=2)) for _ in range(2))
        >>> graft(domain, general=general)(torch.ones(3, 5, dtype=torch.long)).last_hidden_state.shape
        torch.Size([3, 5, 8])
    """

    Settings = GeneralSettings
    tape_name = "general/mass"
    attention: str
    gates: nn.ModuleDict
    others: SubstituteTexts | None
    reads: Reads
    second: GeneralEncoder
    shares: MemoryShares
    width: int

    def __init__(
        self, network: Any, second: GeneralEncoder, reads: Reads, others: SubstituteTexts | None = None, **settings: Any
    ) -> None:
        super().__init__()
        options = GeneralSettings(**settings)
        layers, config = layer_stack(network), network.config
        self.width = width = int(config.hidden_size)
        second.check_width(width)
        if is_causal(layers) and not is_causal(layer_stack(second.module)):
            raise BadInput("a causal network cannot read a general model that sees later tokens: use a causal one")
        insert_attention(layers, reads, attention=options.attention)
        self.second, self.reads, self.others = second, reads, others
        self.attention = options.attention
        gated = [place for place, sources in reads.items() if len(sources) > 1]
        self.gates = nn.ModuleDict({str(i): Gate(self.width) for i in gated})
        shares = torch.full((int(config.num_attention_heads),), options.share)
        self.shares = MemoryShares({str(i): shares.clone() for i in (reads if self.attention == "gate" else ())})
        self.settings: dict[str, Any] = {
            "reads": [[place, list(sources)] for place, sources in reads.items()],
            "attention": self.attention,
            "frozen": second.frozen is not None,
            "digest": second.digest,
        }
        if others is not None:
            self.settings["others"] = others.digest

    def memory_states(self, x: Tokens) -> MemoryStates:
        """Return what each reading layer attends to for these tokens."""
        needed = sorted({i for sources in self.reads.values() for i in sources})
        text, visible = self.second.text_read(x if self.others is None else self.others.replacements(x)), None
        outputs = self.second.states(text, needed)
        if text is not x:
            outputs = [fit_length(states, x.ids.shape[1]) for states in outputs]
            visible = fit_length(text.mask, x.ids.shape[1])
        if _hidden.value:
            assert self.attention == "memory", "the other kinds of attention need a memory"
            visible = torch.zeros_like(x.mask)
        states = dict(zip(needed, outputs, strict=True))
        read = {place: [states[i] for i in sources] for place, sources in self.reads.items()}
        memory = {i: layers[0] if len(layers) == 1 else self.gates[str(i)](layers) for i, layers in read.items()}
        shares = {int(place): share for place, share in self.shares.items()}
        return MemoryStates(memory, visible, share=shares, real=x.mask)

    def forward(self, run: Callable[[], Tensor], x: Tokens) -> Tensor:
        with attend_to(self.memory_states(x)):
            return run()  # (b, t, d)

    def learned(self) -> nn.Module:
        """Return the modules that are trained and saved."""
        return nn.ModuleList([self.gates, self.shares])

    def save(self, folder: Path) -> None:
        """Write the configuration of the general network to a folder, and its weights if they are frozen."""
        self.second.save(folder)
        if self.others is not None:
            self.others.save(folder)
