"""A bidirectional LSTM over words, with a vocabulary learned from the training texts alone.

n examples, b batch, t tokens, h hidden units a direction
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.words import PAD, SEPARATOR, SPECIALS, UNKNOWN, vocabulary, words_of

POOLINGS = ("max", "mean")


class BiLSTM(Backbone):
    """Word vectors, an LSTM in both directions, the maximum or the mean over the real tokens."""

    takes: ClassVar[str] = "text"

    def __init__(
        self,
        *,
        words: Sequence[str],
        embedding: int = 128,
        hidden: int = 128,
        pooling: str = "max",
        dropout: float = 0.2,
        length: int = 256,
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
        if length < 3:
            raise BadInput(f"length must be at least 3 tokens, not {length}")
        self.width, self.pooling, self.length = 2 * hidden, pooling, length
        self.settings = {
            "words": list(words),
            "embedding": embedding,
            "hidden": hidden,
            "pooling": pooling,
            "dropout": dropout,
            "length": length,
        }
        self._index = {word: i + SPECIALS for i, word in enumerate(words)}
        self.embed = nn.Embedding(SPECIALS + len(words), embedding, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        embedding: int = 128,
        hidden: int = 128,
        pooling: str = "max",
        dropout: float = 0.2,
        length: int = 256,
        min_count: int = 2,
        max_words: int = 30_000,
    ) -> Self:
        """Learn the vocabulary; with a min_count above 1 the rare words train the vector of unknown words."""
        words = vocabulary(training(), min_count=min_count, max_words=max_words)
        if not words:
            raise BadInput(f"no word occurs {min_count} times in the training texts: lower min_count or add texts")
        return cls(words=words, embedding=embedding, hidden=hidden, pooling=pooling, dropout=dropout, length=length)

    def prepare(self, examples: Any) -> TokenStore:
        return TokenStore.build([self._ids(example) for example in examples], pad=PAD)

    def _ids(self, example: str | Sequence[str]) -> list[int]:
        if isinstance(example, str):
            return self._known(example)[: self.length]
        first, second = (self._known(text) for text in example)
        room = self.length - 1
        keep = max(room - len(second), room - room // 2)  # the longer one is cut first
        first = first[:keep]
        return [*first, SEPARATOR, *second[: room - len(first)]]

    def _known(self, text: str) -> list[int]:
        return [self._index.get(word, UNKNOWN) for word in words_of(text)] or [UNKNOWN]

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tokens)
        sizes = x.mask.sum(1)  # (b,)
        vectors = self.dropout(self.embed(x.ids))  # (b, t, embedding)
        packed = pack_padded_sequence(vectors, sizes.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # (b, t, 2h)
        real = x.mask[:, : states.shape[1], None]
        if self.pooling == "max":
            return states.masked_fill(~real, float("-inf")).amax(1)  # (b, 2h)
        return (states * real).sum(1) / sizes[:, None]

    def blocks(self) -> list[nn.Module]:
        return [self.embed, self.lstm]

    def preparation_key(self) -> str:
        text = json.dumps(["words", self.settings["words"], self.length])
        return hashlib.sha256(text.encode()).hexdigest()
