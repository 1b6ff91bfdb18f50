"""Places in tokenized texts: the first token of each word, windows of a long text, the text beside a question.

b batch, t tokens, k places, d width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import Backbone

FIRST = 0  # the place of the first token, which stands for a whole text or for nothing in it


@runtime_checkable
class GivesStates(Protocol):
    """A text encoder whose features are states at places, where its inputs ask for places."""

    tokenizer: Any  # a fast one
    length: int  # the most tokens of a text
    template: Any  # None where texts are taken as they are
    typed: bool  # whether the two texts of a pair are told apart


def giving_states(encoder: Backbone, task: str) -> GivesStates:
    """The encoder, if it gives states at places of plain texts; else one sentence."""
    if not isinstance(encoder, GivesStates):
        raise BadInput(f"the task {task} needs a state of each token: use a text encoder such as hf:roberta-base")
    if encoder.template is not None:
        raise BadInput(f"the task {task} takes texts as they are: leave encoder.template out")
    return encoder


def states_at(states: Tensor, at: Tensor) -> Tensor:
    """(b, k, d) the states (b, t, d) at these places (b, k); where there is none, that of the first token."""
    return states.gather(1, at.clamp(min=FIRST)[..., None].expand(-1, -1, states.shape[-1]))


def first_tokens(encoder: GivesStates, sentences: Sequence[Sequence[str]]) -> tuple[TokenStore, list[list[bool]]]:
    """Sentences with the place of each word's first token, and which words have one: the end of a long one is cut.

    The words are joined by spaces and found again by their characters, so any tokenizer will do.
    """
    found = encoder.tokenizer(
        [" ".join(words) for words in sentences],
        truncation=True,
        max_length=encoder.length,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=True,
    )
    places, there = [], []
    for words, spans in zip(sentences, found["offset_mapping"], strict=True):
        at = _starts_of(words, spans)
        places.append([FIRST if place is None else place for place in at])
        there.append([place is not None for place in at])
    return TokenStore.build(found["input_ids"], pad=encoder.tokenizer.pad_token_id, at=places), there


def _starts_of(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """For each word of a text joined by spaces the first token with a character of it."""
    at: list[int | None] = []
    token, begin = 0, 0
    for word in words:
        end = begin + len(word)
        while token < len(spans) and spans[token][1] <= begin:  # also tokens that cover nothing, as [CLS]
            token += 1
        inside = token < len(spans) and spans[token][0] < end
        at.append(token if inside else None)
        begin = end + 1
    return at


def windows(encoder: GivesStates, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
    """Token ids of all windows of the texts, nothing cut off, and how many each text has."""
    found = encoder.tokenizer(
        list(texts),
        truncation=True,
        max_length=encoder.length,
        stride=0,
        padding=False,
        return_overflowing_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    return found["input_ids"], _counts(found["overflow_to_sample_mapping"], len(texts))


@dataclass(frozen=True)
class Window:
    """One window on the text beside a question: the characters that each of its tokens covers."""

    owner: int  # which question
    spans: np.ndarray  # (k - 1, 2) from where to before where; the first place of a window is no part of the text


def beside_questions(
    encoder: GivesStates, pairs: Sequence[tuple[str, str]], *, longest: int, overlap: int | None = None
) -> tuple[TokenStore, list[Window], list[int]]:
    """(question, text) pairs in windows, and how many each pair has; by default they overlap by a third of the length.

    Of a question at most `longest` tokens are taken; the text is what moves.
    """
    tokenizer = encoder.tokenizer
    most = max(1, min(longest, encoder.length // 2 - tokenizer.num_special_tokens_to_add(pair=True)))
    room = encoder.length - most - tokenizer.num_special_tokens_to_add(pair=True)  # for the text, at least
    if overlap is not None and overlap >= room:
        raise BadInput(
            f"with encoder.length {encoder.length} and {most} tokens for a question, windows overlap by at most "
            f"{room - 1} tokens, not by a task.stride of {overlap}"
        )
    asked = [_cut(tokenizer, question, most) for question, _ in pairs]
    found = tokenizer(
        asked,
        [text for _, text in pairs],
        truncation="only_second",
        max_length=encoder.length,
        stride=min(encoder.length // 3, room - 1) if overlap is None else overlap,
        padding=False,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=encoder.typed,
    )
    made, places = [], []
    for i, owner in enumerate(found["overflow_to_sample_mapping"]):
        second = [at for at, part in enumerate(found.sequence_ids(i)) if part == 1]
        places.append([FIRST, *second])
        made.append(Window(owner, np.asarray(found["offset_mapping"][i], dtype=np.int32)[second]))
    store = TokenStore.build(
        found["input_ids"],
        pad=tokenizer.pad_token_id,
        types=found["token_type_ids"] if encoder.typed else None,
        at=places,
    )
    return store, made, _counts(found["overflow_to_sample_mapping"], len(pairs))


def _cut(tokenizer: Any, text: str, most: int) -> str:
    spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return text if len(spans) <= most else text[: spans[most - 1][1]]


def _counts(owners: Sequence[int], texts: int) -> list[int]:
    return torch.bincount(torch.tensor(owners, dtype=torch.long), minlength=texts).tolist()
