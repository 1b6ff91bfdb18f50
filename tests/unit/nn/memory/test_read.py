"""The read equals a naive loop for every layout, in values and in both derivatives."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from holdfast.nn.memory.read import read

B, HEADS, SLOTS, KEY, WIDTH = 3, 2, 7, 4, 5
LAYOUTS = [(keys, values) for keys in (True, False) for values in (True, False)]  # one set per head, or shared


def parts(keys_per_head: bool, values_per_head: bool, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()

    keys = draw(HEADS, SLOTS, KEY) if keys_per_head else draw(SLOTS, KEY)
    values = draw(HEADS, SLOTS, WIDTH) if values_per_head else draw(SLOTS, WIDTH)
    return draw(B, HEADS, KEY), keys, values


def met(query: list[float], key: list[float], similarity: str) -> float:
    dot = sum(a * b for a, b in zip(query, key, strict=True))
    if similarity == "cosine":
        return dot / math.sqrt(sum(a * a for a in query) * sum(a * a for a in key))
    return dot / math.sqrt(len(key)) if similarity == "scaled" else dot


def naive(query, keys, values, *, similarity="dot", temperature=1.0, top=None):
    """Read one example, head and slot at a time; return the content and {slot: weight} per example and head."""
    content, weights = torch.zeros(B, WIDTH, dtype=torch.float64), []
    for i in range(B):
        for h in range(HEADS):
            logits = {}
            for m in range(SLOTS):
                key = keys[h, m] if keys.dim() == 3 else keys[m]
                logits[m] = met(query[i, h].tolist(), key.tolist(), similarity) / temperature
            best = sorted(logits, key=lambda m: -logits[m])[: top or SLOTS]
            total = sum(math.exp(logits[m]) for m in best)
            weights.append({m: math.exp(logits[m]) / total for m in best})
            for m in best:
                value = values[h, m] if values.dim() == 3 else values[m]
                content[i] += weights[-1][m] * value
    return content, weights


@pytest.mark.parametrize(("keys_per_head", "values_per_head"), LAYOUTS)
@given(
    similarity=st.sampled_from(["dot", "scaled", "cosine"]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top=st.sampled_from([None, 1, 3, SLOTS, SLOTS + 9]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_read_equals_a_naive_loop(keys_per_head, values_per_head, similarity, temperature, top, seed):
    query, keys, values = (t.detach() for t in parts(keys_per_head, values_per_head, seed))
    options = {"similarity": similarity, "temperature": temperature, "top": top}
    result = read(query, keys, values, **options)
    content, weights = naive(query, keys, values, **options)
    assert_close(result.content, content)
    assert_close(result.weights.sum(-1), torch.ones(B, HEADS, dtype=torch.float64))
    chosen = top is not None and top < SLOTS
    assert (result.slots is not None) == chosen
    for place, expected in enumerate(weights):
        i, h = divmod(place, HEADS)
        slots = result.slots[i, h].tolist() if chosen else range(SLOTS)
        got = {m: float(w) for m, w in zip(slots, result.weights[i, h], strict=True) if float(w) > 0}
        assert got == pytest.approx(expected)


@pytest.mark.parametrize("similarity", ["dot", "scaled", "cosine"])
@pytest.mark.parametrize("top", [None, 3])
@pytest.mark.parametrize(("keys_per_head", "values_per_head"), LAYOUTS)
def test_gradcheck(keys_per_head, values_per_head, top, similarity):
    def content(*tensors: Tensor) -> Tensor:
        return read(*tensors, top=top, similarity=similarity, temperature=0.7).content

    tensors = parts(keys_per_head, values_per_head)
    assert torch.autograd.gradcheck(content, tensors, fast_mode=True)
    if top is None:
        assert torch.autograd.gradgradcheck(content, tensors, fast_mode=True)
