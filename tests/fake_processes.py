"""Several processes of one training, as threads that talk through a stand-in for `torch.distributed`."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor


def run_as_processes(n: int, work: Callable[[], Any]) -> list[Any]:
    """Do the same work in n processes; return their results in the order of their ranks."""
    own, meet, gathered = threading.local(), threading.Barrier(n, timeout=60), [None] * n

    def gather(values: list[Any], value: Any) -> None:
        gathered[own.rank] = value
        meet.wait()
        for i, each in enumerate(gathered):  # into a list that has room for all
            values[i] = each
        meet.wait()

    def add_up(tensor: Tensor) -> None:
        values = [tensor] * n
        gather(values, tensor.clone())
        tensor.copy_(torch.stack(values).sum(0))

    def do(rank: int) -> Any:
        own.rank = rank
        return work()

    dist = mock.Mock(get_world_size=lambda: n, get_rank=lambda: own.rank, all_gather_object=gather, all_reduce=add_up)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(n) as pool:
        patch.setattr("minitrans.data.process_group.dist", dist)
        return list(pool.map(do, range(n)))
