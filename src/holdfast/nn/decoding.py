"""Answers word by word, greedy or by beam search, from any network that scores the next word.

b rows, k beams, v words, t steps
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs

State = tuple[Tensor, ...]  # rows first
Score = Callable[[Tensor, State], tuple[Tensor, State]]  # words (n,) just said -> log-probabilities (n, v) of the next


@runtime_checkable
class Responder(Protocol):
    """A backbone that answers messages, and knows what answer was wanted."""

    def answer(self, x: Inputs) -> Tensor:
        """(b, t) the words of an answer to each message; t is always the same, and padding follows the last word."""
        ...

    def references(self, x: Inputs) -> Tensor:
        """(b, t) the words of the response that each example brings, padded; -1 is a word that is never said."""
        ...

    def similarity(self, answers: Tensor, x: Inputs) -> Tensor | None:
        """(b,) how near answer and response are in meaning; None where nothing tells."""
        ...

    def texts(self, answers: Tensor) -> list[str]:
        """The answers as texts."""
        ...


class SpecialTokens(NamedTuple):
    """The words that are no words: what comes before the first, what ends an answer, and what is never said."""

    begin: int
    end: int
    pad: int
    silent: tuple[int, ...]


def check_search(beam: int, longest: int) -> None:
    """One sentence where no answer could be searched for."""
    if beam < 1 or longest < 1:
        raise BadInput(f"beam and longest must be at least 1, not {beam} and {longest}")


def greedy(score: Score, state: State, marks: SpecialTokens, *, longest: int) -> Tensor:
    """(b, longest) the best next word again and again, until the end; padding follows it.

    An answer has at least one word, as every response has.
    """
    last = torch.full_like(state[0][:, 0], marks.begin, dtype=torch.long)
    done = torch.zeros_like(last, dtype=torch.bool)
    found = torch.full((len(last), longest), marks.pad, device=last.device)
    for i in range(longest):
        told, state = score(last, state)
        last = _said(told, marks, first=i == 0).argmax(-1)
        done |= last == marks.end
        if bool(done.all()):
            break
        found[:, i] = torch.where(done, marks.pad, last)
    return found


def beam_search(
    score: Score, state: State, marks: SpecialTokens, *, longest: int, beam: int, length_power: float = 0.0
) -> Tensor:
    """(b, longest) the answer with the best sum of log-probabilities / length ** length_power among `beam` at a time.

    The length counts the end. Answers that have ended stay in the beam and compete with those that go on.
    """
    b, device = len(state[0]), state[0].device
    state = tuple(part.repeat_interleave(beam, 0) for part in state)
    last = torch.full((b * beam,), marks.begin, device=device)
    total = torch.full((b, beam), -torch.inf, device=device)
    total[:, 0] = 0.0  # the beams begin alike, so one of them stands for all
    length, done = torch.zeros_like(total), torch.zeros_like(total, dtype=torch.bool)
    words = torch.full((b, beam, longest), marks.pad, device=device)
    first = torch.arange(b, device=device)[:, None] * beam  # (b, 1) where a row's beams lie among all
    for i in range(longest):
        told, state = score(last, state)
        told = _said(told, marks, first=i == 0).unflatten(0, (b, beam))  # (b, k, v)
        told = told.masked_fill(done[..., None], -torch.inf)
        told[..., marks.pad] = torch.where(done, 0.0, told[..., marks.pad])  # what has ended stays as it is
        length = length + ~done
        sums = total[..., None] + told
        at = (sums / length[..., None] ** length_power).flatten(1).topk(beam).indices  # (b, k)
        origin, word = at // told.shape[-1], at % told.shape[-1]
        total, length, done = sums.flatten(1).gather(1, at), length.gather(1, origin), done.gather(1, origin)
        done = done | (word == marks.end)
        words = words.gather(1, origin[..., None].expand_as(words))
        words[..., i] = torch.where(done, marks.pad, word)
        state = tuple(part.index_select(0, (first + origin).flatten()) for part in state)
        last = word.flatten()
        if bool(done.all()):
            break
    best = (total / length**length_power).argmax(1)
    return words[torch.arange(b, device=device), best]


def _said(told: Tensor, marks: SpecialTokens, *, first: bool) -> Tensor:
    """Log-probabilities (n, v) without the words that are never said, nor an end before the first word."""
    silent = [*marks.silent, *([marks.end] if first else [])]
    return told.index_fill(-1, torch.tensor(silent, device=told.device), -torch.inf)
