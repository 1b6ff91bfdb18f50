"""Plans never leak: whatever the domains, the seed and the marked splits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows
from holdfast.protocols.plan import Stage, rows_of

PLANS = {
    name: (
        lambda name=name: catalog.build(
            "protocols", name, options={"targets": ("b",)} if name == "cross-dataset" else {}
        )
    )
    for name in catalog.PLANS
}
sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(10, 60), min_size=2).filter(lambda s: "b" in s)


def shares_of(sizes, marked=None):
    found, start = {}, 0
    for name, size in sizes.items():
        rows = np.arange(start, start + size)
        given = {}
        if marked is not None:
            kind = np.asarray([marked[i % len(marked)] for i in range(size)])
            given = {k: rows[kind == i] for i, k in enumerate(("train", "valid", "test"))}
        found[name] = DomainRows(name, rows, given)
        start += size
    return found


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("oracle", [False, True])
@given(sizes=sizes, seed=st.integers(0, 99), marked=st.none() | st.permutations([0, 0, 1, 2, 0]))
@settings(max_examples=40, deadline=None)
def test_no_plan_leaks(plan, oracle, sizes, seed, marked):
    shares = shares_of(sizes, marked)
    found = list(PLANS[plan]().episodes(shares, seed, oracle=oracle))
    assert found
    for episode in found:
        for stage in episode.stages:
            train, valid, test = (set(rows_of(p).tolist()) for p in (stage.train, stage.valid, stage.test))
            assert train
            assert valid
            assert not train & valid
            assert not (train | valid) & test
            for part in (*stage.train, *stage.valid, *stage.test, *stage.oracle):
                assert set(part.rows.tolist()) <= set(shares[part.domain].rows.tolist())
                assert len(part)
            if marked is not None:
                for part in stage.train:
                    assert set(part.rows.tolist()) <= set(shares[part.domain].splits["train"].tolist())


@pytest.mark.parametrize("plan", ["leave-one-out", "cross-dataset", "single-source"])
@given(sizes=sizes, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_target_is_in_no_training_and_no_selection(plan, sizes, seed):
    for episode in PLANS[plan]().episodes(shares_of(sizes), seed):
        (stage,) = episode.stages
        targets = {p.domain for p in stage.test}
        assert targets
        assert not targets & {p.domain for p in (*stage.train, *stage.valid)}
        assert not stage.oracle


@given(sizes=sizes, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_stream_stage_sees_its_own_domain_only(sizes, seed):
    (episode,) = PLANS["stream"]().episodes(shares_of(sizes), seed)
    assert [stage.train[0].domain for stage in episode.stages] == list(sizes)
    for stage in episode.stages:
        assert len({p.domain for p in (*stage.train, *stage.valid)}) == 1
        assert [p.domain for p in stage.test] == list(sizes)


@given(sizes=sizes)
@settings(max_examples=10, deadline=None)
def test_the_same_seed_cuts_the_same_and_another_differently(sizes):
    def cut(seed):
        return [rows_of(e.stages[0].train).tolist() for e in PLANS["leave-one-out"]().episodes(shares_of(sizes), seed)]

    assert cut(1) == cut(1)
    if max(sizes.values()) > 20:
        assert cut(1) != cut(2)


def test_a_leaking_stage_cannot_be_made():
    from holdfast.data.splits import Part

    a, b = Part("a", np.arange(5)), Part("a", np.arange(4, 9))
    with pytest.raises(ValueError, match="row 4"):
        Stage((a,), (b,), ())
    with pytest.raises(ValueError, match="training and test"):
        Stage((a,), (), (b,))


def test_too_few_domains_are_refused_with_a_mend():
    with pytest.raises(BadInput, match="at least 2 domains"):
        list(PLANS["leave-one-out"]().episodes(shares_of({"a": 10}), 0))
