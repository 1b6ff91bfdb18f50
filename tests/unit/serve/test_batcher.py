"""Batching of concurrent requests."""

import asyncio
import threading
import time

import pytest

from holdfast import BadInput
from holdfast.serve.batcher import Batcher
from holdfast.serve.requests import Busy, Limits, ParsedRequest


def request(*values, shape="a"):
    return ParsedRequest(list(values), (shape,))


class Work:
    """Doubles numbers and rejects 13; the first call waits for the event `go`."""

    def __init__(self):
        self.batches, self.go = [], threading.Event()

    def __call__(self, batch):
        self.go.wait(10)
        values = [value for member in batch for value in member.examples]
        if 13 in values:
            raise BadInput("13 is rejected")
        self.batches.append(values)
        return [2 * value for value in values]


async def answers(batcher, work, *requests):
    """Return the answers or errors of requests that are all submitted before the work starts."""
    futures = [batcher.submit(each) for each in requests]
    work.go.set()
    await asyncio.to_thread(batcher.close)
    return await asyncio.gather(*futures, return_exceptions=True)


def test_requests_of_one_shape_are_joined_up_to_the_limit():
    work = Work()
    batcher = Batcher(work, Limits(batch=4, wait=0.0))
    requests = [*(request(i) for i in range(1, 8)), request(8, shape="b")]
    assert asyncio.run(answers(batcher, work, *requests)) == [[2 * i] for i in range(1, 9)]
    assert all(len(batch) <= 4 for batch in work.batches)
    assert [8] in work.batches
    assert len(work.batches) <= 4


def test_an_invalid_request_does_not_affect_others():
    work = Work()
    batcher = Batcher(work, Limits(batch=8, wait=0.0))
    *good, bad = asyncio.run(answers(batcher, work, *(request(i) for i in (1, 2, 3, 4, 5, 13))))
    assert good == [[2], [4], [6], [8], [10]]
    assert isinstance(bad, BadInput)
    assert str(bad) == "13 is rejected"


def test_requests_are_never_joined_with_alone():
    work = Work()
    batcher = Batcher(work, Limits(batch=8), alone=True)
    asyncio.run(answers(batcher, work, *(request(i, i) for i in range(3))))
    assert work.batches == [[0, 0], [1, 1], [2, 2]]


def test_full_queue_rejects_requests_and_close_answers_pending_ones():
    work = Work()
    batcher = Batcher(work, Limits(batch=1, waiting=3))

    async def run():
        pending = [batcher.submit(request(i)) for i in range(3)]
        with pytest.raises(Busy, match="overloaded"):
            batcher.submit(request(3, 4, 5))
        work.go.set()
        await asyncio.to_thread(batcher.close)
        with pytest.raises(Busy, match="stopping"):
            batcher.submit(request(1))
        return await asyncio.gather(*pending)

    assert asyncio.run(run()) == [[0], [2], [4]]


def test_batch_waits_for_the_previous_number_of_requests():
    work = Work()
    work.go.set()
    batcher = Batcher(work, Limits(batch=8, wait=5.0))

    async def run():
        start = time.monotonic()
        for i in range(3):
            await batcher.submit(request(i))
        alone = time.monotonic() - start
        work.go.clear()
        first = [batcher.submit(request(10))]
        await asyncio.sleep(0.05)  # the first request is being processed
        first += [batcher.submit(request(11)), batcher.submit(request(12))]
        work.go.set()
        await asyncio.gather(*first[:1])
        late = batcher.submit(request(20))  # third request of the expected three
        await asyncio.gather(*first[1:], late)
        await asyncio.to_thread(batcher.close)
        return alone

    assert asyncio.run(run()) < 2.0
    assert work.batches == [[0], [1], [2], [10], [11, 12, 20]]


def test_cancelled_requests_are_not_processed():
    work = Work()
    batcher = Batcher(work, Limits(batch=1))

    async def run():
        active, cancelled, last = (batcher.submit(request(i)) for i in range(3))
        await asyncio.sleep(0.05)
        active.cancel()
        cancelled.cancel()
        work.go.set()
        await asyncio.to_thread(batcher.close)
        return await last

    assert asyncio.run(run()) == [4]
    assert work.batches == [[0], [2]]


def test_limits_must_be_positive():
    with pytest.raises(BadInput, match=r"batch.*0"):
        Limits(batch=0)
