#!/usr/bin/env python3
"""Benchmark of `minitrans serve`: how long clients wait for a sentence, beside the same model in a plain loop.

Each client asks for one sentence after the other on a connection of its own. Percentiles are in milliseconds; memory is
the server's resident one when the clients have ended. An answer that is neither 200 nor 429, or not what `translate`
gives, makes the exit code 1.
"""

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from minitrans.cli.arguments import Parser, count
from minitrans.serving.translator import Translator
from minitrans.text.lines import read_lines

MOST = 100_000  # requests of a client


class Served(NamedTuple):
    """A server's process, its address, and the languages it is asked for."""

    process: subprocess.Popen[str]
    port: int
    source: str
    target: str

    def memory(self) -> float:
        """Resident MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class Reply(NamedTuple):
    """What a client was answered, and after how many seconds."""

    line: str
    status: int
    text: str
    seconds: float


@contextlib.contextmanager
def served(run: Path, *flags: str) -> Iterator[Served]:
    """A server on a free port; at the end it has to stop by itself at SIGTERM."""
    sizes = json.loads((run / "model.json").read_text())
    command = [sys.executable, "-m", "minitrans", "serve", str(run), "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = next((line for line in process.stderr if "http://" in line), "")
            port = int(told.partition("127.0.0.1:")[2].split()[0])
            yield Served(process, port, sizes["source"], sizes["target"])
        finally:
            process.terminate()
            process.wait(60)


def ask(connection: http.client.HTTPConnection, line: str, source: str, target: str) -> Reply:
    """One request."""
    start = time.perf_counter()
    body = json.dumps({"q": line, "source": source, "target": target})
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    return Reply(line, answer.status, found.get("translatedText", ""), time.perf_counter() - start)


def load(server: Served, lines: Sequence[str], n_clients: int, seconds: float) -> list[Reply]:
    """What so many clients are answered in that time; each begins at another line."""
    replies: list[Reply] = []
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for line in islice(cycle(lines), number, number + MOST):
            if time.monotonic() > end:
                break
            replies.append(ask(connection, line, server.source, server.target))
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


def faults(replies: Sequence[Reply], right: dict[str, str]) -> Counter[str]:
    """How often something else came than the right translation or 429, by what it was."""
    wrong = (reply for reply in replies if reply.status != 429)
    return Counter(
        f"status {reply.status}" if reply.status != 200 else "another translation"
        for reply in wrong
        if reply.status != 200 or reply.text != right[reply.line]
    )


def row(name: str, seconds: Sequence[float], wall: float, memory: str = "") -> str:
    """A line of the table."""
    cuts = statistics.quantiles(seconds, n=100)
    return f"| {name} | {len(seconds) / wall:.0f} | {1000 * cuts[49]:.1f} | {1000 * cuts[98]:.1f} | {memory} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = Parser("bench_serve", __doc__ or "")
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder")
    parser.add_argument("--source", metavar="F", required=True, help="file of sentences")
    parser.add_argument("--clients", type=count, nargs="+", default=[1, 8, 64], help="how many at a time")
    parser.add_argument("--seconds", type=count, default=20, help="for each number of clients")
    args = parser.parse(sys.argv[1:] if argv is None else argv)
    lines = [line for line in read_lines(args.source) if line.strip()]
    translator = Translator.load(args.run, compiled="auto")
    right = dict(zip(lines, translator.translate(lines), strict=True))

    print("| | sentences/s | p50, ms | p99, ms | memory, MB |\n|---|---|---|---|---|")
    seconds, end = [], time.monotonic() + args.seconds
    for line in islice(cycle(lines), MOST):
        start = time.perf_counter()
        translator.translate([line])
        seconds.append(time.perf_counter() - start)
        if time.monotonic() > end:
            break
    print(row("plain loop", seconds, sum(seconds)), flush=True)
    wrong = Counter[str]()
    with served(args.run) as server:
        for n in args.clients:
            replies = load(server, lines, n, args.seconds)
            wrong += faults(replies, right)
            done = [reply.seconds for reply in replies if reply.status == 200]
            print(row(f"{n} clients", done, args.seconds, f"{server.memory():.0f}"), flush=True)
    print(*(f"{n} times {what}" for what, n in wrong.items()), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
