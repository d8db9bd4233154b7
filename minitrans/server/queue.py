"""The queue of requests: one thread computes them in turn, and those with the same work together."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

MAX_BATCH_LINES = 256  # lines of requests that are computed in one go; a single request may have more

# Gives a result for each line; the lines of requests with equal work may be passed together.
BatchFunction = Callable[[Sequence[str]], Sequence[Any]]
ResultsFuture = asyncio.Future[Sequence[Any]]


class _Request(NamedTuple):
    work: BatchFunction
    lines: Sequence[str]
    answer: ResultsFuture


class RequestQueue:
    """Requests in the order of their arrival, at most `most` (else QueueFull); a cancelled answer drops its request."""

    def __init__(self, most: int) -> None:
        self._most, self._requests, self._more = most, list[_Request](), asyncio.Event()

    def list_waiting_requests(self) -> list[_Request]:
        """The requests whose computation has not begun."""
        return [request for request in self._requests if not request.answer.done()]

    def put(self, work: BatchFunction, lines: Sequence[str]) -> ResultsFuture:
        """Add a request; return a future with the results of its lines, in their order."""
        self._requests = self.list_waiting_requests()
        if len(self._requests) >= self._most:
            raise asyncio.QueueFull("too many requests are waiting; ask again in a while")
        answer: ResultsFuture = asyncio.get_running_loop().create_future()
        self._requests.append(_Request(work, lines, answer))
        self._more.set()
        return answer

    async def run(self) -> None:
        """Compute the requests as they come, until this is cancelled."""
        with ThreadPoolExecutor(1) as thread:
            while await self._more.wait():
                if not (taken := self._take_batch()):
                    self._more.clear()
                    continue
                lines = [line for request in taken for line in request.lines]
                try:
                    results = await asyncio.get_running_loop().run_in_executor(thread, taken[0].work, lines)
                except Exception as error:
                    for request in taken:
                        if not request.answer.done():  # else its client has gone meanwhile
                            request.answer.set_exception(error)
                    continue
                for request in taken:
                    if not request.answer.done():
                        request.answer.set_result(results[: len(request.lines)])
                    results = results[len(request.lines) :]

    def _take_batch(self) -> list[_Request]:
        """Take the request that has waited longest, and others with equal work, up to `MAX_BATCH_LINES`."""
        taken: list[_Request] = []
        left, n_lines = [], 0
        for request in self.list_waiting_requests():
            if not taken or (request.work == taken[0].work and n_lines + len(request.lines) <= MAX_BATCH_LINES):
                taken.append(request)
                n_lines += len(request.lines)
            else:
                left.append(request)
        self._requests = left
        return taken
