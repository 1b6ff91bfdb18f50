"""Splitting of texts into words, and vocabularies."""

from holdfast.nn.backbones.words import split_words, vocabulary


def test_words() -> None:
    assert split_words("Don't pay 1,299.50 for IT_2!") == ["don't", "pay", "1,299.50", "for", "it_2", "!"]
    assert split_words(" \n") == []
    assert split_words("Ünïcode 東京") == ["ünïcode", "東京"]


def test_vocabulary_counts_and_limits() -> None:
    assert vocabulary(["b a a", ("c b", "a")], min_count=1, max_words=10) == ["a", "b", "c"]
    assert vocabulary(["b a a", "c b a"], min_count=2, max_words=10) == ["a", "b"]
    assert vocabulary(["b a a", "c b a"], min_count=1, max_words=1) == ["a"]
