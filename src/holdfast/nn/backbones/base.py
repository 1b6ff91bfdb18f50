"""What every backbone is: it turns raw examples into inputs, and inputs into features of one width.

Raw examples are plain: a list of str or of (str, str) for texts, a float tensor (n, d) for vectors, a uint8
tensor (n, 3, s, s) for images decoded at `size` pixels, a list of Graphs.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.core.store import Store


class Backbone(nn.Module, ABC):
    """A network with a width and a preparation. Concrete ones are final; constructor keywords are `settings`."""

    takes: ClassVar[str]  # text, image, vector or graph
    width: int
    settings: dict[str, Any]  # JSON; `load(folder, settings)` builds the same shape again
    size: int | None = None  # pixels a side, for images

    @classmethod
    @abstractmethod
    def build(cls, training: Callable[[], Any], *args: Any, **options: Any) -> Self:
        """Make one; `training()` gives the raw training examples to those that learn a vocabulary or a scale."""

    @abstractmethod
    def prepare(self, examples: Any) -> Store:
        """Raw examples to a store of inputs: deterministic, example by example, without gradient."""

    @abstractmethod
    def forward(self, x: Inputs) -> Tensor:
        """(b, width) features."""

    def blocks(self) -> list[nn.Module]:
        """The parts from input to output, for `last:N`."""
        return list(self.children())

    def stack(self) -> nn.ModuleList:
        """The layers of a transformer, for what is put into them."""
        raise BadInput(f"{type(self).__name__} has no stack of layers to put a part into: use a transformer")

    def class_token(self) -> list[nn.Parameter]:
        """The parameters of a class token, for `head+cls`."""
        raise BadInput(f"{type(self).__name__} has no class token of its own: use tuning full, frozen or last:N")

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what the preparation needs beyond settings (a tokenizer, say); return the settings."""
        return self.settings

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """The same shape and preparation again; the weights come from the model file."""
        return cls(**settings)

    def preparation_key(self) -> str:
        """A fingerprint of `prepare`: equal when the prepared inputs are equal."""
        text = json.dumps([type(self).__name__, self.settings], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()
