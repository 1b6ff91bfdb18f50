"""Texts of other examples, whose states are read in the place of one's own: a control of what a memory is good for.

b batch, t tokens, p texts of the pool, s tokens of its longest, d width
"""

from __future__ import annotations

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

POOL = 64  # texts: so few that none stands for one example, so many that they are not one text
FILE = "others.safetensors"
PRIME = 1_000_003


class SubstituteTexts:
    """A pool of training texts; which of them a text is given depends on its own words alone, and it is never itself.

    So a prediction depends on no batch, and the pool says nothing of a label: many texts share one of its texts.
    """

    def __init__(self, pool: Tokens) -> None:
        self.pool = pool
        self.sizes = pool.mask.sum(1)  # (p,)

    @property
    def digest(self) -> str:
        """A hash of the pool's words."""
        return hashlib.sha256(self.pool.ids.numpy().tobytes() + self.pool.mask.numpy().tobytes()).hexdigest()

    def save(self, folder: Path) -> None:
        save_tree(folder / FILE, {"ids": self.pool.ids, "mask": self.pool.mask, "types": self.pool.types})

    @classmethod
    def load(cls, folder: Path) -> Self:
        return cls(Tokens(**load_tree(folder / FILE)))

    def replacements(self, x: Tokens) -> Tokens:
        """The text of the pool for each of these, (b, s) tokens."""
        device, p = x.ids.device, len(self.sizes)
        weight = torch.arange(1, x.ids.shape[1] + 1, device=device) * 2_654_435_761 % PRIME  # (t,)
        at = (x.ids.masked_fill(~x.mask, 0) * weight).sum(1) % p  # (b,)
        at = torch.where(self._itself(x, at), (at + 1) % p, at).cpu()
        return inputs.to(inputs.take(self.pool, at), device)

    def _itself(self, x: Tokens, at: Tensor) -> Tensor:
        """(b,) whether it is as long and mostly the same: a text with some words hidden is itself too."""
        found, n = self.pool.ids.to(at.device)[at], x.mask.sum(1)
        width = min(found.shape[1], x.ids.shape[1])
        agree = ((found[:, :width] == x.ids[:, :width]) & x.mask[:, :width]).sum(1)
        return (self.sizes.to(at.device)[at] == n) & (2 * agree > n)


def fitted(states: Tensor, tokens: int) -> Tensor:
    """(b, t, d) states (b, s, d) of another text, cut or filled up with nothing; (b, s) of a mask alike."""
    after = tokens - states.shape[1]
    return F.pad(states, (0, after) if states.dim() == 2 else (0, 0, 0, after))


def distinct_texts(examples: Sequence[Any]) -> list[str] | list[tuple[str, str]]:
    """Up to a pool of different texts, or of pairs, drawn from raw examples of any task."""
    found: list[Any] = list(dict.fromkeys(map(_text, examples)))
    if len(found) < 2:
        raise BadInput("encoder.memory=other needs at least two different training texts")
    return [found[i] for i in torch.randperm(len(found))[:POOL].tolist()]


def _text(example: Any) -> str | tuple[str, str]:
    if isinstance(example, Sentence):
        return " ".join(example.words)
    return (example.question, example.context) if isinstance(example, Question) else example
