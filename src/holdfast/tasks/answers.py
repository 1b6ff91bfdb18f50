"""How near an answer comes to a true one: the same words, or how many they share (Rajpurkar et al., 2016)."""

from __future__ import annotations

import string
from collections import Counter

ARTICLES = {"a", "an", "the"}
_BARE = str.maketrans("", "", string.punctuation)


def words_of(text: str) -> list[str]:
    """The words in small letters, without punctuation and articles."""
    return [word for word in text.lower().translate(_BARE).split() if word not in ARTICLES]


def exact(said: str, true: str) -> bool:
    return words_of(said) == words_of(true)


def overlap(said: str, true: str) -> float:
    """F1 of the words, each counted as often as it comes; 1 where neither has any."""
    mine, theirs = words_of(said), words_of(true)
    if not mine or not theirs:
        return float(mine == theirs)
    shared = (Counter(mine) & Counter(theirs)).total()
    return 2 * shared / (len(mine) + len(theirs))
