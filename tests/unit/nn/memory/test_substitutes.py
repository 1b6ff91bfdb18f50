"""Substitute texts are deterministic, never the text itself, and cut to its length."""

import pytest
import torch
import torch.nn.functional as F

from holdfast.core import inputs
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Question, Sentence, Tokens
from holdfast.nn.memory.substitutes import POOL, SubstituteTexts, distinct_texts, fit_length


def texts(count: int, seed: int = 0) -> Tokens:
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 9, (count,), generator=rng)
    mask = torch.arange(8) < sizes[:, None]
    return Tokens(torch.randint(5, 90, (count, 8), generator=rng).where(mask, 1), mask)


def test_substitute_depends_only_on_the_text():
    others, x = SubstituteTexts(texts(20)), texts(50, seed=1)
    together = others.replacements(x)
    assert len({tuple(row) for row in together.ids.tolist()}) > 10
    longer = Tokens(F.pad(x.ids, (0, 3), value=7), F.pad(x.mask, (0, 3)))
    assert torch.equal(others.replacements(longer).ids, together.ids)
    for i in range(50):
        assert torch.equal(others.replacements(inputs.take(x, [i])).ids[0], together.ids[i])


def test_text_is_never_its_own_substitute():
    pool = texts(30)
    others = SubstituteTexts(pool)
    for ids in (pool.ids, torch.where(torch.arange(8) == 1, 4, pool.ids)):
        result = others.replacements(Tokens(ids, pool.mask))
        same = ((result.ids == pool.ids) & pool.mask).sum(1) * 2 > pool.mask.sum(1)
        assert not bool((same & (result.mask.sum(1) == pool.mask.sum(1))).any())


def test_states_are_cut_or_padded():
    states = torch.randn(2, 5, 3)
    assert torch.equal(fit_length(states, 4), states[:, :4])
    assert torch.equal(fit_length(states, 7)[:, :5], states)
    assert not fit_length(states, 7)[:, 5:].any()
    assert fit_length(torch.ones(2, 5, dtype=torch.bool), 7).tolist() == [[True] * 5 + [False] * 2] * 2


def test_pool_from_examples_of_any_task():
    torch.manual_seed(0)
    result = distinct_texts([f"text {i % 100}" for i in range(300)])
    assert len(result) == len(set(result)) == POOL
    assert sorted(distinct_texts([Sentence(["a", "b"], [0, 1]), Sentence(["c"])])) == ["a b", "c"]
    requested = [Question("it was good", "how ?"), Question("it was bad", "how ?")]
    assert sorted(distinct_texts(requested)) == [("how ?", "it was bad"), ("how ?", "it was good")]
    with pytest.raises(BadInput, match=r"encoder\.memory=other"):
        distinct_texts(["a", "a"])


def test_saved_and_loaded(tmp_path):
    others = SubstituteTexts(texts(6))
    others.save(tmp_path)
    again = SubstituteTexts.load(tmp_path)
    assert again.digest == others.digest != SubstituteTexts(texts(6, seed=1)).digest
    assert torch.equal(again.replacements(texts(9)).ids, others.replacements(texts(9)).ids)
