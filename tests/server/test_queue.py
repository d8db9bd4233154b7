"""What waits is computed in order, equal work together; what was cancelled is not."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from minitrans.server.queue import TOGETHER, Queue


class Work:
    """Work that notes what it was given together."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    def __call__(self, lines: Sequence[str]) -> list[str]:
        self.given.append([*lines])
        if "bad" in lines:
            raise ValueError("bad")
        return [line.upper() for line in lines]


def while_it_runs(test: Callable[[Queue], Awaitable[None]]) -> None:
    """Run a test, and with it, from when it first waits, a queue for five."""

    async def both() -> None:
        queue = Queue(5)
        running = asyncio.create_task(queue.run())
        await asyncio.wait_for(test(queue), 20)
        running.cancel()

    asyncio.run(both())


def test_equal_work_is_done_together_and_every_request_gets_its_own_lines() -> None:
    one, other = Work(), Work()

    async def test(queue: Queue) -> None:
        asked = [queue.put(work, lines) for work, lines in ((one, ["a", "b"]), (other, ["c"]), (one, []), (one, ["d"]))]
        gone = queue.put(one, ["gone"])
        gone.cancel()
        assert len(queue.waiting()) == 4
        assert await asyncio.gather(*asked) == [["A", "B"], ["C"], [], ["D"]]
        assert queue.waiting() == []

    while_it_runs(test)
    assert one.given == [["a", "b", "d"]]
    assert other.given == [["c"]]


def test_what_is_too_many_lines_comes_next() -> None:
    work = Work()

    async def test(queue: Queue) -> None:
        many = ["x"] * TOGETHER
        assert await asyncio.gather(*(queue.put(work, lines) for lines in (["a"], many, ["b"])))

    while_it_runs(test)
    assert [len(lines) for lines in work.given] == [2, TOGETHER]


def test_no_more_wait_than_may_and_a_cancelled_one_makes_room() -> None:
    async def test(queue: Queue) -> None:
        asked = [queue.put(Work(), ["a"]) for _ in range(5)]
        with pytest.raises(asyncio.QueueFull):
            queue.put(Work(), ["a"])
        asked[2].cancel()
        assert await queue.put(Work(), ["b"]) == ["B"]

    while_it_runs(test)


def test_a_failure_is_told_to_those_it_concerns_and_the_queue_goes_on() -> None:
    async def test(queue: Queue) -> None:
        work = Work()
        asked = [queue.put(work, [line]) for line in ("bad", "a")]
        later = queue.put(Work(), ["b"])
        for answer in asked:
            with pytest.raises(ValueError, match="bad"):
                await answer
        assert await later == ["B"]

    while_it_runs(test)
