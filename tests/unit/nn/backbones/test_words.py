"""Texts to words in two ways, and vocabularies."""

from __future__ import annotations

from holdfast.nn.backbones.words import plain_words_of, vocabulary, words_of


def test_words() -> None:
    assert words_of("Don't pay 1,299.50 for IT_2!") == ["don't", "pay", "1,299.50", "for", "it_2", "!"]
    assert words_of(" \n") == []
    assert words_of("Ünïcode 東京") == ["ünïcode", "東京"]


def test_plain_words_lose_numbers_accents_and_most_marks() -> None:
    assert plain_words_of("Don't pay 1,299.50, OK?") == ["don't", "pay", ".", "ok", "?"]
    assert plain_words_of("Well... <b>Über</b> naïve; yes.") == ["well", "<elp>", "<b>uber<", "b>", "naive", "yes", "."]
    assert plain_words_of("Wait....") == ["wait", "<elp>", "."]
    assert plain_words_of("1984, 東京") == []


def test_vocabulary_counts_and_limits() -> None:
    assert vocabulary(["b a a", ("c b", "a")], min_count=1, max_words=10) == ["a", "b", "c"]
    assert vocabulary(["b a a", "c b a"], min_count=2, max_words=10) == ["a", "b"]
    assert vocabulary(["b a a", "c b a"], min_count=1, max_words=1) == ["a"]
    assert vocabulary(["Nr. 7, é"], min_count=1, max_words=9, split=plain_words_of) == [".", "e", "nr"]
