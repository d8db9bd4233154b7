"""Translating in several processes: each takes a share of the lines, and the results are in the order of the lines."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Self, TypeVar

import torch

from minitrans.errors import UserError
from minitrans.translate.translator import Translator

T = TypeVar("T")
# It takes a translator, lines, and the number of the first line in its file.
ChunkFunction = Callable[[Translator, Sequence[str], int], Iterable[T]]


class Workers:
    """Processes that each hold a translator and a share of the threads.

    If there is only one, it is this process, and no other is started.

    Attributes:
        translator: This process's own.
    """

    def __init__(self, n: int, load: Callable[[], Translator]) -> None:
        """Start them, and wait until all have loaded; where there are several, `load` must be picklable.

        Raises:
            UserError: `load` raises it.
        """
        self.translator = load()
        context = multiprocessing.get_context("spawn")
        end, self._life = context.Pipe(duplex=False)
        setting = end, max(1, torch.get_num_threads() // n)
        # A pool for each process, so that each gets its share of the lines even if another one is quicker.
        self._pools = [ProcessPoolExecutor(1, context, _init_worker, setting) for _ in range(n if n > 1 else 0)]
        ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the workers inherit: this process ends them
        try:
            loading = [pool.submit(_load_translator, load) for pool in self._pools]
        finally:
            signal.signal(signal.SIGINT, ctrl_c)
        _collect_results(loading)

    def run(self, work: ChunkFunction[T], lines: Sequence[str], first_line: int = 1) -> list[T]:
        """Return what `work` gives for all lines, in their order.

        It is called for each share of the lines, and has to be picklable. `first_line` is the first one's number.

        Raises:
            UserError: A worker has died.
            Exception: Whatever `work` raises.
        """
        if not self._pools:
            return list(work(self.translator, lines, first_line))
        chunk_size = max(1, -(-len(lines) // len(self._pools)))
        starts = range(0, len(lines), chunk_size)
        futures = (
            pool.submit(_run_in_worker, work, lines[start : start + chunk_size], first_line + start)
            for pool, start in zip(self._pools, starts, strict=False)
        )
        return [result for results in _collect_results(futures) for result in results]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers, whatever they are doing."""
        self._life.close()
        for pool in self._pools:
            pool.shutdown()


def _collect_results(futures: Iterable[Future[T]]) -> list[T]:
    try:
        return [future.result() for future in list(futures)]
    except BrokenProcessPool as error:
        raise UserError("a worker process has died, perhaps because memory ran out; use fewer --processes") from error


_worker_translator: Translator  # of a worker


def _init_worker(end: Connection, threads: int) -> None:
    """Have this process end when the other end is closed, on purpose or because the process that holds it is gone."""

    def end_with_parent() -> None:
        end.poll(None)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _load_translator(load: Callable[[], Translator]) -> None:
    global _worker_translator
    _worker_translator = load()


def _run_in_worker(work: ChunkFunction[T], lines: Sequence[str], first_line: int) -> list[T]:
    return list(work(_worker_translator, lines, first_line))
