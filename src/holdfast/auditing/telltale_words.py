"""Single words that identify a domain or leak the label of a text, such as a source's name or a rating.

A word separates a group of rows if most texts of the group contain it and few others do: the strength is the
difference of the two shares, 1 if the presence of the word alone decides. Columns of tables have a check of their own.
Shapes: n texts, v words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from holdfast.auditing.examples import Examples
from holdfast.auditing.shift import MIN_ROWS
from holdfast.report.sections import share_cell, word_cell
from holdfast.report.terminal import Grid

SUSPICIOUS = 0.8  # difference of shares above which one word identifies a group
MAX_WORDS = 50_000
SHOWN = 3  # words per domain or label


@dataclass(frozen=True)
class TelltaleWord:
    """A word that one domain, or the texts with one label, contain and others do not."""

    word: str
    what: str  # `domain` or `label`
    name: str  # of the domain or label
    inside: float  # share of its texts with the word
    outside: float  # share of the other texts with the word

    @property
    def strength(self) -> float:
        return self.inside - self.outside


def telltale_words(examples: Examples, rows: Mapping[str, np.ndarray]) -> list[TelltaleWord]:
    """Return suspicious words of these rows per domain, the strongest first; empty for other data than texts."""
    dataset, chosen = examples.dataset, np.concatenate(list(rows.values()))
    if examples.kind != "text" or len(chosen) < 2 * MIN_ROWS:
        return []
    vectorizer: Any = CountVectorizer(binary=True, token_pattern=r"\w+", max_features=MAX_WORDS, min_df=MIN_ROWS)
    try:
        counts = vectorizer.fit_transform(examples.texts(chosen)).tocsr()
    except ValueError:  # no word is frequent enough
        return []
    words = vectorizer.get_feature_names_out()
    domain = np.repeat(np.arange(len(rows)), [len(each) for each in rows.values()])
    suspicious = _separating(counts, domain, list(rows), "domain", words)
    if dataset.targets is None and len(dataset.classes) > 1:
        known = np.flatnonzero(dataset.y[chosen] >= 0)
        suspicious += _separating(counts[known], dataset.y[chosen[known]], dataset.classes, "label", words)
    return sorted(suspicious, key=lambda each: -each.strength)


def _separating(counts: Any, group: np.ndarray, names: Sequence[str], what: str, words: Any) -> list[TelltaleWord]:
    """Compare each group (n,) with all other texts; return its strongest suspicious words."""
    total, suspicious = np.asarray(counts.sum(axis=0)).ravel(), list[TelltaleWord]()
    for index, name in enumerate(names):
        own = group == index
        size = int(own.sum())
        if min(size, len(group) - size) < MIN_ROWS:
            continue
        present = np.asarray(counts[np.flatnonzero(own)].sum(axis=0)).ravel()
        inside, outside = present / size, (total - present) / (len(group) - size)
        order = np.argsort(outside - inside, kind="stable")[:SHOWN]
        suspicious += [
            TelltaleWord(str(words[i]), what, name, float(inside[i]), float(outside[i]))
            for i in order
            if inside[i] - outside[i] >= SUSPICIOUS
        ]
    return suspicious


def word_advice(words: Sequence[TelltaleWord]) -> list[str]:
    """Return a sentence per kind of suspicious word."""
    sentences = []
    for what, effect in (
        (
            "label",
            "a model may learn this word alone: check whether new texts contain it, and remove it if they do not",
        ),
        ("domain", "it shows where a text comes from, which a new domain does not share: consider removing it"),
    ):
        chosen = [each for each in words if each.what == what]
        if chosen:
            first = chosen[0]
            more = f" (and {len(chosen) - 1} more words)" if len(chosen) > 1 else ""
            sentences.append(
                f"The word '{first.word}'{more} nearly decides the {what}: {first.inside:.0%} of the texts of "
                f"'{first.name}' contain it and {first.outside:.0%} of the others; {effect}."
            )
    return sentences


def telltale_grid(words: Sequence[TelltaleWord]) -> Grid:
    """Show suspicious words with their shares."""
    about = (
        "Words whose presence alone nearly decides the domain or the label: percentage of the texts of the domain or "
        "label that contain the word, and of all other texts."
    )
    lines = [
        (each.word, [*map(word_cell, (each.what, each.name)), *map(share_cell, (each.inside, each.outside))])
        for each in words
    ]
    names = ("word", "decides", "name", "inside", "others")
    return Grid("Telltale words", about, names, lines, words=True)
