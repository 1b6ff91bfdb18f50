"""The vectors of the words that a network knows; more words can come later, and old ones keep their number.

b batch, t tokens, n words, d width
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.nn.backbones.words import PAD, SPECIALS, UNKNOWN


class WordTable(nn.Module):
    """One table for the first words and one for each later group, so that an optimizer keeps what it knows of the old.

    The later words are also a buffer of their own: the state of a grown table loads into one that has not grown.
    """

    later: Tensor

    def __init__(self, words: Sequence[str], width: int, *, spread: float) -> None:
        super().__init__()
        self.width, self.spread = width, spread
        self.groups: list[list[str]] = []
        self.index: dict[str, int] = {}
        self.tables = nn.ParameterList()
        self.register_buffer("later", torch.zeros(0, dtype=torch.uint8))
        self._add(list(words), torch.randn(SPECIALS + len(words), width) * spread)
        with torch.no_grad():
            self.tables[0][PAD] = 0
        self.register_load_state_dict_pre_hook(_make_room)

    def grow(self, words: Sequence[str]) -> list[nn.Parameter]:
        """Rows for words that are new, drawn at random; the new parameter in a list, or none where all are known."""
        new = [word for word in dict.fromkeys(words) if word not in self.index]
        if not new:
            return []
        like = self.tables[0]
        return [self._add(new, torch.randn(len(new), self.width, dtype=like.dtype, device=like.device) * self.spread)]

    def _add(self, words: list[str], rows: Tensor) -> nn.Parameter:
        start = SPECIALS + len(self.index)
        self.index.update({word: start + i for i, word in enumerate(words)})
        self.groups.append(words)
        self.tables.append(nn.Parameter(rows))
        text = json.dumps(self.groups[1:]).encode()
        self.later = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.later.device)
        return self.tables[-1]

    @torch.no_grad()
    def put(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Set the vectors of words that are known."""
        starts = self._starts()
        for word, vector in vectors.items():
            at = self.index[word]
            group = max(i for i, start in enumerate(starts) if start <= at)
            self.tables[group][at - starts[group]] = torch.from_numpy(vector).to(self.tables[group])

    def ids(self, words: Sequence[str]) -> list[int]:
        return [self.index.get(word, UNKNOWN) for word in words]

    def rows(self) -> Tensor:
        """(n, d) the vectors of all words by their number, those that are no words first."""
        return self.tables[0] if len(self.tables) == 1 else torch.cat(list(self.tables))

    def words(self) -> list[str]:
        """Every word by its number; those that are no words are empty."""
        return [""] * SPECIALS + [word for group in self.groups for word in group]

    def _starts(self) -> list[int]:
        sizes = [len(table) for table in self.tables]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def forward(self, ids: Tensor) -> Tensor:
        """(b, t, d) the vectors of these words, from whichever table has them."""
        first, *more = self.tables
        found = F.embedding(ids.clamp(max=len(first) - 1) if more else ids, first, padding_idx=PAD)
        for table, start in zip(more, self._starts()[1:], strict=True):
            at = ids - start
            inside = (at >= 0) & (at < len(table))
            found = torch.where(inside[..., None], F.embedding(at.clamp(0, len(table) - 1), table), found)
        return found


def _make_room(table: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: grow by the words that they have."""
    assert isinstance(table, WordTable)
    if f"{prefix}later" not in state:
        return
    groups = json.loads(state[f"{prefix}later"].cpu().numpy().tobytes())
    for words in groups[len(table.groups) - 1 :]:
        for parameter in table.grow(words):
            parameter.requires_grad_(table.tables[0].requires_grad)
    if table.groups[1:] != groups:
        raise RuntimeError(f"these weights are of other words than this table's {len(table.index)}")
