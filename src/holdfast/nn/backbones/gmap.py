"""G-MAP: a domain's text encoder that reads a general one, and what it is compared with (Wan et al., 2022).

d width
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Tokens
from holdfast.nn.backbones.companion import WHAT, GeneralEncoder
from holdfast.nn.backbones.layers import with_dropout
from holdfast.nn.backbones.pretrained import check_text_encoder, load_module, load_tokenizer, max_positions
from holdfast.nn.backbones.text import TextEncoder, minilm_folder
from holdfast.nn.fusion import ConcatenatedStates
from holdfast.nn.memory.general import STRATEGIES, Chunks, GeneralMemory, Layers, plan_reads
from holdfast.nn.memory.substitutes import SubstituteTexts, distinct_texts

WAYS = (*STRATEGIES, "beside", "none")
MEMORIES = ("general", "own", "random", "other")
TRIALS = ("the good, the bad: 12 of them", "Émile's naïve test_case, twice!")


class GMap:
    """Makes text encoders with a companion; what comes out is a TextEncoder, so every head and rule takes it."""

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        domain: str = "minilm",
        general: str | None = None,
        strategy: str = "chunk-gated",
        memory: str = "general",
        layers: Layers | None = None,
        source: int | None = None,
        chunks: Chunks | None = None,
        states: str = "layers",
        attention: str = "memory",
        mask: str = "keys",
        frozen: bool = True,
        cache: int = 0,
        gate: str = "normal",
        share: float = 0.0,
        mix: float = 0.0,
        pooling: str | None = None,
        length: int | None = None,
        template: str | None = None,
        dropout: float | None = None,
    ) -> TextEncoder:
        """`domain` and `general` are `minilm`, a folder or a hub name; without `general` it is the domain's own copy.

        `layers`, from 1 or by height as "6/12", read the memory that `strategy` makes by `attention`; `beside` lays the
        features of both side by side for the head `fusion`, `none` leaves the general model out. `mix` is the general
        model's share in the weights that the domain's network begins with.

        `chunks` are the general model's layers for each layer that reads. `states` are what comes out of its layers, or
        as in the released code (`legacy`) what goes into them; `mask` hides padding as `keys`, or `legacy` does not.
        `dropout` is that inside the networks that learn.

        `memory` is what is read: `general`; or a control, `own` (the domain's own frozen copy), `random` (the general
        model's shape with random weights) or `other` (the general model's states of another text, drawn from training
        texts and the same whenever a text is seen).
        """
        if strategy not in WAYS:
            raise unknown("strategy", strategy, WAYS)
        if memory not in MEMORIES:
            raise unknown("memory", memory, MEMORIES)
        if memory == "other" and strategy == "beside":
            raise BadInput("encoder.memory=other is read by layers, and strategy beside has none that read")
        if not 0 <= mix <= 1:
            raise BadInput(f"encoder.mix, the general model's share in the first weights, is from 0 to 1, not {mix}")
        common: dict[str, Any] = {"pooling": pooling, "template": template, "dropout": dropout}
        if domain == "minilm":
            encoder = TextEncoder.minilm(training, **common, length=length or 128)
        else:
            encoder = TextEncoder.build(training, name=domain, length=length, **common)
        place = encoder.checkpoint if general is None else str(minilm_folder()) if general == "minilm" else general
        if place != encoder.checkpoint:
            _same_words(encoder.tokenizer, load_tokenizer(place, what=WHAT), domain, place)
        if mix:
            _interpolate(encoder.module, load_module(place, what=WHAT), mix)
        if strategy == "none":
            return encoder
        make = GeneralEncoder.untrained if memory == "random" else GeneralEncoder.build
        second = make(encoder.checkpoint if memory == "own" else place, frozen=frozen, cache=cache)
        if second.own is not None and dropout is not None:
            second.own = with_dropout(second.own, dropout)
        if strategy == "beside":
            encoder.attach_companion(ConcatenatedStates(encoder.width, second))
        else:
            depth = {"depth": len(encoder.stack()), "general": second.depth}
            reads = plan_reads(strategy, **depth, layers=layers, source=source, chunks=chunks, states=states)
            others = _others(encoder, training) if memory == "other" else None
            options: dict[str, Any] = {"attention": attention, "mask": mask, "gate": gate, "share": share}
            encoder.attach_companion(GeneralMemory(encoder.module, second, reads, others=others, **options))
        rooms = [max_positions(module, encoder.tokenizer) for module in (encoder.module, second.module)]
        check_text_encoder(encoder, encoder.states, min(rooms))
        return encoder

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> TextEncoder:
        """From a model folder, which holds both networks."""
        told = dict(settings)
        companion = told.pop("companion", None)
        encoder = TextEncoder.load(folder, told)
        if companion is None:
            return encoder
        second = GeneralEncoder.load(folder, frozen=companion["frozen"])
        if second.digest != companion["digest"]:
            raise BadInput(f"the general model in {folder} is not the one that this model was trained with")
        if "reads" not in companion:
            encoder.attach_companion(ConcatenatedStates(encoder.width, second))
            return encoder
        reads = {place: tuple(sources) for place, sources in companion["reads"]}
        others = SubstituteTexts.load(folder) if "others" in companion else None
        options = {"attention": companion["attention"], "mask": companion.get("mask", "keys")}
        encoder.attach_companion(GeneralMemory(encoder.module, second, reads, others=others, **options))
        return encoder


def _others(encoder: TextEncoder, training: Callable[[], Any]) -> SubstituteTexts:
    """A pool of training texts as both networks see them."""
    store = encoder.prepare(distinct_texts(training()))
    x = store.take(torch.arange(len(store)))
    return SubstituteTexts(Tokens(encoder.words(x.ids), x.mask, x.types))


def _same_words(mine: Any, other: Any, domain: str, general: str) -> None:
    """Both networks see the same numbers, so these must mean the same words."""
    same = mine.get_vocab() == other.get_vocab() and mine.pad_token_id == other.pad_token_id
    if not same or any(mine(text)["input_ids"] != other(text)["input_ids"] for text in TRIALS):
        raise BadInput(
            f"'{domain}' and '{general}' cut texts into different tokens: a general memory needs one tokenizer"
        )


@torch.no_grad()
def _interpolate(module: nn.Module, other: nn.Module, share: float) -> None:
    """(1 - share) of the weights, and share of the other's."""
    theirs = other.state_dict()
    for name, mine in module.state_dict().items():
        if name not in theirs or theirs[name].shape != mine.shape:
            raise BadInput(f"encoder.mix needs two networks of one shape, and the general model has no such '{name}'")
        if mine.is_floating_point():
            mine.lerp_(theirs[name], share)
