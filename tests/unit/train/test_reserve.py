"""Time that a comparison keeps for its report and the final model."""

from types import SimpleNamespace

from holdfast.train.comparison import MOST_RESERVED, reserve


def board(*, has_baseline):
    return SimpleNamespace(has_baseline=lambda: has_baseline, records={}, workers=1)


def test_less_is_reserved_before_plain_training_has_a_result():
    early, late = (reserve(board(has_baseline=known), limit=90.0, model=True, before=25.0) for known in (False, True))
    assert 0 < early < 0.5 * late


def test_a_slow_start_does_not_reserve_most_of_the_time():
    assert reserve(board(has_baseline=True), limit=90.0, model=True, before=80.0) <= MOST_RESERVED * 90
