"""The time that a benchmark may take: how often it repeats a measurement, and the progress it prints."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from time import monotonic
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

PROGRESS_INTERVAL = 15.0  # seconds between two lines of progress

P = ParamSpec("P")
T = TypeVar("T")


class TimeBudget:
    """A number of minutes; inside `with`, progress is printed every few seconds, however long a measurement takes."""

    def __init__(self, name: str, minutes: float) -> None:
        """Start the clock; `name` begins every line of progress."""
        self._name, self._what = name, "making ready"
        self._end = monotonic() + 60 * minutes
        self._done = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._print_progress, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()

    def _print_progress(self) -> None:
        while not self._done.wait(PROGRESS_INTERVAL):
            self.announce(self._what)

    def seconds_left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._end - monotonic())

    def announce(self, what: str) -> None:
        """Say on standard error what is being measured from now on."""
        self._what = what
        print(f"{self._name}: {what}; at most {self.seconds_left():.0f} s left", file=sys.stderr, flush=True)

    def repeat(self, what: str, fraction: float, least: int, most: int) -> Iterator[int]:
        """Count turns from 1 while one more, as long as the mean turn so far, fits into a fraction of the time left."""
        self.announce(what)
        began = monotonic()
        end = began + fraction * self.seconds_left()
        for done in count(1):
            yield done
            mean = (monotonic() - began) / done
            if done >= most or (done >= least and monotonic() + mean > end):
                return


def run_in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a process of its own, which ends silently on Ctrl-C."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_end_on_interrupt) as pool:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process is ready, too
        try:
            future = pool.submit(function, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return future.result()


def _end_on_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
