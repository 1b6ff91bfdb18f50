"""Encoder interface: raw examples to inputs, and inputs to features of a fixed width.

Raw examples are a list of str or of (str, str) for texts, a float tensor (n, d) for vectors, a uint8 tensor
(n, 3, s, s) for images decoded at `size` pixels, a list of Graphs, or TableRows for tables.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.store import Store
from holdfast.core.table import Schema


class Backbone(nn.Module, ABC):
    """A network that maps inputs to features, and the preparation of its inputs. Concrete classes are final."""

    takes: ClassVar[str]  # text, image, vector, graph, table or mixed
    width: int
    settings: dict[str, Any]  # JSON; `load(folder, settings)` builds a network of the same shape
    size: int | None = None  # pixels per side, for images
    schema: Schema = ()  # columns of the training rows, for tables

    @classmethod
    def build(cls, training: Callable[[], Any], *args: Any, **settings: Any) -> Self:
        """Build the encoder; `training()` returns raw training examples, to learn a vocabulary or a scale."""
        return cls(**settings)

    @abstractmethod
    def prepare(self, examples: Any) -> Store:
        """Convert raw examples to a store of inputs: deterministic, independently per example, without gradient."""

    @abstractmethod
    def forward(self, x: Any) -> Tensor:
        """(b, width) features of the inputs of a store; concrete classes state their kind of inputs."""

    def blocks(self) -> list[nn.Module]:
        """Submodules from input to output, for the tuning mode `last:N`."""
        return list(self.children())

    def stack(self) -> nn.ModuleList:
        """Transformer layers, for parts that are inserted into them."""
        raise BadInput(f"{type(self).__name__} has no stack of layers to insert a part into: use a transformer")

    def class_token(self) -> list[nn.Parameter]:
        """Parameters of the class token, for the tuning mode `head+cls`."""
        raise BadInput(f"{type(self).__name__} has no class token: use tuning full, frozen or last:N")

    def concatenated(self) -> tuple["Backbone", ...]:
        """Encoders of the same examples whose features, one after the other, are those of this one; empty if none."""
        return ()

    def save(self, folder: Path) -> dict[str, Any]:
        """Write files that the preparation needs (a tokenizer, say); return the settings."""
        return self.settings

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """Build the network and its preparation from a model folder; the weights are loaded separately."""
        return cls(**settings)

    def preparation_key(self) -> str:
        """Fingerprint of `prepare`: equal if the prepared inputs are equal."""
        return fingerprint(type(self).__name__, self.settings)


class LearnedPreparation:
    """Mark of encoders whose prepared inputs depend on the training examples and are large, so that few are kept."""


def fingerprint(*values: Any) -> str:
    """Return a hash of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
