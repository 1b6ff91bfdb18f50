"""Small domains are scored together where there are many domains."""

import numpy as np
import pytest

from holdfast.data.splits import Part
from holdfast.protocols.plan import Episode, Stage, rows_of
from holdfast.protocols.small import pool_small, pool_tests, small_domain_note


def parts_of(*sizes, start=0):
    ends = start + np.cumsum([0, *sizes])
    return tuple(Part(f"d{start}-{i}", np.arange(ends[i], ends[i + 1])) for i in range(len(sizes)))


def test_small_domains_are_joined_and_come_last():
    parts = parts_of(20, 3, 30, 9, 1)
    pooled = pool_small(parts, 12)
    assert [part.domain for part in pooled] == ["d0-0", "d0-2", "3 domains with fewer than 10 rows"]
    assert pooled[-1].rows.tolist() == rows_of([parts[1], parts[3], parts[4]]).tolist()
    (*_, labelled) = pool_small(parts, 12, label="fold 1 of 5")
    assert labelled.domain == "3 domains with fewer than 10 rows, fold 1 of 5"


@pytest.mark.parametrize(("sizes", "domains"), [((20, 3, 30), 12), ((20, 3, 3), 8), ((20, 30), 12)])
def test_few_domains_and_single_small_ones_keep_their_metric(sizes, domains):
    parts = parts_of(*sizes)
    assert pool_small(parts, domains) == parts


def test_tests_of_an_episode_are_pooled_but_not_those_of_a_stream():
    train, valid = parts_of(*[10] * 8), parts_of(*[10] * 8, start=100)
    stage = Stage(train, valid, parts_of(5, 6, 30, start=300))
    pooled = pool_tests(Episode("fold-1-of-5", (stage,), "fold 1 of 5"))
    assert [len(part) for part in pooled.stages[0].test] == [30, 11]
    stream = Episode("a>b", (stage, stage))
    assert pool_tests(stream) is stream


def test_notes_on_small_domains():
    assert small_domain_note({"a": 10, "b": 300}) == ""
    assert "'a' has 5 rows" in small_domain_note({"a": 5, "b": 300})
    assert "'a' has 1 row" in small_domain_note({"a": 1, "b": 300})
    many = {f"d{i}": 5 if i % 2 else 50 for i in range(20)}
    assert small_domain_note(many) == "10 of 20 domains have fewer than 10 rows and are scored together"
