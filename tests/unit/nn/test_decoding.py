"""Greedy and beam search find what trying every answer finds, where they can."""

from __future__ import annotations

import itertools

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.nn.decoding import SpecialTokens, beam_search, check_search, greedy

PAD, BEGIN, END, A, B, C = range(6)
MARKS = SpecialTokens(begin=BEGIN, end=END, pad=PAD, silent=(PAD, BEGIN))
LONGEST = 3


def world(rows: int = 4, seed: int = 0, sharp: float = 1.5):
    """A scorer whose next word depends on all words before it: its state is a number for what was said so far."""
    chance = torch.Generator().manual_seed(seed)
    table = (sharp * torch.randn(rows, 6**LONGEST, 6, generator=chance, dtype=torch.float64)).log_softmax(-1)

    def score(last, state):
        row, told = state[0][:, 0], state[0][:, 1]
        told = torch.where(last == BEGIN, 0, told * 6 + last)
        return table[row, told], (torch.stack([row, told], 1),)

    start = torch.stack([torch.arange(rows), torch.zeros(rows, dtype=torch.long)], 1)
    return score, (start,), table


def every(table: torch.Tensor, row: int):
    """All answers of a row with the sum of their log-probabilities and their length, the end counted."""
    for n in range(1, LONGEST + 1):
        for words in itertools.product((A, B, C), repeat=n):
            told, total = 0, 0.0
            for word in words:
                total += float(table[row, told, word])
                told = told * 6 + word
            if n < LONGEST:
                yield (*words, END), total + float(table[row, told, END]), n + 1
            else:
                yield words, total, n


def answer(row: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(word) for word in row if word != PAD)


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_the_best_of_all_answers(power, seed):
    score, state, table = world(seed=seed)
    found = beam_search(score, state, MARKS, longest=LONGEST, beam=40, length_power=power)
    for row in range(4):
        best = max(every(table, row), key=lambda each: each[1] / each[2] ** power)
        assert answer(found[row]) == tuple(word for word in best[0] if word != END)


@pytest.mark.parametrize("seed", range(5))
def test_one_beam_is_greedy_and_greedy_takes_the_best_next_word(seed):
    score, state, table = world(seed=seed)
    found = greedy(score, state, MARKS, longest=LONGEST)
    for power in (0.0, 1.0):
        assert torch.equal(beam_search(score, state, MARKS, longest=LONGEST, beam=1, length_power=power), found)
    for row in range(4):
        told, said = 0, []
        for i in range(LONGEST):
            word = max((A, B, C) if i == 0 else (END, A, B, C), key=lambda w: float(table[row, told, w]))
            if word == END:
                break
            said.append(word)
            told = told * 6 + word
        assert answer(found[row]) == tuple(said)


def test_a_wider_beam_finds_no_worse_answers_here_and_some_better_ones():
    score, state, table = world(rows=60, sharp=1.0)
    totals = []
    for beam in (1, 2, 40):
        found = beam_search(score, state, MARKS, longest=LONGEST, beam=beam)
        known = [{tuple(w for w in words if w != END): total for words, total, _ in every(table, i)} for i in range(60)]
        totals.append(torch.tensor([known[i][answer(found[i])] for i in range(60)]))
    assert bool((totals[2] >= totals[0] - 1e-9).all())
    assert float(totals[0].mean()) < float(totals[1].mean()) <= float(totals[2].mean())


def test_rows_are_searched_each_by_itself():
    score, state, _ = world(rows=6)
    together = beam_search(score, state, MARKS, longest=LONGEST, beam=3)
    for row in range(6):
        alone = beam_search(score, (state[0][row : row + 1],), MARKS, longest=LONGEST, beam=3)
        assert torch.equal(alone[0], together[row])


def test_an_answer_has_a_word_and_no_marks_and_nothing_after_its_end():
    def score(last, state):  # wants to end, or else to say what is never said
        told = torch.full((len(last), 6), -9.0)
        told[:, END], told[:, PAD], told[:, BEGIN], told[:, C] = 0.0, -0.5, -0.5, -3.0
        return told.log_softmax(-1), state

    state = (torch.zeros(2, 1),)
    for found in (
        greedy(score, state, MARKS, longest=4),
        beam_search(score, state, MARKS, longest=4, beam=2, length_power=0.0),
    ):
        assert found.tolist() == [[C, PAD, PAD, PAD]] * 2


def test_without_an_end_it_stops_at_the_longest():
    def score(last, state):
        return torch.tensor([-9.0, -9.0, -9.0, -1.0, -9.0, -9.0]).expand(len(last), 6), state

    assert greedy(score, (torch.zeros(1, 1),), MARKS, longest=4).tolist() == [[A] * 4]
    assert beam_search(score, (torch.zeros(1, 1),), MARKS, longest=4, beam=2, length_power=1.0).tolist() == [[A] * 4]


def test_bad_input():
    for beam, longest in ((0, 3), (2, 0)):
        with pytest.raises(BadInput, match="at least 1"):
            check_search(beam, longest)
