"""G-MAP: a domain-specific text encoder that reads a general one, with controls (Wan et al., 2022)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.core.errors import BadInput, check_known
from holdfast.core.inputs import Tokens
from holdfast.core.packages import minilm_folder
from holdfast.core.settings import retired_settings
from holdfast.nn.backbones import pretrained
from holdfast.nn.backbones.companion import WHAT, GeneralEncoder
from holdfast.nn.backbones.text import DEFAULT_LENGTH, TextEncoder
from holdfast.nn.fusion import ConcatenatedStates
from holdfast.nn.memory.general import STRATEGIES, GeneralMemory, Layers, check_padding, plan_reads
from holdfast.nn.memory.substitutes import SubstituteTexts, distinct_texts

ALL_STRATEGIES = (*STRATEGIES, "beside", "none")
MEMORIES = ("general", "own", "random", "other")
TRIALS = ("the good, the bad: 12 of them", "Émile's naïve test_case, twice!")


class GMap:
    """Builder of text encoders with a general model; it returns a TextEncoder, so every head and method works."""

    retired = retired_settings(source=None, chunks=None, states="layers", mask="keys", gate="normal")

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
        attention: str = "memory",
        frozen: bool = True,
        cache: int = 0,
        share: float = 0.0,
        mix: float = 0.0,
        pooling: str | None = None,
        length: int | None = None,
        template: str | None = None,
        dropout: float | None = None,
    ) -> TextEncoder:
        """Build the domain encoder and attach the general model.

        `domain` and `general` are `minilm`, a folder or a hub name; `general` defaults to a copy of the domain encoder.

        `layers`, from 1 or relative as "6/12", read the memory that `strategy` builds by `attention`. The strategy
        `beside` concatenates the features of both networks for the head `fusion`; `none` removes the general model.

        `memory` selects what is read: `general`, or a control: `own` (a frozen copy of the domain encoder), `random`
        (the general model with random weights) or `other` (the general model's states of another text, a fixed random
        choice from the training texts).

        `mix` is the weight of the general model in the initial weights of the domain encoder. `dropout` applies to the
        networks that are trained.
        """
        check_known("strategy", strategy, ALL_STRATEGIES)
        check_known("memory", memory, MEMORIES)
        if memory == "other" and strategy == "beside":
            raise BadInput("encoder.memory=other needs layers that read: use another encoder.strategy than `beside`")
        if not 0 <= mix <= 1:
            raise BadInput(f"encoder.mix must be from 0 to 1, got {mix}")
        common: dict[str, Any] = {"pooling": pooling, "template": template, "dropout": dropout}
        if domain == "minilm":
            encoder = TextEncoder.minilm(training, **common, length=length or DEFAULT_LENGTH)
        else:
            encoder = TextEncoder.build(training, name=domain, length=length, **common)
        name = encoder.checkpoint if general is None else str(minilm_folder()) if general == "minilm" else general
        if name != encoder.checkpoint:
            _check_tokenizers(encoder.tokenizer, pretrained.load_tokenizer(name, what=WHAT), domain, name)
        if mix:
            _interpolate(encoder.module, pretrained.load_module(name, what=WHAT), mix)
        if strategy == "none":
            return encoder
        build = GeneralEncoder.untrained if memory == "random" else GeneralEncoder.build
        second = build(encoder.checkpoint if memory == "own" else name, frozen=frozen, cache=cache)
        if second.own is not None and dropout is not None:
            second.own = pretrained.with_dropout(second.own, dropout)
        if strategy == "beside":
            encoder.attach_companion(ConcatenatedStates(encoder.width, second))
        else:
            depth = {"depth": len(encoder.stack()), "general": second.depth}
            reads = plan_reads(strategy, **depth, layers=layers)
            others = _substitutes(encoder, training) if memory == "other" else None
            options: dict[str, Any] = {"attention": attention, "share": share}
            encoder.attach_companion(GeneralMemory(encoder.module, second, reads, others=others, **options))
        limits = [pretrained.max_positions(module, encoder.tokenizer) for module in (encoder.module, second.module)]
        pretrained.check_text_encoder(encoder, encoder.states, min(limits))
        return encoder

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> TextEncoder:
        """Load both networks from a model folder."""
        settings = dict(settings)
        companion = settings.pop("companion", None)
        encoder = TextEncoder.load(folder, settings)
        if companion is None:
            return encoder
        second = GeneralEncoder.load(folder, frozen=companion["frozen"])
        if second.digest != companion["digest"]:
            raise BadInput(f"the general model in {folder} is not the one that this model was trained with")
        if "reads" not in companion:
            encoder.attach_companion(ConcatenatedStates(encoder.width, second))
            return encoder
        reads = {layer: tuple(sources) for layer, sources in companion["reads"]}
        others = SubstituteTexts.load(folder) if "others" in companion else None
        check_padding(companion)
        attention = companion["attention"]
        encoder.attach_companion(GeneralMemory(encoder.module, second, reads, others=others, attention=attention))
        return encoder


def _substitutes(encoder: TextEncoder, training: Callable[[], Any]) -> SubstituteTexts:
    """Tokenize a pool of training texts for both networks."""
    store = encoder.prepare(distinct_texts(training()))
    x = store.take(torch.arange(len(store)))
    return SubstituteTexts(Tokens(encoder.word_ids(x.ids), x.mask, x.types))


def _check_tokenizers(first: Any, second: Any, domain: str, general: str) -> None:
    """Raise an error unless equal token ids mean equal words."""
    same = first.get_vocab() == second.get_vocab() and first.pad_token_id == second.pad_token_id
    if not same or any(first(text)["input_ids"] != second(text)["input_ids"] for text in TRIALS):
        raise BadInput(f"'{domain}' and '{general}' have different tokenizers: a general memory needs one tokenizer")


@torch.no_grad()
def _interpolate(module: nn.Module, other: nn.Module, share: float) -> None:
    """Replace the weights by (1 - share) times themselves plus share times those of the other network."""
    source = other.state_dict()
    for name, weight in module.state_dict().items():
        if name not in source or source[name].shape != weight.shape:
            raise BadInput(f"encoder.mix needs two networks of equal shape, but '{name}' differs in the general model")
        if weight.is_floating_point():
            weight.lerp_(source[name], share)
