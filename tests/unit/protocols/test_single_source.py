"""One source: every other domain is scored, all of it or by the rows that would choose there."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows
from holdfast.protocols.plan import rows_of
from holdfast.protocols.plans import SingleSource

SHARES = {name: DomainRows(name, np.arange(10 * i, 10 * i + 10), {}) for i, name in enumerate("abc")}


def test_all_rows_of_the_others_are_scored():
    found = {episode.name: episode.stages[0] for episode in SingleSource().episodes(SHARES, 0)}
    assert list(found) == ["from-a", "from-b", "from-c"]
    for name, stage in found.items():
        assert [part.domain for part in (*stage.train, *stage.valid)] == [name[-1]] * 2
        assert {part.domain: len(part) for part in stage.test} == {d: 10 for d in "abc" if d != name[-1]}


def test_outside_scores_the_rows_that_choose_where_that_domain_trains():
    found = {e.name: e.stages[0] for e in SingleSource(outside=True).episodes(SHARES, 3)}
    chosen_by = {name[-1]: stage.valid[0].rows.tolist() for name, stage in found.items()}
    assert {len(rows) for rows in chosen_by.values()} == {2}
    for name, stage in found.items():
        assert {part.domain: part.rows.tolist() for part in stage.test} == {
            domain: rows for domain, rows in chosen_by.items() if domain != name[-1]
        }


def test_outside_takes_the_rows_that_the_data_marks_and_leaves_the_oracle_the_rest():
    marked = DomainRows(
        "b", np.arange(10, 20), {"train": np.arange(10, 16), "valid": np.arange(16, 18), "test": np.arange(18, 20)}
    )
    plan = SingleSource(outside=True, sources=("a",))
    (episode,) = plan.episodes({"a": SHARES["a"], "b": marked}, 0, oracle=True)
    (stage,) = episode.stages
    assert rows_of(stage.test).tolist() == [16, 17]
    assert rows_of(stage.oracle).tolist() == list(range(10, 16))
    (plain,) = SingleSource(sources=("a",)).episodes({"a": SHARES["a"], "b": marked}, 0)
    assert rows_of(plain.stages[0].test).tolist() == [18, 19]


def test_a_source_that_is_not_there():
    with pytest.raises(BadInput, match="no domain 'x' in the data"):
        list(SingleSource(sources=("x",)).episodes(SHARES, 0))
