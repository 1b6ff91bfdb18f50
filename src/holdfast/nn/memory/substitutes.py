"""Substitute texts: a control in which the memory reads the states of another text.

Shapes: b batch, t tokens, p texts in the pool, s tokens of its longest text, d width.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core import inputs
from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Question, Sentence, Tokens

POOL = 64  # texts: too few to stand for single examples, enough not to be one text
FILE = "others.safetensors"
PRIME = 1_000_003


class SubstituteTexts:
    """Pool of training texts; a hash of an example's tokens selects its substitute, which is never the example itself.

    Predictions therefore do not depend on the batch, and the pool carries no label: many texts share a substitute.
    """

    sizes: Tensor

    def __init__(self, pool: Tokens) -> None:
        self.pool = pool
        self.sizes = pool.mask.sum(1)  # (p,)

    @property
    def digest(self) -> str:
        """Hash of the pool's tokens."""
        return hashlib.sha256(self.pool.ids.numpy().tobytes() + self.pool.mask.numpy().tobytes()).hexdigest()

    def save(self, folder: Path) -> None:
        save_tree(folder / FILE, {"ids": self.pool.ids, "mask": self.pool.mask, "types": self.pool.types})

    @classmethod
    def load(cls, folder: Path) -> Self:
        return cls(Tokens(**load_tree(folder / FILE)))

    def replacements(self, x: Tokens) -> Tokens:
        """Return the substitute (b, s) of every text."""
        device, p = x.ids.device, len(self.sizes)
        weight = torch.arange(1, x.ids.shape[1] + 1, device=device) * 2_654_435_761 % PRIME  # (t,)
        at = (x.ids.masked_fill(~x.mask, 0) * weight).sum(1) % p  # (b,)
        at = torch.where(self._is_same_text(x, at), (at + 1) % p, at).cpu()
        return inputs.to(inputs.take(self.pool, at), device)

    def _is_same_text(self, x: Tokens, at: Tensor) -> Tensor:
        """Return whether the pool's text has the same length and mostly the same tokens, (b,); some may be masked."""
        candidates, n = self.pool.ids.to(at.device)[at], x.mask.sum(1)
        width = min(candidates.shape[1], x.ids.shape[1])
        agree = ((candidates[:, :width] == x.ids[:, :width]) & x.mask[:, :width]).sum(1)
        return (self.sizes.to(at.device)[at] == n) & (2 * agree > n)


def fit_length(states: Tensor, tokens: int) -> Tensor:
    """Cut or zero-pad states (b, s, d) or a mask (b, s) of another text to `tokens` positions."""
    after = tokens - states.shape[1]
    return F.pad(states, (0, after) if states.dim() == 2 else (0, 0, 0, after))


def distinct_texts(examples: Sequence[Any]) -> list[str] | list[tuple[str, str]]:
    """Sample a pool of distinct texts or text pairs from raw examples of any task."""
    texts: list[Any] = list(dict.fromkeys(map(_text, examples)))
    if len(texts) < 2:
        raise BadInput(f"encoder.memory=other needs at least 2 distinct training texts, got {len(texts)}")
    return [texts[i] for i in torch.randperm(len(texts))[:POOL].tolist()]


def _text(example: Any) -> str | tuple[str, str]:
    if isinstance(example, Sentence):
        return " ".join(example.words)
    return (example.question, example.context) if isinstance(example, Question) else example
