#!/usr/bin/env python3
"""Benchmark of `minitrans serve`: how long clients wait for a sentence, beside the same model in a plain loop.

Each client asks for one sentence after another on a connection of its own, and its Python shares the cores with the
server. Memory is the server's resident memory when the clients have ended. An answer that is neither 429 nor what
`translate` gives makes the exit code 1.
"""

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minitrans.cli.arguments import Parser, positive_int
from minitrans.errors import UserError
from minitrans.text.lines import read_lines
from minitrans.translate.translator import Translator


class ServerProcess(NamedTuple):
    """A server's process, its port, and the languages it is asked for."""

    process: subprocess.Popen[str]
    port: int
    request_languages: dict[str, str]

    def resident_mb(self) -> float:
        """Resident memory in MB."""
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
            address_line = next((line for line in process.stderr if "http://" in line), None)
            if address_line is None:
                raise UserError(f"the server did not start; see `minitrans serve {run}`")
            port = int(address_line.partition("127.0.0.1:")[2].split()[0])
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or a full pipe stops it
            yield ServerProcess(process, port, {name: sizes[name] for name in ("source", "target")})
        finally:
            process.terminate()


def ask_repeatedly(ask: Callable[[str], Reply], lines: Sequence[str], seconds: float) -> list[Reply]:
    """Ask for one line after another for so many seconds; return the replies."""
    end = time.monotonic() + seconds
    replies = []
    for line in cycle(lines):
        replies.append(ask(line))
        if time.monotonic() > end:
            break
    return replies


def run_clients(server: ServerProcess, lines: Sequence[str], n_clients: int, seconds: float) -> list[Reply]:
    """The replies to all clients, each starting at another line; without an answer, status 0 and the reason."""

    def client(number: int) -> list[Reply]:
        first = number % len(lines)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:

            def ask(line: str) -> Reply:
                start, body = time.perf_counter(), json.dumps({"q": line, **server.request_languages})
                try:
                    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    status, text = answer.status, answer.read().decode()
                    text = json.loads(text)["translatedText"] if status == 200 else text
                except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                    connection.close()  # the next request opens it again
                    status, text = 0, repr(error)
                return Reply(line, status, text, time.perf_counter() - start)

            return ask_repeatedly(ask, [*lines[first:], *lines[:first]], seconds)

    with ThreadPoolExecutor(n_clients) as pool:
        return [*chain.from_iterable(pool.map(client, range(n_clients)))]


def filter_wrong_replies(replies: Sequence[Reply], right: dict[str, str]) -> list[Reply]:
    """The replies that are neither 429 nor the right translation."""
    return [each for each in replies if each.status != 429 and (each.status, each.text) != (200, right[each.source])]


def table_row(name: str, replies: Sequence[Reply], seconds: float, memory: str = "") -> str:
    """A line of the table."""
    waited = [1000 * reply.seconds for reply in replies if reply.status == 200]
    if not waited:
        raise UserError(f"{name}: no translation, but {replies[:1] or 'no sentence to ask for'}")
    p50, p99 = np.percentile(waited, (50, 99))
    return f"| {name} | {len(waited) / seconds:.0f} | {p50:.1f} | {p99:.1f} | {memory} |"


def compare_with_loop(run: Path, source: str, client_counts: Sequence[int], seconds: float) -> int:
    """Print the table, and return how many answers were wrong."""
    lines = [line for line in read_lines(source) if line.strip()]
    translator = Translator.load(run, compiled="auto")
    translator.split_sentences = True  # as the server does
    right = dict(zip(lines, translator.translate(lines), strict=True))

    def ask(line: str) -> Reply:
        start = time.perf_counter()
        return Reply(line, 200, translator.translate([line])[0], time.perf_counter() - start)

    print("| clients | sentences/s | p50, ms | p99, ms | memory, MB |\n|---|---|---|---|---|")
    print(table_row("plain loop", ask_repeatedly(ask, lines, seconds), seconds), flush=True)
    wrong: list[Reply] = []
    with running_server(run) as server:
        for n in client_counts:
            replies = run_clients(server, lines, n, seconds)
            wrong += filter_wrong_replies(replies, right)
            print(table_row(str(n), replies, seconds, f"{server.resident_mb():.0f}"), flush=True)
    print(f"{len(wrong)} wrong answers", *wrong[:1])
    return len(wrong)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; return 0, 1 if an answer was wrong, or 2 after bad input or where nothing was translated."""
    parser = Parser("bench_serve", __doc__ or "")
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder")
    parser.add_argument("--source", metavar="F", required=True, help="file of sentences")
    parser.add_argument("--clients", type=positive_int, nargs="+", default=[1, 8, 64], help="how many at a time")
    parser.add_argument("--seconds", type=positive_int, default=20, help="for each number of clients")
    try:
        args = parser.parse(sys.argv[1:] if argv is None else argv)
        return min(1, compare_with_loop(args.run, args.source, args.clients, args.seconds))
    except UserError as error:
        print(f"bench_serve: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
