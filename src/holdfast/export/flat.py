"""A saved model as a module of plain tensors: named inputs, probabilities out, any number of examples of any length.

b batch, t tokens, d features, s pixels a side, c classes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs, Tokens
from holdfast.data.raw import Pixels, Raw, Texts, Vectors
from holdfast.saved import SavedModel

MOST = 1024  # examples at once, which a program must be told
WORDS = ("one", "two words", "three short words", "a few more words than that")


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs by name to record a program with, and the dimensions in which others may differ."""

    inputs: dict[str, Tensor]
    free: dict[str, dict[int, Any]]
    raw: Raw


class Flat(nn.Module):
    """softmax(model(x) / temperature), (b, c): what the model says, calibrated as it is offline."""

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def probabilities(self, x: Inputs) -> Tensor:
        return (self.model(x) / self.temperature).softmax(dim=-1)


class FlatTensor(Flat):
    """Of vectors (b, d) or of images (b, 3, s, s)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.probabilities(x)


class FlatTokens(Flat):
    """Of token ids (b, t) with their mask."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.probabilities(Tokens(ids, mask.bool()))


class FlatPairs(Flat):
    """The same with the segment of each token."""

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        return self.probabilities(Tokens(ids, mask.bool(), types))


def flat(saved: SavedModel, *, pairs: bool = False) -> tuple[Flat, Sample]:
    """The module and a sample of its inputs, or one sentence where there can be none."""
    if saved.task != "classify":
        raise BadInput(f"a model for the task {saved.task} cannot be exported: only classifiers can")
    if saved.encoder.takes == "graph":
        raise BadInput("a model that takes graphs cannot be exported: texts, vectors and images can")
    if saved.model.together is not None:
        raise BadInput(
            "this model cannot be exported: others of a batch change a prediction; fit it with neck.context=support, "
            "or, where experts have a capacity, with neck.eval_capacity=0"
        )
    raw = _raw(saved, pairs=pairs)
    store = saved.encoder.prepare(raw.take(np.arange(len(raw)), size=saved.encoder.size))
    saved.model.cpu().eval().requires_grad_(False)
    saved.model.precision = "fp32"
    return _module(saved, store.take(torch.arange(len(raw))), raw)


def _raw(saved: SavedModel, *, pairs: bool) -> Raw:
    """A few examples of the kind that the model takes."""
    encoder, chance = saved.encoder, np.random.default_rng(0)
    if encoder.takes == "text":
        return Texts.of([(text, WORDS[0]) for text in WORDS] if pairs else list(WORDS))
    if encoder.takes == "vector":
        return Vectors(chance.normal(size=(len(WORDS), int(encoder.settings["inputs"]))))
    size = encoder.size or 224
    return Pixels(chance.integers(0, 256, (len(WORDS), 3, size, size), dtype=np.uint8))


def _module(saved: SavedModel, x: Inputs, raw: Raw) -> tuple[Flat, Sample]:
    batch = torch.export.Dim("batch", min=1, max=MOST)
    temperature = 1.0 if saved.gauge is None else saved.gauge.temperature
    if isinstance(x, Tensor):
        return FlatTensor(saved.model, temperature), Sample({"x": x}, {"x": {0: batch}}, raw)
    assert isinstance(x, Tokens)
    length = torch.export.Dim("length", min=2, max=int(saved.encoder.settings.get("length", MOST)))
    named = {"ids": x.ids, "mask": x.mask.long()} | ({} if x.types is None else {"types": x.types})
    made = FlatTokens if x.types is None else FlatPairs
    return made(saved.model, temperature), Sample(named, {name: {0: batch, 1: length} for name in named}, raw)
