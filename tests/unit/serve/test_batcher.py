import asyncio
import threading
import time

import pytest

from holdfast import BadInput
from holdfast.serve.batcher import Batcher
from holdfast.serve.requests import Busy, Limits, ParsedRequest


def asked(*values, shape="a"):
    return ParsedRequest(list(values), (shape,))


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


async def answers(made, work, *requests):
    """What becomes of requests that are all there before the work begins."""
    found = [made.submit(each) for each in requests]
    work.go.set()
    await asyncio.to_thread(made.close)
    return await asyncio.gather(*found, return_exceptions=True)


def test_what_waits_is_joined_up_to_the_limit_and_by_shape():
    work = Work()
    made = Batcher(work, Limits(batch=4, wait=0.0))
    requests = [*(asked(i) for i in range(1, 8)), asked(8, shape="b")]
    assert asyncio.run(answers(made, work, *requests)) == [[2 * i] for i in range(1, 9)]
    assert all(len(lot) <= 4 for lot in work.lots)
    assert [8] in work.lots
    assert len(work.lots) <= 4


def test_a_faulty_request_spoils_no_other():
    work = Work()
    made = Batcher(work, Limits(batch=8, wait=0.0))
    *good, bad = asyncio.run(answers(made, work, *(asked(i) for i in (1, 2, 3, 4, 5, 13))))
    assert good == [[2], [4], [6], [8], [10]]
    assert isinstance(bad, BadInput)
    assert str(bad) == "13 is refused"


def test_where_examples_change_each_other_requests_are_never_joined():
    work = Work()
    made = Batcher(work, Limits(batch=8), alone=True)
    asyncio.run(answers(made, work, *(asked(i, i) for i in range(3))))
    assert work.lots == [[0, 0], [1, 1], [2, 2]]


def test_too_much_waiting_is_refused_and_closing_answers_the_rest():
    work = Work()
    made = Batcher(work, Limits(batch=1, waiting=3))

    async def run():
        kept = [made.submit(asked(i)) for i in range(3)]
        with pytest.raises(Busy, match="overloaded"):
            made.submit(asked(3, 4, 5))
        work.go.set()
        await asyncio.to_thread(made.close)
        with pytest.raises(Busy, match="stopping"):
            made.submit(asked(1))
        return await asyncio.gather(*kept)

    assert asyncio.run(run()) == [[0], [2], [4]]


def test_a_batch_waits_for_as_many_as_were_there_last_time_and_one_client_for_nobody():
    work = Work()
    work.go.set()
    made = Batcher(work, Limits(batch=8, wait=5.0))

    async def run():
        start = time.monotonic()
        for i in range(3):
            await made.submit(asked(i))
        alone = time.monotonic() - start
        work.go.clear()
        first = [made.submit(asked(10))]
        await asyncio.sleep(0.05)  # it is under way
        first += [made.submit(asked(11)), made.submit(asked(12))]
        work.go.set()
        await asyncio.gather(*first[:1])
        late = made.submit(asked(20))  # the third of those that were there
        await asyncio.gather(*first[1:], late)
        await asyncio.to_thread(made.close)
        return alone

    assert asyncio.run(run()) < 2.0
    assert work.lots == [[0], [1], [2], [10], [11, 12, 20]]


def test_those_who_have_gone_are_not_answered():
    work = Work()
    made = Batcher(work, Limits(batch=1))

    async def run():
        under_way, gone, kept = (made.submit(asked(i)) for i in range(3))
        await asyncio.sleep(0.05)
        under_way.cancel()
        gone.cancel()
        work.go.set()
        await asyncio.to_thread(made.close)
        return await kept

    assert asyncio.run(run()) == [4]
    assert work.lots == [[0], [2]]


def test_limits_are_above_zero():
    with pytest.raises(BadInput, match="limit of batch"):
        Limits(batch=0)
