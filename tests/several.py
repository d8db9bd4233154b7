"""Several processes of one training, as threads that talk through a stand-in for `torch.distributed`."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def as_processes(n: int, work: Callable[[], T]) -> list[T]:
    """What each of n processes returns that do the same work, in the order of their ranks."""
    own, meet, told = threading.local(), threading.Barrier(n, timeout=60), [None] * n

    def all_gather_object(values: list[Any], value: Any) -> None:
        told[own.rank] = value
        meet.wait()
        values[:] = told
        meet.wait()

    def do(rank: int) -> T:
        own.rank = rank
        try:
            return work()
        except BaseException:
            meet.abort()
            raise

    facts = {"is_available": True, "is_initialized": True, "get_world_size": n}
    dist = SimpleNamespace(**{name: lambda fact=fact: fact for name, fact in facts.items()})
    dist.get_rank, dist.all_gather_object = lambda: own.rank, all_gather_object
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(n) as pool:
        patch.setattr("minitrans.data.processes.dist", dist)
        return list(pool.map(do, range(n)))
