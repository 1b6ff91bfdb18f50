"""Rows of a domain that are scored."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows
from holdfast.protocols.plans import LeaveOneOut

ROWS = np.arange(6)
GIVEN = {"train": ROWS[:3], "valid": ROWS[3:5], "test": ROWS[5:]}


def test_scored_rows_are_those_of_the_split_or_all():
    share = DomainRows("d", ROWS, GIVEN)
    assert [share.test_part(kind).rows.tolist() for kind in ("train", "valid", "test")] == [[0, 1, 2], [3, 4], [5]]
    assert share.test_part().rows.tolist() == [5]
    assert DomainRows("d", ROWS, {}).test_part("valid").rows.tolist() == ROWS.tolist()
    assert DomainRows("d", ROWS, {**GIVEN, "test": ROWS[:0]}).test_part().rows.tolist() == ROWS.tolist()
    with pytest.raises(BadInput, match="unknown split 'dev'"):
        share.test_part("dev")


def test_leave_one_out_can_score_on_validation_rows():
    found = {"a": DomainRows("a", ROWS, GIVEN), "b": DomainRows("b", ROWS + 6, {k: v + 6 for k, v in GIVEN.items()})}
    plain, other = (next(LeaveOneOut(targets=("b",), scored=s).episodes(found, 0)) for s in ("test", "valid"))
    assert [p.rows.tolist() for p in plain.stages[0].test] == [[11]]
    assert [p.rows.tolist() for p in other.stages[0].test] == [[9, 10]]
    for episode in (plain, other):
        assert [p.rows.tolist() for p in episode.stages[0].train] == [[0, 1, 2]]
