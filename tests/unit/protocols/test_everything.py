"""All domains at once: rows marked valid choose, also where a domain has no others; rows marked test stay out."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows
from holdfast.protocols.plans import AllDomains


def share(name, first, **marked):
    given = {kind: np.asarray(marked.get(kind, []), dtype=np.int64) for kind in ("train", "valid", "test")}
    rows = np.sort(np.concatenate(list(given.values())))
    return DomainRows(name, rows if marked else np.arange(first, first + 10), given if marked else {})


def stage(*shares):
    (episode,) = AllDomains().episodes({each.domain: each for each in shares}, seed=0)
    (found,) = episode.stages
    return found


def told(parts):
    return {part.domain: part.rows.tolist() for part in parts}


def test_a_domain_of_valid_rows_alone_chooses_and_does_not_train():
    found = stage(share("a", 0, train=[0, 1, 2], valid=[3], test=[4]), share("b", 0, valid=[5, 6]))
    assert told(found.train) == {"a": [0, 1, 2]}
    assert told(found.valid) == {"a": [3], "b": [5, 6]}
    assert found.test == ()


def test_without_marks_each_domain_is_cut():
    found = stage(share("a", 0), share("b", 10))
    assert [len(part) for part in (*found.train, *found.valid)] == [8, 8, 2, 2]


def test_a_domain_of_test_rows_alone_cannot_be_trained_on():
    with pytest.raises(BadInput, match="'b' has 0 example"):
        stage(share("a", 0, train=[0, 1, 2], valid=[3]), share("b", 0, test=[5, 6]))


def test_rows_that_only_choose_train_nothing():
    with pytest.raises(BadInput, match="'a' has 0 example"):
        stage(share("a", 0, valid=[0, 1, 2]), share("b", 0, valid=[5, 6]))
