"""Positions in tokenized texts: first tokens of words, windows of long texts, the text next to a question.

Shapes: b batch, t tokens, k positions, d width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import Backbone

FIRST = 0  # position of the first token, which represents the complete text, or no position in it


@runtime_checkable
class TokenEncoder(Protocol):
    """A text encoder that returns token states where its inputs contain positions."""

    tokenizer: Any  # a fast tokenizer
    length: int  # maximum number of tokens
    template: Any  # None if texts are encoded as they are
    typed: bool  # whether token types mark the two texts of a pair


def token_encoder(encoder: Backbone, task: str) -> TokenEncoder:
    """Return the encoder if it returns states of tokens of plain texts; raise otherwise."""
    if not isinstance(encoder, TokenEncoder):
        raise BadInput(f"the task {task} needs token states: use a text encoder such as hf:roberta-base")
    if encoder.template is not None:
        raise BadInput(f"the task {task} does not support encoder.template: remove this setting")
    return encoder


def tokenize(encoder: TokenEncoder, *texts: Any, **options: Any) -> Any:
    """Call the tokenizer with the encoder's maximum length, for lists of ids without padding."""
    return encoder.tokenizer(*texts, max_length=encoder.length, padding=False, return_attention_mask=False, **options)


def states_at(states: Tensor, at: Tensor) -> Tensor:
    """(b, k, d) states (b, t, d) at positions (b, k); the first token's state where a position is -1."""
    return states.gather(1, at.clamp(min=FIRST)[..., None].expand(-1, -1, states.shape[-1]))


def first_tokens(encoder: TokenEncoder, sentences: Sequence[Sequence[str]]) -> tuple[TokenStore, list[list[bool]]]:
    """Build sentences with the position of each word's first token, and whether each word survived truncation.

    Words are joined by spaces and located by their character offsets, so every fast tokenizer works.
    """
    texts = [" ".join(words) for words in sentences]
    encoded = tokenize(encoder, texts, truncation=True, return_token_type_ids=False, return_offsets_mapping=True)
    starts = [_starts(words, spans) for words, spans in zip(sentences, encoded["offset_mapping"], strict=True)]
    positions = [[FIRST if start is None else start for start in row] for row in starts]
    store = TokenStore.build(encoded["input_ids"], pad=encoder.tokenizer.pad_token_id, at=positions)
    return store, [[start is not None for start in row] for row in starts]


def _starts(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return per word of a text joined by spaces the first token with one of its characters."""
    starts: list[int | None] = []
    token, begin = 0, 0
    for word in words:
        end = begin + len(word)
        while token < len(spans) and spans[token][1] <= begin:  # also skips tokens without characters, as [CLS]
            token += 1
        inside = token < len(spans) and spans[token][0] < end
        starts.append(token if inside else None)
        begin = end + 1
    return starts


def windows(encoder: TokenEncoder, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
    """Return the token ids of consecutive windows that cover the texts completely, and the windows per text."""
    options = {"return_overflowing_tokens": True, "return_token_type_ids": False}
    encoded = tokenize(encoder, list(texts), truncation=True, stride=0, **options)
    return encoded["input_ids"], _counts(encoded["overflow_to_sample_mapping"], len(texts))


@dataclass(frozen=True)
class Window:
    """A window of the text next to a question."""

    owner: int  # index of the question
    spans: np.ndarray  # (k - 1, 2) first and last + 1 character per token; the window's first position has none


def question_windows(
    encoder: TokenEncoder, pairs: Sequence[tuple[str, str]], *, longest: int, overlap: int | None = None
) -> tuple[TokenStore, list[Window], list[int]]:
    """Split (question, text) pairs into windows; return the inputs, the windows and the windows per pair.

    Questions are cut to `longest` tokens and repeated in each window. Windows of the text overlap by `overlap` tokens,
    by default a third of the encoder's length.
    """
    tokenizer = encoder.tokenizer
    special = tokenizer.num_special_tokens_to_add(pair=True)
    longest = max(1, min(longest, encoder.length // 2 - special))
    room = encoder.length - longest - special  # minimum number of text tokens per window
    if overlap is not None and overlap >= room:
        raise BadInput(
            f"task.stride {overlap} is too large for encoder.length {encoder.length} and questions of {longest} "
            f"tokens: choose at most {room - 1}"
        )
    encoded = tokenize(
        encoder,
        [_truncated(tokenizer, question, longest) for question, _ in pairs],
        [text for _, text in pairs],
        truncation="only_second",
        stride=min(encoder.length // 3, room - 1) if overlap is None else overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=encoder.typed,
    )
    parsed, positions = [], []
    for i, owner in enumerate(encoded["overflow_to_sample_mapping"]):
        in_text = [position for position, sequence in enumerate(encoded.sequence_ids(i)) if sequence == 1]
        positions.append([FIRST, *in_text])
        parsed.append(Window(owner, np.asarray(encoded["offset_mapping"][i], dtype=np.int32)[in_text]))
    types = encoded["token_type_ids"] if encoder.typed else None
    store = TokenStore.build(encoded["input_ids"], pad=tokenizer.pad_token_id, types=types, at=positions)
    return store, parsed, _counts(encoded["overflow_to_sample_mapping"], len(pairs))


def _truncated(tokenizer: Any, text: str, longest: int) -> str:
    spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return text if len(spans) <= longest else text[: spans[longest - 1][1]]


def _counts(owners: Sequence[int], texts: int) -> list[int]:
    return torch.bincount(torch.tensor(owners, dtype=torch.long), minlength=texts).tolist()
