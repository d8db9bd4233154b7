#!/usr/bin/env python3
"""Benchmark of `minitrans serve`: how long clients wait for a sentence, beside the same model in a plain loop.

Each client asks for one sentence after the other on a connection of its own, and its Python shares the cores with the
server. Memory is the server's resident one when the clients have ended. An answer that is neither 429 nor what
`translate` gives makes the exit code 1.
"""

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from minitrans.cli.arguments import Parser, positive_int
from minitrans.text.lines import read_lines
from minitrans.translate.translator import Translator

MAX_CLIENT_REQUESTS = 100_000  # requests of a client


class ServerProcess(NamedTuple):
    """A server's process, its port, and the languages it is asked for."""

    process: subprocess.Popen[str]
    port: int
    request_languages: dict[str, str]

    def resident_mb(self) -> float:
        """Resident MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class Reply(NamedTuple):
    """What was answered to a line, and after how many seconds."""

    source: str
    status: int
    text: str
    seconds: float


@contextlib.contextmanager
def running_server(run: Path, *flags: str) -> Iterator[ServerProcess]:
    """A server on a free port, which is told to stop at the end."""
    sizes = json.loads((run / "model.json").read_text())
    command = [sys.executable, "-m", "minitrans", "serve", str(run), "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address_line = next(line for line in process.stderr if "http://" in line)
            port = int(address_line.partition("127.0.0.1:")[2].split()[0])
            yield ServerProcess(process, port, {name: sizes[name] for name in ("source", "target")})
        finally:
            process.terminate()


def ask_repeatedly(ask: Callable[[str], Reply], lines: Sequence[str], seconds: float) -> list[Reply]:
    """What is answered to one line after the other in that time."""
    end = time.monotonic() + seconds
    replies = []
    for line in islice(cycle(lines), MAX_CLIENT_REQUESTS):
        replies.append(ask(line))
        if time.monotonic() > end:
            break
    return replies


def run_clients(server: ServerProcess, lines: Sequence[str], n_clients: int, seconds: float) -> list[Reply]:
    """What so many clients are answered; each begins at another line."""
    replies: list[Reply] = []

    def client(number: int) -> None:
        first = number % len(lines)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:

            def ask(line: str) -> Reply:
                start, body = time.perf_counter(), json.dumps({"q": line, **server.request_languages})
                connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = json.loads(answer.read()).get("translatedText", "")
                return Reply(line, answer.status, text, time.perf_counter() - start)

            replies.extend(ask_repeatedly(ask, [*lines[first:], *lines[:first]], seconds))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


def filter_wrong_replies(replies: Sequence[Reply], right: dict[str, str]) -> list[Reply]:
    """Those that are neither 429 nor the right translation."""
    return [each for each in replies if each.status != 429 and (each.status, each.text) != (200, right[each.source])]


def table_row(name: str, replies: Sequence[Reply], seconds: float, memory: str = "") -> str:
    """A line of the table."""
    waited = [1000 * reply.seconds for reply in replies if reply.status == 200]
    cuts = statistics.quantiles(waited, n=100)
    return f"| {name} | {len(waited) / seconds:.0f} | {cuts[49]:.1f} | {cuts[98]:.1f} | {memory} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = Parser("bench_serve", __doc__ or "")
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder")
    parser.add_argument("--source", metavar="F", required=True, help="file of sentences")
    parser.add_argument("--clients", type=positive_int, nargs="+", default=[1, 8, 64], help="how many at a time")
    parser.add_argument("--seconds", type=positive_int, default=20, help="for each number of clients")
    args = parser.parse(sys.argv[1:] if argv is None else argv)
    lines = [line for line in read_lines(args.source) if line.strip()]
    translator = Translator.load(args.run, compiled="auto")
    right = dict(zip(lines, translator.translate(lines), strict=True))

    def ask(line: str) -> Reply:
        start = time.perf_counter()
        return Reply(line, 200, translator.translate([line])[0], time.perf_counter() - start)

    print("| clients | sentences/s | p50, ms | p99, ms | memory, MB |\n|---|---|---|---|---|")
    print(table_row("plain loop", ask_repeatedly(ask, lines, args.seconds), args.seconds), flush=True)
    wrong: list[Reply] = []
    with running_server(args.run) as server:
        for n in args.clients:
            replies = run_clients(server, lines, n, args.seconds)
            wrong += filter_wrong_replies(replies, right)
            print(table_row(str(n), replies, args.seconds, f"{server.resident_mb():.0f}"), flush=True)
    print(f"{len(wrong)} wrong answers", *wrong[:1])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
