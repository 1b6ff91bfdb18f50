"""Bidirectional LSTM over words, with a vocabulary learned from the training texts.

Shapes: b batch, t tokens, h hidden units per direction.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from holdfast.core.inputs import Tokens
from holdfast.core.settings import checked_settings, keywords_of, retired_settings, setting
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import Backbone, fingerprint
from holdfast.nn.backbones.words import PAD, SEPARATOR, SPECIALS, UNKNOWN, split_words, vocabulary


class BiLSTM(Backbone):
    """Word vectors, a bidirectional LSTM, and the maximum of the states over the real tokens."""

    takes = "text"

    @checked_settings
    class Settings:
        embedding: int = 128
        hidden: int = 128
        dropout: float = 0.2
        length: int = setting(256, least=3)

        retired = retired_settings(pooling="max")

    @keywords_of(Settings)
    def __init__(self, words: Sequence[str], settings: Settings) -> None:
        super().__init__()
        self.width, self.length = 2 * settings.hidden, settings.length
        self.settings = {"words": list(words), **asdict(settings)}
        self._index = {word: i + SPECIALS for i, word in enumerate(words)}
        self.embed = nn.Embedding(SPECIALS + len(words), settings.embedding, padding_idx=PAD)
        self.dropout = nn.Dropout(settings.dropout)
        self.lstm = nn.LSTM(settings.embedding, settings.hidden, batch_first=True, bidirectional=True)

    @classmethod
    def build(
        cls, training: Callable[[], Any], *, min_count: int = 2, max_words: int = 30_000, **settings: Any
    ) -> Self:
        """Learn the vocabulary; with `min_count` above 1 the rare words train the vector of unknown words."""
        return cls(vocabulary(training(), min_count=min_count, max_words=max_words), **settings)

    def prepare(self, examples: Any) -> TokenStore:
        return TokenStore.build([self._ids(example) for example in examples], pad=PAD)

    def _ids(self, example: str | Sequence[str]) -> list[int]:
        if isinstance(example, str):
            return self._lookup(example)[: self.length]
        first, second = (self._lookup(text) for text in example)
        room = self.length - 1
        first = first[: max(room - len(second), room - room // 2)]  # the longer text is cut first
        return [*first, SEPARATOR, *second[: room - len(first)]]

    def _lookup(self, text: str) -> list[int]:
        return [self._index.get(word, UNKNOWN) for word in split_words(text)] or [UNKNOWN]

    def forward(self, x: Tokens) -> Tensor:
        vectors = self.dropout(self.embed(x.ids))  # (b, t, embedding)
        packed = pack_padded_sequence(vectors, x.mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # (b, t, 2h)
        return states.masked_fill(~x.mask[:, : states.shape[1], None], float("-inf")).amax(1)  # (b, 2h)

    def blocks(self) -> list[nn.Module]:
        return [self.embed, self.lstm]

    def preparation_key(self) -> str:
        return fingerprint("words", self.settings["words"], self.length)
