"""Beam search compared with exhaustive search."""

from __future__ import annotations

import itertools

import pytest
import torch

from lab.dialogue.decoding import SpecialTokens, beam_search

PAD, BEGIN, END, A, B, C = range(6)
MARKS = SpecialTokens(begin=BEGIN, end=END, pad=PAD, silent=(PAD, BEGIN))
LONGEST = 3


def world(rows: int = 4, seed: int = 0, sharp: float = 1.5):
    """Return a scorer whose next word depends on all earlier words; its state encodes them as a number."""
    rng = torch.Generator().manual_seed(seed)
    table = (sharp * torch.randn(rows, 6**LONGEST, 6, generator=rng, dtype=torch.float64)).log_softmax(-1)

    def score(last, state):
        row, message = state[0][:, 0], state[0][:, 1]
        message = torch.where(last == BEGIN, 0, message * 6 + last)
        return table[row, message], (torch.stack([row, message], 1),)

    start = torch.stack([torch.arange(rows), torch.zeros(rows, dtype=torch.long)], 1)
    return score, (start,), table


def every(table: torch.Tensor, row: int):
    """Yield all responses of a row with the sum of their log-probabilities and their length, including the end."""
    for n in range(1, LONGEST + 1):
        for words in itertools.product((A, B, C), repeat=n):
            message, total = 0, 0.0
            for word in words:
                total += float(table[row, message, word])
                message = message * 6 + word
            if n < LONGEST:
                yield (*words, END), total + float(table[row, message, END]), n + 1
            else:
                yield words, total, n


def answer(row: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(word) for word in row if word != PAD)


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_wide_beam_finds_the_best_response(power, seed):
    score, state, table = world(seed=seed)
    result = beam_search(score, state, MARKS, longest=LONGEST, beam=40, length_power=power)
    for row in range(4):
        best = max(every(table, row), key=lambda each: each[1] / each[2] ** power)
        assert answer(result[row]) == tuple(word for word in best[0] if word != END)


@pytest.mark.parametrize("seed", range(5))
def test_beam_of_one_chooses_the_most_probable_next_word(seed):
    score, state, table = world(seed=seed)
    found = [beam_search(score, state, MARKS, longest=LONGEST, beam=1, length_power=power) for power in (0.0, 1.0)]
    assert torch.equal(*found)
    for row in range(4):
        message, said = 0, []
        for i in range(LONGEST):
            word = max((A, B, C) if i == 0 else (END, A, B, C), key=lambda w: float(table[row, message, w]))
            if word == END:
                break
            said.append(word)
            message = message * 6 + word
        assert answer(found[0][row]) == tuple(said)


def test_response_has_a_word_and_no_special_tokens():
    def score(last, state):  # prefers the end, then tokens that are never generated
        message = torch.full((len(last), 6), -9.0)
        message[:, END], message[:, PAD], message[:, BEGIN], message[:, C] = 0.0, -0.5, -0.5, -3.0
        return message.log_softmax(-1), state

    state = (torch.zeros(2, 1),)
    for beam in (1, 2):
        assert beam_search(score, state, MARKS, longest=4, beam=beam).tolist() == [[C, PAD, PAD, PAD]] * 2


def test_search_stops_at_the_maximal_length():
    def score(last, state):
        return torch.tensor([-9.0, -9.0, -9.0, -1.0, -9.0, -9.0]).expand(len(last), 6), state

    for beam in (1, 2):
        found = beam_search(score, (torch.zeros(1, 1),), MARKS, longest=4, beam=beam, length_power=1.0)
        assert found.tolist() == [[A] * 4]
