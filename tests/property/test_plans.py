"""No plan leaks test rows, for any domains, seed and marked splits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows
from holdfast.train.plan import Stage, rows_of

PLANS = {
    name: (
        lambda name=name: catalog.build(
            "protocols", name, options={"targets": ("b",)} if name == "cross-dataset" else {}
        )
    )
    for name in catalog.PLANS
}
sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(10, 60), min_size=2).filter(lambda s: "b" in s)


def domains_of(sizes, marked=None):
    domains, start = {}, 0
    for name, size in sizes.items():
        rows = np.arange(start, start + size)
        splits = {}
        if marked is not None:
            kind = np.asarray([marked[i % len(marked)] for i in range(size)])
            splits = {k: rows[kind == i] for i, k in enumerate(("train", "valid", "test"))}
        domains[name] = DomainRows(name, rows, splits)
        start += size
    return domains


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("oracle", [False, True])
@given(sizes=sizes, seed=st.integers(0, 99), marked=st.none() | st.permutations([0, 0, 1, 2, 0]))
@settings(max_examples=40, deadline=None)
def test_no_plan_leaks(plan, oracle, sizes, seed, marked):
    domains = domains_of(sizes, marked)
    episodes = list(PLANS[plan]().episodes(domains, seed, oracle=oracle))
    assert episodes
    for episode in episodes:
        for stage in episode.stages:
            train, valid, test = (set(rows_of(p).tolist()) for p in (stage.train, stage.valid, stage.test))
            assert train
            assert valid
            assert not train & valid
            assert not (train | valid) & test
            for part in (*stage.train, *stage.valid, *stage.test, *stage.oracle):
                assert set(part.rows.tolist()) <= set(domains[part.domain].rows.tolist())
                assert len(part)
            if marked is not None and plan != "k-fold":  # which ignores the splits of the data
                for part in stage.train:
                    assert set(part.rows.tolist()) <= set(domains[part.domain].splits["train"].tolist())


@pytest.mark.parametrize("plan", ["leave-one-out", "cross-dataset", "single-source"])
@given(sizes=sizes, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_targets_are_not_used_for_training_or_selection(plan, sizes, seed):
    for episode in PLANS[plan]().episodes(domains_of(sizes), seed):
        (stage,) = episode.stages
        targets = {p.domain for p in stage.test}
        assert targets
        assert not targets & {p.domain for p in (*stage.train, *stage.valid)}
        assert not stage.oracle


@given(sizes=sizes, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_stage_of_a_stream_trains_on_one_domain(sizes, seed):
    (episode,) = PLANS["stream"]().episodes(domains_of(sizes), seed)
    assert [stage.train[0].domain for stage in episode.stages] == list(sizes)
    for stage in episode.stages:
        assert len({p.domain for p in (*stage.train, *stage.valid)}) == 1
        assert [p.domain for p in stage.test] == list(sizes)


@given(sizes=sizes)
@settings(max_examples=10, deadline=None)
def test_splits_depend_on_the_seed(sizes):
    def split(seed):
        return [rows_of(e.stages[0].train).tolist() for e in PLANS["leave-one-out"]().episodes(domains_of(sizes), seed)]

    assert split(1) == split(1)
    if max(sizes.values()) > 20:
        assert split(1) != split(2)


def test_a_stage_with_shared_rows_is_an_error():
    from holdfast.data.splits import Part

    a, b = Part("a", np.arange(5)), Part("a", np.arange(4, 9))
    with pytest.raises(ValueError, match="row 4"):
        Stage((a,), (b,), ())
    with pytest.raises(ValueError, match="training and test"):
        Stage((a,), (), (b,))


def test_too_few_domains_are_an_error():
    with pytest.raises(BadInput, match="at least 2 domains"):
        list(PLANS["leave-one-out"]().episodes(domains_of({"a": 10}), 0))
