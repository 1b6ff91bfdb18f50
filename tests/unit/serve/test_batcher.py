import threading

import pytest

from holdfast import BadInput
from holdfast.serve.batcher import Batcher
from holdfast.serve.limits import Busy, Limits
from holdfast.serve.reading import Asked


def asked(*values, shape="a"):
    return Asked(list(values), (shape,))


class Work:
    """Doubles numbers, and refuses 13; the first call waits until it may go on."""

    def __init__(self):
        self.lots, self.go = [], threading.Event()

    def __call__(self, lot):
        self.go.wait(10)
        values = [value for each in lot for value in each.examples]
        if 13 in values:
            raise BadInput("13 is refused")
        self.lots.append(values)
        return [2 * value for value in values]


def test_what_waits_is_joined_up_to_the_limit_and_by_shape():
    work = Work()
    made = Batcher(work, Limits(batch=4, wait=0.0))
    first = made.submit(asked(1))
    rest = [made.submit(asked(i)) for i in range(2, 8)]
    other = made.submit(asked(8, shape="b"))
    work.go.set()
    made.close()
    assert [f.result() for f in (first, *rest, other)] == [[2 * i] for i in range(1, 9)]
    assert all(len(lot) <= 4 for lot in work.lots)
    assert [8] in work.lots
    assert len(work.lots) <= 4


def test_a_faulty_request_spoils_no_other():
    work = Work()
    made = Batcher(work, Limits(batch=8, wait=0.0))
    futures = [made.submit(asked(i)) for i in (1, 2, 13, 3)]
    work.go.set()
    made.close()
    assert [futures[i].result() for i in (0, 1, 3)] == [[2], [4], [6]]
    with pytest.raises(BadInput, match="13 is refused"):
        futures[2].result()


def test_where_examples_change_each_other_requests_are_never_joined():
    work = Work()
    made = Batcher(work, Limits(batch=8), alone=True)
    for i in range(3):
        made.submit(asked(i, i))
    work.go.set()
    made.close()
    assert work.lots == [[0, 0], [1, 1], [2, 2]]


def test_too_much_waiting_is_refused_and_closing_answers_the_rest():
    work = Work()
    made = Batcher(work, Limits(batch=1, waiting=3))
    kept = [made.submit(asked(i)) for i in range(3)]
    with pytest.raises(Busy, match="too much"):
        made.submit(asked(3, 4, 5))
    work.go.set()
    made.close()
    assert [f.result() for f in kept] == [[0], [2], [4]]
    with pytest.raises(Busy, match="stopping"):
        made.submit(asked(1))


def test_limits_are_above_zero():
    with pytest.raises(BadInput, match="limit on batch"):
        Limits(batch=0)
