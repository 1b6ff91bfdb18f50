"""The attention block equals a naive loop in values and gradients."""

import math

import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.memory.block import BlockSettings, MemoryBlock
from lab.benchmarks.hma import read_repeated
from tests.gradients import assert_same

WIDTH, HEADS = 12, 3
RNG = torch.Generator().manual_seed(0)
X = torch.randn(5, WIDTH, generator=RNG)
ROWS = torch.randn(7, WIDTH, generator=RNG)


def block() -> MemoryBlock:
    torch.manual_seed(1)
    module = MemoryBlock(WIDTH, BlockSettings(heads=HEADS, dropout=0.0))
    with torch.no_grad():  # avoid values that hide mistakes
        for p in module.parameters():
            p += 0.1 * torch.randn_like(p)
    return module


def naive(module: MemoryBlock, x, sources, scale):
    """Compute query by query and head by head, each with its own rows (m, d)."""
    out = []
    for one, source in zip(x, sources, strict=True):
        query = module.query(module.norm_query(one))
        seen = module.norm_source(source)
        keys, values = seen @ module.key_value.weight[:WIDTH].T, seen @ module.key_value.weight[WIDTH:].T
        keys, values = keys + module.key_value.bias[:WIDTH], values + module.key_value.bias[WIDTH:]
        heads = []
        for q, k, v in zip(query.chunk(HEADS), keys.chunk(HEADS, 1), values.chunk(HEADS, 1), strict=True):
            weights = torch.stack([(q * each).sum() * scale for each in k]).softmax(0)
            heads.append((weights[:, None] * v).sum(0))
        state = one + torch.cat(heads)
        hidden = torch.nn.functional.gelu(module.feed[0](module.norm_out(state)))
        out.append(state + module.feed[3](hidden))
    return torch.stack(out)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_block_equals_a_naive_loop(training, own):
    module, scale = block().train(training), 1 / math.sqrt(WIDTH // HEADS)
    sources = [torch.cat([x[None], ROWS]) if own else ROWS for x in X]
    actual, _ = module(X, module.keys_values(ROWS), with_self=own)
    assert_same(actual, naive(module, X, sources, scale), module.parameters(), tolerance=1e-5, gradients=10)


def test_masked_rows_have_no_effect():
    module, visible = block(), torch.tensor([True, False, True, True, False, False, True])
    bias = torch.zeros(7).masked_fill(~visible, -torch.inf)
    sources = [torch.cat([x[None], ROWS[visible]]) for x in X]
    actual, _ = module(X, module.keys_values(ROWS), with_self=True, bias=bias)
    expected = naive(module, X, sources, 1 / math.sqrt(WIDTH // HEADS))
    assert_same(actual, expected, module.parameters(), tolerance=1e-5, gradients=10)
    nothing, weights = module(X, module.keys_values(ROWS), with_self=True, bias=torch.full((7,), -torch.inf))
    assert_close(nothing, module(X, None, with_self=True)[0])
    assert_close(weights[..., 0], torch.ones(5, HEADS))


def test_benchmark_baseline_computes_the_same_read():
    module = block().eval()
    actual, _ = module(X, module.keys_values(ROWS), with_self=True)
    assert_same(actual, read_repeated(module, X, ROWS), module.parameters(), tolerance=1e-5, gradients=10)


def test_weights_start_with_the_query_itself():
    module = block().eval()
    _, weights = module(X, module.keys_values(ROWS), with_self=True)
    assert weights.shape == (5, HEADS, 8)
    assert_close(weights.sum(-1), torch.ones(5, HEADS))
    _, with_it_among_them = module(X, module.keys_values(torch.cat([X[:1], ROWS])), with_self=False)
    assert_close(weights[0], with_it_among_them[0])
    assert module.train()(X, module.keys_values(ROWS), with_self=False)[1] is None  # the fused kernel returns none


def test_heads_divide_the_width():
    with pytest.raises(BadInput, match=r"neck.heads.* 12, got 5"):
        MemoryBlock(WIDTH, BlockSettings(heads=5))
