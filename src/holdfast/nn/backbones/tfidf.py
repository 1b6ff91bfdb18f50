"""TF-IDF of word and character n-grams as an encoder of texts and text pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.bag import DIMENSION, BagBackbone
from holdfast.nn.backbones.ngrams import KINDS, SHORTEST, Vocabulary, frequent, training_counts

COLUMNS = ("text", "second")
MOST_CHARACTERS = 10_000_000  # of all training texts, up to which n-grams of characters are used along with words


class Tfidf(BagBackbone):
    """Sublinear TF-IDF of n-grams of words and of characters within words, learned from the training texts.

    Words and characters, and the two texts of a pair, are separate blocks of columns, each normalised by itself. The
    method `logistic` fits all columns; other methods train the table, which maps the columns to `dimension` features.
    If the training texts have more than 10 million characters, words alone are used, which is as accurate and faster.
    """

    takes = "text"

    @checked_settings
    class Settings:
        words: int = setting(2, least=0, help="longest n-gram of words; 0 leaves words out")
        characters: int = setting(5, least=0, help="longest n-gram of characters, from 3; 0 leaves characters out")
        min_df: int = setting(2, least=1, help="training texts that an n-gram must occur in")
        features: int = setting(100_000, least=1, help="largest number of n-grams")
        dimension: int = setting(DIMENSION, least=1, help="features that the table maps the n-grams to")

        def __post_init__(self) -> None:
            if 0 < self.characters < SHORTEST:
                raise BadInput(f"encoder.characters must be 0 or at least {SHORTEST}, got {self.characters}")
            if not self.words and not self.characters:
                raise BadInput("encoder.words and encoder.characters are both 0: set one of them")

    @keywords_of(Settings)
    def __init__(self, vocabulary: Mapping[str, Sequence[str]], settings: Settings) -> None:
        super().__init__()
        self._initialise(vocabulary, asdict(settings))
        self.blocks_of_columns = {
            block: Vocabulary(grams, kind := block.partition(" ")[2], self.settings[kind])
            for block, grams in self.vocabulary.items()
        }

    @classmethod
    def build(cls, training: Callable[[], Any], **settings: Any) -> Self:
        """Learn the vocabulary and the document frequencies from the training texts."""
        columns = tuple((name, tuple(texts)) for name, texts in text_columns(training()).items())
        vocabulary, idf = _learn(columns, cls.Settings(**settings))
        encoder = cls(vocabulary, **settings)
        encoder.idf.copy_(torch.from_numpy(idf))
        return encoder

    def prepare(self, examples: Any) -> TokenStore:
        columns = text_columns(examples)
        expected = list(dict.fromkeys(block.partition(" ")[0] for block in self.vocabulary))
        if examples and list(columns) != expected:
            kinds = {1: "single texts", 2: "pairs of texts"}
            raise BadInput(f"the model was built for {kinds[len(expected)]}, not {kinds[len(columns)]}")
        counts = {
            block: vocabulary.count(columns.get(block.partition(" ")[0], []))
            for block, vocabulary in self.blocks_of_columns.items()
        }
        return self.bags(counts)


@lru_cache(maxsize=1)  # a run builds its encoder twice
def _learn(
    columns: tuple[tuple[str, tuple[str, ...]], ...], options: Tfidf.Settings
) -> tuple[dict[str, list[str]], np.ndarray]:
    """Return the vocabulary of texts by column, and its inverse document frequency."""
    long = sum(len(text) for _, texts in columns for text in texts) > MOST_CHARACTERS
    kinds = [kind for kind in KINDS if kind == "words" or not options.words or not long]
    blocks = {
        f"{name} {kind}": training_counts(kind, longest).counts(texts)
        for name, texts in columns
        for kind in kinds
        if (longest := getattr(options, kind))
    }
    return frequent(blocks, min_df=options.min_df, limit=options.features)


def text_columns(examples: Sequence[Any]) -> dict[str, list[str]]:
    """Return the texts by column, `text` and for pairs also `second`; empty without examples."""
    if not len(examples):
        return {}
    if isinstance(examples[0], str):
        return {COLUMNS[0]: list(examples)}
    return {name: list(texts) for name, texts in zip(COLUMNS, zip(*examples, strict=True), strict=True)}
