"""What a server has done, in Prometheus' text format; and the headers of all that it answers."""

import time
from collections import defaultdict

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
        counts: Since the start, by Prometheus' name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.counts = app, defaultdict[str, float](int)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what the application says, as ASGI has it."""
        start = time.perf_counter()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.counts[f'minitrans_requests_total{{status="{message["status"]}"}}'] += 1
                if scope["path"] == "/translate":
                    self.counts["minitrans_translate_seconds_count"] += 1
                    self.counts["minitrans_translate_seconds_sum"] += time.perf_counter() - start
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, answer)
