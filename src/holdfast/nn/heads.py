"""Heads: from features to outputs, by a linear layer or a small network.

Shapes: b batch, d width, c classes, w words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.growth import expand_inputs


class Head(Protocol):
    """Interface of heads; `type(head)(**head.settings)` builds a head of the same shape."""

    outputs: int
    settings: dict[str, Any]  # JSON

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone) -> Self: ...  # more keywords are settings
    def last_layer(self) -> nn.Linear: ...  # the last trainable layer, for methods that use its gradients
    def named_parameters(self) -> Any: ...
    def __call__(self, z: Tensor) -> Tensor: ...  # features (b, d) to outputs (b, c)


@runtime_checkable
class WordHead(Protocol):
    """A head that predicts words before classes: features (b, d) to log-probabilities of words (b, w)."""

    def words(self, z: Tensor) -> Tensor: ...


class Linear(nn.Linear):
    """W z + b."""

    settings: dict[str, int]

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.outputs = outputs
        self.settings = {"width": width, "outputs": outputs}

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone, *, std: float | None = None) -> Self:
        """With `std`, initialise as vision transformers do: truncated normal weights and zero biases."""
        head = cls(width, len(classes))
        if std is not None and not std > 0:
            raise BadInput(f"head.std must be above 0, got {std}: remove it for torch's default initialisation")
        if std is not None:
            nn.init.trunc_normal_(head.weight, std=std)
            nn.init.zeros_(head.bias)
        return head

    def widened(self, at: Tensor, width: int, *, fresh: bool = False) -> Linear:
        """Return a head for wider features; old features moved to `at` (d,). `fresh` reinitialises all weights."""
        head = Linear(width, self.outputs).to(self.weight)
        if not fresh:
            head.load_state_dict(expand_inputs(self, at, width).state_dict())
        return head

    def last_layer(self) -> nn.Linear:
        return self


@checked_settings
class DenseSettings:
    """Settings of a dense head."""

    dropout: float = setting(0.1, least=0, below=1)
    layers: int = setting(1, least=1)  # hidden layers


class Dense(nn.Module):
    """W2 drop(tanh(W1 drop(z))), the usual head on the first token of a transformer, with one or more hidden layers."""

    Settings = DenseSettings

    @keywords_of(DenseSettings)
    def __init__(self, width: int, outputs: int, settings: DenseSettings) -> None:
        super().__init__()
        self.outputs = outputs
        self.settings = {"width": width, "outputs": outputs, **asdict(settings)}
        self.dropout = nn.Dropout(settings.dropout)
        self.dense, self.out = nn.Linear(width, width), nn.Linear(width, outputs)
        self.more = nn.ModuleList(nn.Linear(width, width) for _ in range(settings.layers - 1))

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone, **settings: Any) -> Self:
        return cls(width, len(classes), **settings)

    def last_layer(self) -> nn.Linear:
        return self.out

    def forward(self, z: Tensor) -> Tensor:
        for layer in (self.dense, *self.more):
            z = torch.tanh(layer(self.dropout(z)))  # (b, d)
        return self.out(self.dropout(z))  # (b, c)
