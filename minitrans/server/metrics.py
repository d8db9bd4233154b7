"""What a server has done, in Prometheus' text format; and the headers of all that it answers."""

import time
from collections import Counter

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Counted:
    """An application whose answers are counted, and get those of `HEADERS` that they do not bring.

    Attributes:
        lines: Lines that were translated for a client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._answers, self._seconds = app, Counter[tuple[bool, int]](), 0.0
        self.lines = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what the application says, as ASGI has it."""
        start, is_translation = time.perf_counter(), scope.get("path") == "/translate"

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answers[is_translation, message["status"]] += 1
                self._seconds += (time.perf_counter() - start) * is_translation
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, answer)

    def text(self, waiting: int) -> str:
        """All since the start, and how many requests wait now."""
        statuses = Counter[int]()
        for (_, status), n in sorted(self._answers.items()):
            statuses[status] += n
        return "\n".join(
            [
                "# TYPE minitrans_requests_total counter",
                *(f'minitrans_requests_total{{status="{status}"}} {n}' for status, n in statuses.items()),
                "# TYPE minitrans_translate_seconds summary",
                f"minitrans_translate_seconds_sum {self._seconds:.6f}",
                f"minitrans_translate_seconds_count {sum(n for (of, _), n in self._answers.items() if of)}",
                "# TYPE minitrans_lines_total counter",
                f"minitrans_lines_total {self.lines}",
                "# TYPE minitrans_waiting_requests gauge",
                f"minitrans_waiting_requests {waiting}\n",
            ]
        )
