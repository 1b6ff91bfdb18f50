"""A prompt: a text or a pair set into a sentence with a mask; only the texts shorten, never the sentence.

n examples, t tokens
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from holdfast.core.errors import BadInput, unknown

# the first three are published with MIL for sentiment; of its template for pairs only the make is known: eight
# learned tokens that begin as an English question
PRESETS = {
    "sentiment-0": "It was {mask} . {text}",
    "sentiment-1": "Just {mask} ! {text}",
    "sentiment-2": "{text} All in all, it was {mask} .",
    "nli": "{text} ? {mask} , {text2}",
    "nli-soft": "{text} {soft:Is it true , given the text ?} {mask} , {text2}",
}
SLOTS = "{text}, {text2}, {mask} and {soft:WORDS}"
Span = tuple[str, int, int]  # kind, first character, character after the last


class Template:
    """A sentence with places for the mask and the texts; the tokens of `{soft:WORDS}` learn and begin as the words."""

    def __init__(self, text: str, tokenizer: Any, *, vocabulary: int) -> None:
        self.text, self.tokenizer, self.vocabulary = text, tokenizer, vocabulary
        self.parts = _parse(text)
        kinds = [kind for kind, _ in self.parts]
        self.texts = kinds.count("text") + kinds.count("text2")
        if kinds.count("mask") != 1 or kinds.count("text") != 1 or kinds.count("text2") > 1:
            raise BadInput(f"the template '{text}' must have one {{mask}}, one {{text}} and at most one {{text2}}")
        blank, spans = self._fill(("",) * self.texts)
        encoding = self._encode([blank])[0]
        if encoding.ids.count(tokenizer.mask_token_id) != 1:
            raise BadInput(f"the template '{text}' holds {tokenizer.mask_token} as a word: write {{mask}} alone")
        self.fixed = len(encoding.ids)  # tokens that are there whatever the text
        owners = _owners(encoding, blank, spans)
        self.soft = [i for i, owner in zip(encoding.ids, owners, strict=True) if owner == "soft"]

    def rows(self, examples: Sequence[Any], length: int) -> list[list[int]]:
        """Token ids of each example, at most `length`; learned tokens are numbered after the vocabulary."""
        filled = [self._fill((e,) if isinstance(e, str) else tuple(e)) for e in examples]
        encodings = self._encode([text for text, _ in filled])
        return [self._fit(e, text, spans, length) for e, (text, spans) in zip(encodings, filled, strict=True)]

    def _encode(self, texts: list[str]) -> list[Any]:
        return self.tokenizer(texts, padding=False, truncation=False, verbose=False).encodings

    def _fill(self, texts: tuple[str, ...]) -> tuple[str, list[Span]]:
        """The sentence with the texts in it, and where its parts are."""
        if len(texts) != self.texts:
            names = ("single texts", "pairs")
            raise BadInput(
                f"the template '{self.text}' is for {names[self.texts - 1]} but the data holds {names[len(texts) - 1]}"
            )
        made, spans = "", []
        for kind, words in self.parts:
            piece = {"mask": self.tokenizer.mask_token, "text": texts[0], "text2": texts[-1]}.get(kind, words)
            piece = piece if kind == "words" else piece.strip()
            spans.append((kind, len(made), len(made) + len(piece)))
            made += piece
        return made, spans

    def _fit(self, encoding: Any, text: str, spans: list[Span], length: int) -> list[int]:
        ids, mask = encoding.ids, self.tokenizer.mask_token_id
        if len(ids) <= length and ids.count(mask) == 1 and not self.soft:
            return ids
        owners = _owners(encoding, text, spans)
        # a mask that stands in a text is not the one to be filled in
        tokens = [(i, o) for i, o in zip(ids, owners, strict=True) if i != mask or o not in ("text", "text2")]
        sizes = {kind: sum(o == kind for _, o in tokens) for kind in ("text", "text2")}
        room = shares(sizes, length - len(tokens) + sum(sizes.values()))
        row, soft = [], self.vocabulary
        for i, owner in tokens:
            if owner in room:
                if not room[owner]:
                    continue
                room[owner] -= 1
            row.append(soft if owner == "soft" else i)
            soft += owner == "soft"
        return row


def shares(sizes: dict[str, int], room: int) -> dict[str, int]:
    """How many tokens of each text stay, the longest shortened first."""
    found, left = {}, max(0, room)
    for done, kind in enumerate(sorted(sizes, key=sizes.__getitem__)):
        found[kind] = min(sizes[kind], left // (len(sizes) - done))
        left -= found[kind]
    return found


def resolve(template: str) -> str:
    """A preset by its name, or the template itself."""
    if not isinstance(template, str):
        raise BadInput(f"a template is a text such as '{PRESETS['sentiment-0']}', not {template!r}")
    if "{" in template:
        return template
    if template not in PRESETS:
        raise unknown("template", template, PRESETS)
    return PRESETS[template]


def _parse(text: str) -> list[tuple[str, str]]:
    """(kind, words) of every part; kind is mask, text, text2, soft, or words for the sentence itself."""
    parts = []
    for piece in re.split(r"(\{[^{}]*\})", text):
        kind, _, words = piece[1:-1].partition(":")
        if not re.fullmatch(r"\{[^{}]*\}", piece):
            parts.append(("words", piece))
        elif kind in ("mask", "text", "text2") and not words:
            parts.append((kind, ""))
        elif kind == "soft" and words.strip():
            parts.append((kind, words))
        else:
            raise BadInput(f"the template '{text}' has {piece}, but only {SLOTS} can be filled in")
    if re.search(r"\S\{soft:|\{soft:[^{}]*\}\S", text):
        raise BadInput(f"the template '{text}' needs a space before and after {{soft:...}}")
    if any(sign in words for kind, words in parts if kind == "words" for sign in "{}"):
        raise BadInput(f"the template '{text}' has a brace without its partner")
    return parts


def _owners(encoding: Any, text: str, spans: list[Span]) -> list[str]:
    """The part each token belongs to; a token that reaches into the sentence is the sentence's."""
    spans = [span for span in spans if span[0] in ("text", "text2", "soft")]
    found = []
    for (start, end), added in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
        while start < end - 1 and text[start].isspace():
            start += 1  # byte-level tokens carry the space before them
        inside = [kind for kind, first, last in spans if first <= start and end <= last]
        found.append(inside[0] if inside and not added else "words")
    return found
