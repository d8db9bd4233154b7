"""How much memory some work takes, without what is mapped from files."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PROC_STATUS = Path("/proc/self/status")
needs_proc_status = pytest.mark.skipif(
    not PROC_STATUS.exists(), reason="only Linux reports memory without mapped files"
)


def peak_private_kb_during(work: Callable[..., object], *arguments: object) -> int:
    """The most kilobytes that this process has during the work, without what is mapped from files."""
    most = 0
    with ThreadPoolExecutor() as pool:
        working = pool.submit(work, *arguments)
        while not working.done():
            most = max(most, int(PROC_STATUS.read_text().split("RssAnon:")[1].split()[0]))
            time.sleep(0.002)
    working.result()  # raises what went wrong
    return most
