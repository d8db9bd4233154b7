"""Waiting requests are computed in order, equal work together; cancelled ones are not computed."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

from minitrans.server.queue import MAX_BATCH_LINES, RequestQueue


class RecordingWork:
    """Work that records the lines of each call."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    def __call__(self, lines: Sequence[str]) -> list[str]:
        self.given.append([*lines])
        if "bad" in lines:
            raise ValueError("bad")
        return [line.upper() for line in lines]


def with_running_queue(test: Callable[[RequestQueue], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs with a queue for nine requests, which starts when the test first waits."""

    async def both() -> None:
        queue = RequestQueue(9)
        running = asyncio.create_task(queue.run())
        await asyncio.wait_for(test(queue), 20)
        running.cancel()

    return lambda: asyncio.run(both())


@with_running_queue
async def test_equal_work_is_done_together_and_every_request_gets_its_own_lines(queue: RequestQueue) -> None:
    """Or its own failure, after which the queue goes on."""
    failing, one, other = RecordingWork(), RecordingWork(), RecordingWork()
    failed = [queue.put(failing, [line]) for line in ("bad", "a")]
    answers = [queue.put(work, lines) for work, lines in ((one, ["a", "b"]), (other, ["c"]), (one, []), (one, ["d"]))]
    gone = queue.put(one, ["gone"])
    gone.cancel()
    assert len(queue.list_waiting_requests()) == 6
    assert await asyncio.gather(*answers) == [["A", "B"], ["C"], [], ["D"]]
    assert queue.list_waiting_requests() == []
    assert one.given == [["a", "b", "d"]]
    assert other.given == [["c"]]
    assert list(map(str, await asyncio.gather(*failed, return_exceptions=True))) == ["bad", "bad"]


@with_running_queue
async def test_lines_beyond_a_full_batch_come_next(queue: RequestQueue) -> None:
    work, many = RecordingWork(), ["x"] * MAX_BATCH_LINES  # a method is equal to itself, and not the same object
    assert await asyncio.gather(*(queue.put(work.__call__, lines) for lines in (["a"], many, many[1:], ["b"])))
    assert [len(lines) for lines in work.given] == [MAX_BATCH_LINES, MAX_BATCH_LINES, 1]


@with_running_queue
async def test_a_request_cancelled_while_computed_does_not_affect_the_others(queue: RequestQueue) -> None:
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
