"""Columns read the states of earlier columns and do not change them."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.nn.recurrent.layer import (
    RecurrentLayer,
    column_positions,
    next_column,
    run_columns,
    total_width,
)

LENGTHS = torch.tensor([3, 6, 1, 6, 2])


def columns(cell: str = "lstm", **options) -> list[RecurrentLayer]:
    torch.manual_seed(0)
    module = [RecurrentLayer(5, 3, cell=cell, slots=4, slot_width=2).double()]
    for units in (2, 4):
        module.append(next_column(module, units, **options).double())
    return module


def texts() -> torch.Tensor:
    return torch.randn(5, 6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_columns_read_words_and_earlier_states(cell):
    module, x = columns(cell), texts()
    assert [c.by_input.shape[1] for c in module] == [5, 5 + 6, 5 + 6 + 4]
    assert [c.bank is None for c in module] == [False, True, True]
    result = run_columns(module, x, LENGTHS, dropout=nn.Identity())
    first = module[0](x, LENGTHS).padded()
    second = module[1](torch.cat([x, first], -1), LENGTHS).padded()
    third = module[2](torch.cat([x, first, second], -1), LENGTHS).padded()
    for states, expected in zip(result, (first, second, third), strict=True):
        assert_close(states.padded(), expected)


def test_dropout_only_on_the_newest_column():
    module, x = columns(), texts()
    calls = []

    class Once(nn.Module):
        def forward(self, words):
            calls.append(words)
            return torch.zeros_like(words)

    *earlier, newest = run_columns(module, x, LENGTHS, dropout=Once())
    assert len(calls) == 1
    for states, plain in zip(earlier, run_columns(module, x, LENGTHS, dropout=nn.Identity())[:2], strict=True):
        assert torch.equal(states.packed, plain.packed)
    expected = module[2](torch.cat([torch.zeros_like(x), *(s.padded() for s in earlier)], -1), LENGTHS)
    assert_close(newest.packed, expected.packed)


def test_segments_refer_to_the_newest_bank():
    module, x = columns(slots=3), texts()
    assert module[2].bank.width == 2
    before = run_columns(module, x, LENGTHS, dropout=nn.Identity())
    module[2].grow(5, domain=1)
    now = run_columns(module, x, LENGTHS, dropout=nn.Identity(), segments=1)
    assert all(torch.equal(a.packed, b.packed) for a, b in zip(before, now, strict=True))


def test_column_positions():
    module = columns()
    assert total_width(module) == 6 + 4 + 8
    assert column_positions(module, 2).tolist() == [*range(10), 10, 11, 12, 13, 16, 17, 18, 19]
    assert column_positions(module[:1], 1).tolist() == [0, 1, 2, 4, 5, 6]
