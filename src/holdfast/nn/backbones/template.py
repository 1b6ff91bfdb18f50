"""Prompt templates: a text or pair inside a sentence with a mask; long texts are cut, the sentence never is."""

import re
from collections.abc import Sequence
from typing import Any

from holdfast.core.errors import BadInput, check_known

# the first three are published with MIL for sentiment; its template for pairs is described, not listed: eight learned
# tokens that start as an English question
PRESETS = {
    "sentiment-0": "It was {mask} . {text}",
    "sentiment-1": "Just {mask} ! {text}",
    "sentiment-2": "{text} All in all, it was {mask} .",
    "nli": "{text} ? {mask} , {text2}",
    "nli-soft": "{text} {soft:Is it true , given the text ?} {mask} , {text2}",
}
FIELDS = "{text}, {text2}, {mask} and {soft:WORDS}"
Span = tuple[str, int, int]  # kind, first character, last + 1


class Template:
    """A sentence with a mask and one or two texts; the tokens of `{soft:WORDS}` are trained, starting as the words."""

    def __init__(self, text: str, tokenizer: Any, *, vocabulary: int) -> None:
        self.text, self.tokenizer, self.vocabulary = text, tokenizer, vocabulary
        self.pieces = _parse(text)
        kinds = [kind for kind, _ in self.pieces]
        self.texts = kinds.count("text") + kinds.count("text2")
        if kinds.count("mask") != 1 or kinds.count("text") != 1 or kinds.count("text2") > 1:
            raise BadInput(f"the template '{text}' must have one {{mask}}, one {{text}} and at most one {{text2}}")
        blank, spans = self._fill(("",) * self.texts)
        encoding = self._encode([blank])[0]
        if encoding.ids.count(tokenizer.mask_token_id) != 1:
            raise BadInput(f"the template '{text}' contains {tokenizer.mask_token} as a word: write {{mask}} only")
        self.fixed = len(encoding.ids)  # number of tokens without the texts
        owners = _owners(encoding, blank, spans)
        self.soft = [i for i, owner in zip(encoding.ids, owners, strict=True) if owner == "soft"]

    def rows(self, examples: Sequence[Any], length: int) -> list[list[int]]:
        """Return the token ids per example, at most `length`; ids of trained tokens follow the vocabulary."""
        filled = [self._fill((e,) if isinstance(e, str) else tuple(e)) for e in examples]
        encodings = self._encode([text for text, _ in filled])
        return [self._fit(e, text, spans, length) for e, (text, spans) in zip(encodings, filled, strict=True)]

    def _encode(self, texts: list[str]) -> list[Any]:
        return self.tokenizer(texts, padding=False, truncation=False, verbose=False).encodings

    def _fill(self, texts: tuple[str, ...]) -> tuple[str, list[Span]]:
        """Return the filled sentence and the spans of its pieces."""
        if len(texts) != self.texts:
            names = ("single texts", "pairs")
            expected, got = names[self.texts - 1], names[len(texts) - 1]
            raise BadInput(f"the template '{self.text}' is for {expected} but the data contains {got}")
        sentence, spans = "", []
        for kind, words in self.pieces:
            piece = {"mask": self.tokenizer.mask_token, "text": texts[0], "text2": texts[-1]}.get(kind, words)
            piece = piece if kind == "words" else piece.strip()
            spans.append((kind, len(sentence), len(sentence) + len(piece)))
            sentence += piece
        return sentence, spans

    def _fit(self, encoding: Any, text: str, spans: list[Span], length: int) -> list[int]:
        ids, mask = encoding.ids, self.tokenizer.mask_token_id
        if len(ids) <= length and ids.count(mask) == 1 and not self.soft:
            return ids
        owners = _owners(encoding, text, spans)
        # a mask inside a text is not the one to predict
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
    """Return the number of tokens to keep per text; the longest text is shortened first."""
    counts, left = {}, max(0, room)
    for done, kind in enumerate(sorted(sizes, key=sizes.__getitem__)):
        counts[kind] = min(sizes[kind], left // (len(sizes) - done))
        left -= counts[kind]
    return counts


def resolve(template: str) -> str:
    """Return a preset by name, or the template itself."""
    if not isinstance(template, str):
        raise BadInput(f"encoder.template must be a text such as '{PRESETS['sentiment-0']}', got {template!r}")
    if "{" in template:
        return template
    check_known("template", template, PRESETS)
    return PRESETS[template]


def _parse(text: str) -> list[tuple[str, str]]:
    """Return (kind, words) per piece; kind is mask, text, text2, soft, or words for the sentence itself."""
    pieces = []
    for piece in re.split(r"(\{[^{}]*\})", text):
        kind, _, words = piece[1:-1].partition(":")
        if not re.fullmatch(r"\{[^{}]*\}", piece):
            pieces.append(("words", piece))
        elif kind in ("mask", "text", "text2") and not words:
            pieces.append((kind, ""))
        elif kind == "soft" and words.strip():
            pieces.append((kind, words))
        else:
            raise BadInput(f"the template '{text}' has the unknown field {piece}: use {FIELDS}")
    if re.search(r"\S\{soft:|\{soft:[^{}]*\}\S", text):
        raise BadInput(f"the template '{text}' needs a space before and after {{soft:...}}")
    if any(sign in words for kind, words in pieces if kind == "words" for sign in "{}"):
        raise BadInput(f"the template '{text}' has an unmatched brace")
    return pieces


def _owners(encoding: Any, text: str, spans: list[Span]) -> list[str]:
    """Return the piece each token belongs to; a token that overlaps the sentence belongs to it."""
    spans = [span for span in spans if span[0] in ("text", "text2", "soft")]
    owners = []
    for (start, end), added in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
        while start < end - 1 and text[start].isspace():
            start += 1  # byte-level tokens include the preceding space
        inside = [kind for kind, first, last in spans if first <= start and end <= last]
        owners.append(inside[0] if inside and not added else "words")
    return owners
