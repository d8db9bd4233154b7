"""What the processes of a training run send to each other; for a process that trains alone, this costs nothing."""

from typing import TypeVar

import torch
from torch import distributed as dist

T = TypeVar("T")


def rank() -> int:
    """The number of this process among all of them, from 0."""
    return dist.get_rank() if n_processes() > 1 else 0


def n_processes() -> int:
    """The number of processes, on all machines."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def own_slice(n: int) -> slice:
    """Return which of n things are this process's share; after `all_gather`, every process has all results."""
    size = -(-n // n_processes())
    return slice(rank() * size, (rank() + 1) * size)


def sum_over_processes(numbers: list[float], device: torch.device) -> list[float]:
    """Add up each number over the processes, in float64; all have to call this, with equally many numbers."""
    if n_processes() == 1:
        return numbers
    totals = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(totals)
    return totals.tolist()


def all_gather(value: T) -> list[T]:
    """Return the value that each process passes, in the order of their ranks; all processes have to call this."""
    if n_processes() == 1:
        return [value]
    values = [value] * n_processes()
    dist.all_gather_object(values, value)
    return values
