"""What a command sets for its whole process: the log, garbage collection, how threads wait, memory, signals."""

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import TextIO

from minitrans.errors import interrupt_once
from minitrans.text.lines import escape_controls

GC_THRESHOLD = 100_000  # new objects that start a collection; importing PyTorch alone makes 167,000 that all stay
SPIN_COUNT = "3000"  # loops, some microseconds, for which a waiting thread keeps its core before it sleeps


class StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes each record as a line to the current `sys.stderr`: while there is a progress bar, above it."""

    def format(self, record: logging.LogRecord) -> str:
        """Escape what could move the cursor."""
        return escape_controls(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Look up `sys.stderr`, and write to it."""
        self.stream = sys.stderr  # setStream would flush the last one, which may be closed
        super().emit(record)


def start_log(debug: bool) -> None:
    """Log warnings to standard error; with --debug, informative messages too."""
    line = "minitrans: %(levelname)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=line, handlers=[StandardErrorHandler()])
    logging.addLevelName(logging.WARNING, "warning")
    if debug:
        logging.getLogger("minitrans").setLevel(logging.INFO)


def set_gc_and_env() -> None:
    """Set what suits every command; to be called before the libraries are imported that read the environment."""
    gc.set_threshold(GC_THRESHOLD)
    atexit.register(gc.disable)  # no collection at exit
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # hide PyTorch's hints
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # hide each retry; the last one raises the error we report
    if "OMP_WAIT_POLICY" not in os.environ:  # by default, waiting threads keep their cores for milliseconds
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def setup_training_process() -> None:
    """Set what suits training, which may have several processes: the first one starts and stops the others."""
    keep_freed_memory()
    if "LOCAL_RANK" in os.environ:
        # Have Linux kill this process when the one that started it ends, even while it waits for that one.
        set_signal_at_parents_death = 1  # Linux's prctl.h
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(set_signal_at_parents_death, signal.SIGKILL)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks; otherwise every step returns its memory, and faults it in again.

    This makes a step on a CPU a seventh shorter. Other C libraries have no such setting, and are left alone.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # glibc's malloc.h
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 1 << 25)  # the most that glibc before 2.35 takes: it refuses the next
        for setting, size in ((mmap_threshold, 1 << 30), (trim_threshold, (1 << 31) - 1), (top_pad, 1 << 28)):
            mallopt(setting, size)


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM, or a terminal that closes, end a command as Ctrl-C does, so that half-written files are removed."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ValueError):  # not in the main thread
            for number, handler in ((signal.SIGTERM, signal.default_int_handler), (signal.SIGHUP, interrupt_once)):
                if (before := signal.getsignal(number)) is not signal.SIG_IGN:  # `nohup` ignores the second
                    signal.signal(number, handler)
                    stack.callback(signal.signal, number, before)
        yield
