"""The data's own split: what is marked is used as marked, the rest follows from the seed."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows
from holdfast.protocols.plans import GivenSplit


def share(name, first, **marked):
    """Rows from `first` on; each keyword says how many are marked so."""
    given, at = {kind: np.zeros(0, dtype=np.int64) for kind in ("train", "valid", "test")}, first
    for kind, count in marked.items():
        given[kind], at = np.arange(at, at + count), at + count
    return DomainRows(name, np.arange(first, at), given)


def stage(*shares, seed=0, oracle=False, **settings):
    (episode,) = GivenSplit(**settings).episodes({s.domain: s for s in shares}, seed, oracle=oracle)
    assert episode.name == "given"
    return episode.stages[0]


def told(parts):
    return {part.domain: part.rows.tolist() for part in parts}


def test_marked_rows_are_used_as_they_are():
    a, b, c = share("a", 0, train=4), share("b", 4, train=3, valid=2), share("c", 9, test=5)
    found = stage(a, b, c)
    assert told(found.train) == {"a": [0, 1, 2, 3], "b": [4, 5, 6]}
    assert told(found.valid) == {"b": [7, 8]}
    assert told(found.test) == {"c": [9, 10, 11, 12, 13]}


def test_without_valid_rows_a_tenth_is_taken_by_the_seed():
    shares = share("a", 0, train=40), share("b", 40, train=20), share("c", 60, test=10)
    found, other = stage(*shares), stage(*shares, seed=1)
    assert [len(p) for p in found.train] == [36, 18]
    assert [len(p) for p in found.valid] == [4, 2]
    assert told(found.test) == told(other.test) == {"c": list(range(60, 70))}
    assert told(found.valid) != told(other.valid)


def test_without_marks_it_is_70_10_20():
    found = stage(DomainRows("a", np.arange(1000), {}))
    assert [len(parts[0]) for parts in (found.train, found.valid, found.test)] == [700, 100, 200]
    assert sorted(np.concatenate([p.rows for p in (*found.train, *found.valid, *found.test)])) == list(range(1000))


def test_the_oracle_takes_from_what_is_scored():
    shares = share("a", 0, train=10, valid=5), share("b", 15, test=20)
    found = stage(*shares, oracle=True)
    assert len(found.oracle[0]) == 2
    assert len(found.test[0]) == 18


@pytest.mark.parametrize(("marks", "lacking"), [({"train": 5}, "test"), ({"test": 5}, "train")])
def test_a_split_that_is_not_whole_is_refused(marks, lacking):
    with pytest.raises(BadInput, match=f"needs rows marked {lacking}"):
        stage(share("a", 0, **marks))
