"""What the processes of one training tell each other; a process that trains alone tells itself, at no cost."""

from typing import TypeVar

import torch
from torch import distributed as dist

T = TypeVar("T")


def rank() -> int:
    """The number of this process among all of them, from 0."""
    return dist.get_rank() if n_processes() > 1 else 0


def n_processes() -> int:
    """How many there are, on all machines."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def own_slice(n: int) -> slice:
    """Return which of n things are this process's share; after `all_gather`, every process has all results."""
    size = -(-n // n_processes())
    return slice(rank() * size, (rank() + 1) * size)


def sum_over_processes(numbers: list[float], device: torch.device) -> list[float]:
    """Add up each number over the processes, in float64; all of them have to call it.

    Args:
        numbers: As many in each process.
        device: Where this process trains.
    """
    if n_processes() == 1:
        return numbers
    totals = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(totals)
    return totals.tolist()


def all_gather(value: T) -> list[T]:
    """Return what each process calls it with, in the order of their ranks; all of them have to call it."""
    if n_processes() == 1:
        return [value]
    values = [value] * n_processes()
    dist.all_gather_object(values, value)
    return values
