"""Joint training is cut as a stream is, so that the two can stand in one table."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.splits import rows_by_domain
from holdfast.data.synthetic import world
from holdfast.protocols.plans import Joint, Stream

DATA = world("vector", "rotation", domains=4, size=40, classes=2, seed=0)


def rows(parts):
    return {p.domain: p.rows.tolist() for p in parts}


def union(parts):
    return {p.domain: p.rows.tolist() for group in parts for p in group}


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("names", [(), ("domain-2", "domain-0")])
def test_the_rows_are_those_of_the_stream(seed, names):
    (joint,) = Joint(valid=0.25, test=0.3, domains=names).episodes(rows_by_domain(DATA), seed)
    (stream,) = Stream(valid=0.25, test=0.3, order=names).episodes(rows_by_domain(DATA), seed)
    (stage,) = joint.stages
    for each in stream.stages:
        assert rows(stage.test) == rows(each.test)
    assert rows(stage.train) == union(s.train for s in stream.stages)
    assert rows(stage.valid) == union(s.valid for s in stream.stages)
    assert list(rows(stage.train)) == list(names or DATA.domains)


def test_a_marked_split_is_kept():
    split = np.tile([0, 0, 0, 1, 2], 32)
    marked = type(DATA)(**{**vars(DATA), "split": split})
    (joint,) = Joint().episodes(rows_by_domain(marked), 0)
    (stream,) = Stream().episodes(rows_by_domain(marked), 0)
    assert rows(joint.stages[0].test) == rows(stream.stages[0].test)
    assert all((split[p.rows] == 2).all() for p in joint.stages[0].test)


def test_another_seed_cuts_differently():
    first, second = (next(Joint().episodes(rows_by_domain(DATA), seed)) for seed in (0, 1))
    assert rows(first.stages[0].test) != rows(second.stages[0].test)


def test_the_oracle_sees_nothing_new():
    (joint,) = Joint().episodes(rows_by_domain(DATA), 0, oracle=True)
    assert rows(joint.stages[0].oracle) == rows(joint.stages[0].valid)


def test_bad_settings_are_refused():
    with pytest.raises(BadInput, match="no domain 'elsewhere'"):
        next(Joint(domains=("elsewhere",)).episodes(rows_by_domain(DATA), 0))
    with pytest.raises(BadInput, match="at least 2 domains"):
        next(Joint().episodes({"a": rows_by_domain(DATA)["domain-0"]}, 0))
