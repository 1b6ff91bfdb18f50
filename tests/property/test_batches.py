"""The sampler: equal numbers per domain, complete passes, resumable, and limited to its rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator
from holdfast.core.store import TensorStore
from holdfast.data.batches import MIN_BATCH_LIMIT, Batches, Examples, ForbiddenRow
from holdfast.data.splits import Part


def sampler(sizes, batch, seed=0):
    n = 2 * sum(sizes)  # the second half of the rows is in no part
    examples = Examples(
        TensorStore(torch.arange(n)[:, None].float()), torch.arange(n), [f"d{i}" for i in range(len(sizes))]
    )
    starts = np.cumsum([0, *sizes])
    domains = [Part(f"d{i}", np.arange(starts[i], starts[i + 1])) for i in range(len(sizes))]
    return Batches(examples, domains, batch, generator=generator(seed, "batches")), domains


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4), batch=st.integers(1, 25), steps=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_batches_are_balanced_and_use_every_row_once_per_pass(sizes, batch, steps):
    batches, domains = sampler(sizes, batch)
    seen = [[] for _ in sizes]
    for _ in range(steps):
        got = next(batches)
        assert got.sizes == (batch,) * len(sizes)
        assert torch.equal(got.x[:, 0].long(), got.y)
        for i, piece in enumerate(got.split(got.y)):
            seen[i] += piece.tolist()
    for rows, part in zip(seen, domains, strict=True):
        assert set(rows) <= set(part.rows.tolist())
        for start in range(0, len(rows) - len(part) + 1, len(part)):  # every pass has every row once
            assert sorted(rows[start : start + len(part)]) == part.rows.tolist()


@given(outside=st.integers(6, 11))
@settings(max_examples=10, deadline=None)
def test_a_forbidden_row_raises(outside):
    batches, _ = sampler([6], 2)
    state = batches.state_dict() | {"order": [torch.tensor([0, outside])]}
    with pytest.raises(ForbiddenRow, match=str(outside)):
        batches.load_state_dict(state)


def test_a_position_with_other_rows_is_an_error():
    first, domains = sampler([6, 6], 2)
    next(first)
    second = Batches(first.examples, domains[:1], 2, generator=generator(0, "b"))
    with pytest.raises(ForbiddenRow):
        second.load_state_dict(first.state_dict())


def test_a_batch_far_larger_than_the_data_is_an_error():
    sampler([7, 11], MIN_BATCH_LIMIT)
    with pytest.raises(BadInput, match=r"100,000.* 18 .*--batch"):
        sampler([7, 11], 100_000)


def drawing(domains, per_step, batch=3, seed=0, always=0):
    """Sampler of some of the domains per step."""
    full, parts = sampler([5 + i for i in range(domains)], batch)
    return Batches(
        full.examples, parts, batch, generator=generator(seed, "batches"), domains_per_step=per_step, always=always
    )


@given(domains=st.integers(2, 15), per_step=st.integers(1, 9), always=st.integers(0, 1), steps=st.integers(1, 25))
@settings(max_examples=60, deadline=None)
def test_steps_visit_all_domains_equally(domains, per_step, always, steps):
    batches, labelled = drawing(domains, per_step, always=always), domains - always
    visits = np.zeros(domains, dtype=int)
    for _ in range(steps):
        batch = next(batches)
        assert len(set(batch.domains)) == len(batch.domains) == min(per_step, labelled) + always
        assert batch.sizes == (3,) * len(batch.domains)
        assert batch.places().tolist() == list(batch.domains)  # whose ids are the positions of the parts here
        starts = np.cumsum([0, *(5 + i for i in range(domains))])
        for domain, rows in zip(batch.domains, batch.split(batch.y), strict=True):
            assert ((rows >= starts[domain]) & (rows < starts[domain + 1])).all()
        visits[list(batch.domains)] += 1
    assert visits[:labelled].max() - visits[:labelled].min() <= 1
    assert (visits[labelled:] == steps).all()


@given(steps=st.integers(0, 9), more=st.integers(1, 9), per_step=st.sampled_from([0, 3]))
@settings(max_examples=60, deadline=None)
def test_a_restored_position_gives_the_same_batches(steps, more, per_step):
    batches = drawing(7, per_step)
    for _ in range(steps):
        next(batches)
    state = batches.state_dict()
    ahead = [(b.domains, b.y.tolist()) for b in (next(batches) for _ in range(more))]
    other = drawing(7, per_step, seed=99)
    other.load_state_dict(state)
    assert [(b.domains, b.y.tolist()) for b in (next(other) for _ in range(more))] == ahead


def test_enough_domains_per_step_change_nothing():
    batches, every = drawing(4, 0), drawing(4, 4)
    for _ in range(5):
        first, second = next(batches), next(every)
        assert first.y.tolist() == second.y.tolist()
        assert first.drawn is second.drawn is None
    assert "turn" not in every.state_dict()
