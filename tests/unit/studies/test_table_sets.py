"""The study of tables: records are complete, and no baseline is better than the default."""

import pytest

from studies.table_sets import DEFAULT, OPPONENTS, SETS, difference_table, means, result_table, scores_of, worse_than


@pytest.mark.parametrize("name", list(SETS))
def test_every_row_has_five_seeds_on_every_target(name):
    scores = scores_of(name)
    targets = {"heart-disease": 4, "cars": 3}[name]
    for method in {DEFAULT, *OPPONENTS} & scores.keys():
        assert len(scores[method]) == targets
        assert all(sorted(each) == list(range(5)) for each in scores[method].values())
    assert len(means(scores[DEFAULT])) == 5
    assert len(result_table(name)) > 6


def test_the_default_is_at_least_as_good_as_every_opponent():
    assert {name: worse_than(name) for name in SETS} == {name: [] for name in SETS}
    assert len(difference_table()) == 2 + 8
