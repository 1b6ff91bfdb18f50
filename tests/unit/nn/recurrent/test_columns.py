"""A column reads the states of those before it at each word and leaves them as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.nn.recurrent.layer import (
    RecurrentLayer,
    column_positions,
    next_column,
    next_column_cost,
    run_columns,
    total_width,
)

LENGTHS = torch.tensor([3, 6, 1, 6, 2])


def columns(cell: str = "lstm", **options) -> list[RecurrentLayer]:
    torch.manual_seed(0)
    made = [RecurrentLayer(5, 3, cell=cell, slots=4, slot_width=2).double()]
    for units in (2, 4):
        made.append(next_column(made, units, **options).double())
    return made


def texts() -> torch.Tensor:
    return torch.randn(5, 6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_each_reads_words_and_all_states_before(cell):
    made, x = columns(cell), texts()
    assert [c.by_input.shape[1] for c in made] == [5, 5 + 6, 5 + 6 + 4]
    assert [c.bank is None for c in made] == [False, True, True]
    found = run_columns(made, x, LENGTHS, dropout=nn.Identity())
    first = made[0](x, LENGTHS).padded()
    second = made[1](torch.cat([x, first], -1), LENGTHS).padded()
    third = made[2](torch.cat([x, first, second], -1), LENGTHS).padded()
    for states, wanted in zip(found, (first, second, third), strict=True):
        assert_close(states.padded(), wanted)


def test_dropout_is_on_the_newest_ones_words_alone():
    made, x = columns(), texts()
    calls = []

    class Once(nn.Module):
        def forward(self, words):
            calls.append(words)
            return torch.zeros_like(words)

    *earlier, newest = run_columns(made, x, LENGTHS, dropout=Once())
    assert len(calls) == 1
    for states, plain in zip(earlier, run_columns(made, x, LENGTHS, dropout=nn.Identity())[:2], strict=True):
        assert torch.equal(states.packed, plain.packed)
    wanted = made[2](torch.cat([torch.zeros_like(x), *(s.padded() for s in earlier)], -1), LENGTHS)
    assert_close(newest.packed, wanted.packed)


def test_segments_are_those_of_the_newest_bank():
    made, x = columns(slots=3), texts()
    assert made[2].bank.width == 2
    before = run_columns(made, x, LENGTHS, dropout=nn.Identity())
    made[2].grow(5, domain=1)
    now = run_columns(made, x, LENGTHS, dropout=nn.Identity(), segments=1)
    assert all(torch.equal(a.packed, b.packed) for a, b in zip(before, now, strict=True))


def test_where_states_lie_after_the_newest_got_wider():
    made = columns()
    assert total_width(made) == 6 + 4 + 8
    assert column_positions(made, 2).tolist() == [*range(10), 10, 11, 12, 13, 16, 17, 18, 19]
    assert column_positions(made[:1], 1).tolist() == [0, 1, 2, 4, 5, 6]


def test_the_cost_is_the_count():
    made = columns("gru")
    assert next_column_cost(made, 7) == sum(p.numel() for p in next_column(made, 7).parameters())
