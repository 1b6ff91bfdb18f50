"""Generate responses word by word by beam search, with any network that scores the next word.

Shapes: b rows, k beams, v words, t steps.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from holdfast.core.inputs import Inputs

State = tuple[Tensor, ...]  # rows first
Score = Callable[[Tensor, State], tuple[Tensor, State]]  # last words (n,) -> log-probabilities (n, v) of the next ones


@runtime_checkable
class Responder(Protocol):
    """A backbone that responds to messages and knows the reference responses.

    Responses and references are words (b, t), padded; in references, -1 is a word that is never generated. The
    semantic similarity of response and reference is (b,), or None if it cannot be computed.
    """

    def answer(self, x: Inputs) -> Tensor: ...
    def references(self, x: Inputs) -> Tensor: ...
    def similarity(self, answers: Tensor, x: Inputs) -> Tensor | None: ...
    def texts(self, answers: Tensor) -> list[str]: ...


@runtime_checkable
class NextWords(Protocol):
    """A backbone that predicts every word of the reference response from the words before it."""

    # (b, t) predicted words, -1 after the end of a response
    def next_words(self, x: Inputs) -> Tensor: ...


class SpecialTokens(NamedTuple):
    """Token that starts a response, token that ends it, padding, and all tokens that are never generated."""

    begin: int
    end: int
    pad: int
    silent: tuple[int, ...]


def beam_search(
    score: Score, state: State, tokens: SpecialTokens, *, longest: int, beam: int, length_power: float = 0.0
) -> Tensor:
    """Return the responses (b, longest) with the best sum of log-probabilities / length ** length_power.

    With one beam, the most probable next word is chosen. A response has at least one word; the length includes the end
    token. Finished responses stay in the beam and compete with unfinished ones.
    """
    b, device = len(state[0]), state[0].device
    state = tuple(tensor.repeat_interleave(beam, 0) for tensor in state)
    last = torch.full((b * beam,), tokens.begin, device=device)
    total = torch.full((b, beam), -torch.inf, device=device)
    total[:, 0] = 0.0  # all beams start equal, so only one is active
    length, done = torch.zeros_like(total), torch.zeros_like(total, dtype=torch.bool)
    words = torch.full((b, beam, longest), tokens.pad, device=device)
    first = torch.arange(b, device=device)[:, None] * beam  # (b, 1) index of a row's first beam
    for i in range(longest):
        scores, state = score(last, state)
        scores = _mask_silent(scores, tokens, first=i == 0).unflatten(0, (b, beam))  # (b, k, v)
        scores = scores.masked_fill(done[..., None], -torch.inf)
        scores[..., tokens.pad] = torch.where(done, 0.0, scores[..., tokens.pad])  # finished beams do not change
        length = length + ~done
        sums = total[..., None] + scores
        at = (sums / length[..., None] ** length_power).flatten(1).topk(beam).indices  # (b, k)
        origin, word = at // scores.shape[-1], at % scores.shape[-1]
        total, length, done = sums.flatten(1).gather(1, at), length.gather(1, origin), done.gather(1, origin)
        done = done | (word == tokens.end)
        words = words.gather(1, origin[..., None].expand_as(words))
        words[..., i] = torch.where(done, tokens.pad, word)
        state = tuple(tensor.index_select(0, (first + origin).flatten()) for tensor in state)
        last = word.flatten()
        if bool(done.all()):
            break
    best = (total / length**length_power).argmax(1)
    return words[torch.arange(b, device=device), best]


def _mask_silent(scores: Tensor, tokens: SpecialTokens, *, first: bool) -> Tensor:
    """Mask log-probabilities (n, v) of tokens that are never generated, and of the end before the first word."""
    silent = [*tokens.silent, *([tokens.end] if first else [])]
    return scores.index_fill(-1, torch.tensor(silent, device=scores.device), -torch.inf)
