"""What waits is computed in order, equal work together; what was cancelled is not."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from minitrans.server.queue import MAX_BATCH_LINES, RequestQueue


class RecordingWork:
    """Work that notes what it was given together."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    def __call__(self, lines: Sequence[str]) -> list[str]:
        self.given.append([*lines])
        if "bad" in lines:
            raise ValueError("bad")
        return [line.upper() for line in lines]


def with_running_queue(test: Callable[[RequestQueue], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs with a queue for five, which runs from when the test first waits."""

    async def both() -> None:
        queue = RequestQueue(5)
        running = asyncio.create_task(queue.run())
        await asyncio.wait_for(test(queue), 20)
        running.cancel()

    return lambda: asyncio.run(both())


@with_running_queue
async def test_equal_work_is_done_together_and_every_request_gets_its_own_lines(queue: RequestQueue) -> None:
    one, other = RecordingWork(), RecordingWork()
    answers = [queue.put(work, lines) for work, lines in ((one, ["a", "b"]), (other, ["c"]), (one, []), (one, ["d"]))]
    gone = queue.put(one, ["gone"])
    gone.cancel()
    assert len(queue.waiting_requests()) == 4
    assert await asyncio.gather(*answers) == [["A", "B"], ["C"], [], ["D"]]
    assert queue.waiting_requests() == []
    assert one.given == [["a", "b", "d"]]
    assert other.given == [["c"]]


@with_running_queue
async def test_what_is_too_many_lines_comes_next(queue: RequestQueue) -> None:
    work, many = RecordingWork(), ["x"] * MAX_BATCH_LINES  # a method is equal to itself, and not the same object
    assert await asyncio.gather(*(queue.put(work.__call__, lines) for lines in (["a"], many, many[1:], ["b"])))
    assert [len(lines) for lines in work.given] == [MAX_BATCH_LINES, MAX_BATCH_LINES, 1]


@with_running_queue
async def test_who_leaves_while_it_is_computed_takes_nothing_from_the_others(queue: RequestQueue) -> None:
    loop, begun, left = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def work(lines: Sequence[str]) -> list[str]:
        loop.call_soon_threadsafe(begun.set)
        assert left.wait(20)
        return RecordingWork()(lines)

    for lines, want in ((["a", "b"], "['C']"), (["bad"], "bad")):
        gone, other = (queue.put(work, each) for each in (lines, ["c"]))
        await begun.wait()
        gone.cancel()
        left.set()
        (answer,) = await asyncio.gather(other, return_exceptions=True)
        assert str(answer) == want
        begun.clear()
        left.clear()
    left.set()
    assert await queue.put(work, ["d"]) == ["D"]


@with_running_queue
async def test_no_more_wait_than_may_and_a_cancelled_one_makes_room(queue: RequestQueue) -> None:
    answers = [queue.put(RecordingWork(), ["a"]) for _ in range(5)]
    with pytest.raises(asyncio.QueueFull):
        queue.put(RecordingWork(), ["a"])
    answers[2].cancel()
    assert await queue.put(RecordingWork(), ["b"]) == ["B"]


@with_running_queue
async def test_a_failure_is_told_to_those_it_concerns_and_the_queue_goes_on(queue: RequestQueue) -> None:
    work = RecordingWork()
    answers = [queue.put(work, [line]) for line in ("bad", "a")]
    later = queue.put(RecordingWork(), ["b"])
    for answer in answers:
        with pytest.raises(ValueError, match="bad"):
            await answer
    assert await later == ["B"]
