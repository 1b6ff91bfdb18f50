"""The attention block: it is the naive one in values and gradients, whatever its queries see, and as large as told."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from holdfast.bench.hma import read_repeated
from holdfast.core.errors import BadInput
from holdfast.nn.memory.block import BlockSettings, MemoryBlock, concatenate

WIDTH, HEADS = 12, 3
CHANCE = torch.Generator().manual_seed(0)
X = torch.randn(5, WIDTH, generator=CHANCE)
ROWS = torch.randn(7, WIDTH, generator=CHANCE)


def block(**options) -> MemoryBlock:
    torch.manual_seed(1)
    made = MemoryBlock(WIDTH, BlockSettings(heads=HEADS, dropout=0.0, **options))
    with torch.no_grad():  # no parameter at a value that would hide a mistake
        for p in made.parameters():
            p += 0.1 * torch.randn_like(p)
    return made


def naive(made: MemoryBlock, x, sources, scale):
    """Query by query and head by head, each with its own copy of everything that it sees (m, d)."""
    out = []
    for one, source in zip(x, sources, strict=True):
        query = made.query(made.norm_query(one))
        seen = made.norm_source(source)
        keys, values = seen @ made.key_value.weight[:WIDTH].T, seen @ made.key_value.weight[WIDTH:].T
        keys, values = keys + made.key_value.bias[:WIDTH], values + made.key_value.bias[WIDTH:]
        heads = []
        for q, k, v in zip(query.chunk(HEADS), keys.chunk(HEADS, 1), values.chunk(HEADS, 1), strict=True):
            weights = torch.stack([(q * each).sum() * scale for each in k]).softmax(0)
            heads.append((weights[:, None] * v).sum(0))
        state = made.residual(one) + made.out(torch.cat(heads))
        hidden = torch.nn.functional.gelu(made.feed[0](made.norm_out(state)))
        out.append(state + made.feed[3](hidden))
    return torch.stack(out)


def both(made, fast, slow):
    """Values and all gradients of two ways to the same output."""
    found = []
    for way in (fast, slow):
        out = way()
        target = torch.linspace(-1, 1, out.numel()).view_as(out)
        found.append((out, torch.autograd.grad((out * target).sum(), list(made.parameters()), allow_unused=True)))
    assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
    for a, b in zip(found[0][1], found[1][1], strict=True):
        assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"residual": "linear", "scale": "full", "project": True}], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_it_is_the_naive_block(options, training, own):
    made = block(**options).train(training)
    scale = 1 / math.sqrt(WIDTH if options else WIDTH // HEADS)
    sources = [torch.cat([x[None], ROWS]) if own else ROWS for x in X]
    both(made, lambda: made(X, made.keys_values(ROWS), with_self=own)[0], lambda: naive(made, X, sources, scale))


def test_hidden_rows_are_as_if_they_were_not_there():
    made, there = block(), torch.tensor([True, False, True, True, False, False, True])
    bias = torch.zeros(7).masked_fill(~there, -torch.inf)
    sources = [torch.cat([x[None], ROWS[there]]) for x in X]
    both(
        made,
        lambda: made(X, made.keys_values(ROWS), with_self=True, bias=bias)[0],
        lambda: naive(made, X, sources, 1 / math.sqrt(WIDTH // HEADS)),
    )
    nothing, weights = made(X, made.keys_values(ROWS), with_self=True, bias=torch.full((7,), -torch.inf))
    assert_close(nothing, made(X, None, with_self=True)[0])
    assert_close(weights[..., 0], torch.ones(5, HEADS))


def test_the_form_that_it_is_measured_against_is_the_same_read():
    made = block().eval()
    both(made, lambda: made(X, made.keys_values(ROWS), with_self=True)[0], lambda: read_repeated(made, X, ROWS))


def test_weights_are_those_of_the_query_and_then_of_the_rows():
    made = block().eval()
    _, weights = made(X, made.keys_values(ROWS), with_self=True)
    assert weights.shape == (5, HEADS, 8)
    assert_close(weights.sum(-1), torch.ones(5, HEADS))
    _, with_it_among_them = made(X, made.keys_values(torch.cat([X[:1], ROWS])), with_self=False)
    assert_close(weights[0], with_it_among_them[0])
    assert made.train()(X, made.keys_values(ROWS), with_self=False)[1] is None  # a fused kernel holds none


def test_rows_of_several_lots_are_seen_together():
    made = block().eval()
    lots = concatenate(made.keys_values(ROWS[:3]), None, made.keys_values(ROWS[3:]))
    assert_close(made(X, lots, with_self=False)[0], made(X, made.keys_values(ROWS), with_self=False)[0])
    assert concatenate(None) is None


def test_its_size_is_the_published_one():
    d = 832
    with torch.device("meta"):
        count = sum(p.numel() for p in MemoryBlock(d, BlockSettings()).parameters())
    assert count == 3 * (d * d + d) + (8 * d * d + 5 * d) + 6 * d
    assert count == 7_626_112


def test_dropout_is_there_in_training_alone():
    torch.manual_seed(0)
    made = MemoryBlock(WIDTH, BlockSettings(heads=HEADS, dropout=0.5))
    assert not torch.equal(made(X, None, with_self=True)[0], made(X, None, with_self=True)[0])
    made.eval()
    assert torch.equal(made(X, None, with_self=True)[0], made(X, None, with_self=True)[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heads": 5}, "neck.heads.* 12, got 5"),
        ({"heads": 0}, "neck.heads.*got 0"),
        ({"residual": "value"}, "unknown residual 'value'"),
        ({"scale": "half"}, "unknown scale 'half'"),
        ({"dropout": 1.0}, "dropout.*1.0"),
    ],
)
def test_wrong_options_get_one_sentence(options, told):
    with pytest.raises(BadInput, match=told):
        MemoryBlock(WIDTH, BlockSettings(**{"heads": HEADS, **options}))
