"""What turns features into outputs: a linear layer, or a small network before it.

b batch, d width, c classes, w words
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.growth import expand_inputs


class Head(Protocol):
    """What a rule may ask of any head, and how the catalog and a model folder make one."""

    outputs: int
    settings: dict[str, Any]  # JSON; `load(settings)` builds the same shape again

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone) -> Self:
        """Make one for features of this width and classes of these names; keywords after these are settings."""
        ...

    def last_layer(self) -> nn.Linear:
        """The last layer that learns, for rules about the classifier's own gradients."""
        ...

    def named_parameters(self) -> Any: ...

    def __call__(self, z: Tensor) -> Tensor:
        """Features (b, d) to outputs (b, c)."""
        ...


@runtime_checkable
class WordHead(Protocol):
    """A head that says words before it says classes."""

    def words(self, z: Tensor) -> Tensor:
        """Features (b, d) to log-probabilities of words (b, w)."""
        ...


class NoHead(nn.Module):
    """Features as they are, where the backbone's are the outputs already."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.outputs = width
        self.settings = {"width": width}

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone) -> Self:
        return cls(width)

    def last_layer(self) -> nn.Linear:
        raise BadInput("the head none has no layer: use linear or dense")

    def forward(self, z: Tensor) -> Tensor:
        return z


class Linear(nn.Linear):
    """W z + b."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.outputs = outputs
        self.settings = {"width": width, "outputs": outputs}

    def widened(self, at: Tensor, width: int, *, fresh: bool = False) -> Linear:
        """The same for wider features, of which those of before lie `at` (d,); `fresh` forgets what it knew."""
        made = Linear(width, self.outputs).to(self.weight)
        if not fresh:
            made.load_state_dict(expand_inputs(self, at, width).state_dict())
        return made

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone, *, std: float | None = None) -> Self:
        """With `std` it begins as the heads of vision transformers do: a truncated normal, biases of 0."""
        made = cls(width, len(classes))
        if std is not None:
            if not std > 0:
                raise BadInput(f"std of a linear head must be above 0, not {std}: leave it out for torch's own start")
            nn.init.trunc_normal_(made.weight, std=std)
            nn.init.zeros_(made.bias)
        return made

    def last_layer(self) -> nn.Linear:
        return self


class Dense(nn.Module):
    """W2 drop(tanh(W1 drop(z))): the head that is usual on the first token of a transformer; W1 may be several."""

    def __init__(self, width: int, outputs: int, *, dropout: float = 0.1, layers: int = 1) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise BadInput(f"dropout of a head must be at least 0 and below 1, not {dropout}")
        if layers < 1:
            raise BadInput(f"a dense head has at least 1 layer before its last one, not {layers}: or use head linear")
        self.outputs = outputs
        self.settings = {"width": width, "outputs": outputs, "dropout": dropout, "layers": layers}
        self.dropout = nn.Dropout(dropout)
        self.dense, self.out = nn.Linear(width, width), nn.Linear(width, outputs)
        self.more = nn.ModuleList(nn.Linear(width, width) for _ in range(layers - 1))

    @classmethod
    def build(
        cls, width: int, classes: Sequence[str], encoder: Backbone, *, dropout: float = 0.1, layers: int = 1
    ) -> Self:
        return cls(width, len(classes), dropout=dropout, layers=layers)

    def last_layer(self) -> nn.Linear:
        return self.out

    def forward(self, z: Tensor) -> Tensor:
        for layer in (self.dense, *self.more):
            z = torch.tanh(layer(self.dropout(z)))  # (b, d)
        return self.out(self.dropout(z))  # (b, c)
