"""Translating in several processes: each takes a share of the lines, and what comes out is in their order."""

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from minitrans.errors import UserError
from minitrans.serving.translator import Translator

T = TypeVar("T")
# From lines, and the number of the first one in its file.
Work = Callable[[Translator, Sequence[str], int], Iterable[T]]


class Workers:
    """Processes that each hold a translator and a share of the threads.

    With one, that is this process, and no other is started.

    Attributes:
        translator: This process's own.
    """

    def __init__(self, n: int, load: Callable[[], Translator]) -> None:
        """Start them; where there are several, `load` must be picklable.

        Raises:
            UserError: `load` does.
        """
        self.translator = load()
        self._workers: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        if n == 1:
            return
        context = multiprocessing.get_context("spawn")
        threads = max(1, torch.get_num_threads() // n)
        ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the workers inherit: this process stops them
        try:
            for _ in range(n):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, load, threads), daemon=True)
                process.start()
                theirs.close()
                self._workers.append((process, ours))
        finally:
            signal.signal(signal.SIGINT, ctrl_c)
        self.run(_nothing, [""] * n)  # until all have loaded it

    def run(self, work: Work[T], lines: Sequence[str], first_line: int = 1) -> list[T]:
        """Return what `work` gives for all lines, in their order.

        Args:
            work: Called for each share of the lines; picklable.
            lines: Source sentences.
            first_line: Number of the first line in its file.

        Raises:
            UserError: A worker has died.
            Exception: Whatever `work` raises.
        """
        if not self._workers:
            return list(work(self.translator, lines, first_line))
        share = max(1, -(-len(lines) // len(self._workers)))
        starts = range(0, len(lines), share)
        asked = list(zip(self._workers, starts, strict=False))
        results: list[T] = []
        try:
            for (_, connection), start in asked:
                connection.send((work, lines[start : start + share], first_line + start))
            for (_, connection), _ in asked:
                result = connection.recv()
                if isinstance(result, Exception):
                    raise result
                results += result
        except (EOFError, ConnectionError) as error:
            raise UserError("a worker process has died, perhaps for want of memory; take fewer --processes") from error
        return results

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the workers, whatever they are doing."""
        for process, _ in self._workers:
            process.terminate()
        for process, _ in self._workers:
            process.join()


def _nothing(translator: Translator, lines: Sequence[str], first_line: int) -> list[str]:
    return []


def _serve(connection: Connection, load: Callable[[], Translator], threads: int) -> None:
    """Work until the other end is closed."""
    torch.set_num_threads(threads)
    translator: Translator | None = None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            work, lines, first_line = connection.recv()
            try:
                translator = translator or load()
                result: Any = list(work(translator, lines, first_line))
            except Exception as error:
                error.add_note(traceback.format_exc())
                result = error
            connection.send(result)
