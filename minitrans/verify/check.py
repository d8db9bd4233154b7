"""What a check is, and what it reports."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from minitrans.verify.subject import Subject


@dataclass(frozen=True)
class Result:
    """The outcome of a check; the field names are those of `minitrans verify --json`.

    Attributes:
        id: The check's name.
        claim: What it shows, in one sentence.
        measured: The worst deviation found; NaN and infinity fail.
        tolerance: The largest deviation allowed.
        passed: Whether measured <= tolerance.
        seconds: How long it took.
    """

    id: str
    claim: str
    measured: float
    tolerance: float
    passed: bool
    seconds: float


@dataclass(frozen=True)
class Check:
    """A claim and the function that measures how far the model is from it."""

    id: str
    claim: str
    tolerance: float
    measure: Callable[[Subject], float]

    def run(self, subject: Subject) -> Result:
        """Measure; a check that raises has failed, with an infinite deviation."""
        began = time.perf_counter()
        try:
            measured = self.measure(subject)
        except (RuntimeError, ValueError, TypeError, IndexError):  # what wrong shapes and masks raise
            measured = float("inf")
        seconds = time.perf_counter() - began
        return Result(self.id, self.claim, measured, self.tolerance, measured <= self.tolerance, seconds)


@dataclass(frozen=True)
class Report:
    """The outcome of all checks."""

    checks: list[Result]

    @property
    def passed(self) -> bool:
        """Whether every check passed, and there was one."""
        return bool(self.checks) and all(result.passed for result in self.checks)

    def as_dict(self) -> dict[str, object]:
        """The object that `minitrans verify --json` prints. JSON knows no NaN and no infinity: they become null."""
        checks = [asdict(r) | {"measured": r.measured if math.isfinite(r.measured) else None} for r in self.checks]
        return {"passed": self.passed, "checks": checks}


def deviation(a: Tensor, b: Tensor) -> float:
    """The largest absolute difference of two tensors of one shape; infinite if the shapes differ, NaN if one holds NaN.

    Nothing to compare is not agreement: two empty tensors deviate infinitely.
    """
    if a.shape != b.shape or a.numel() == 0:
        return float("inf")
    return float((a - b).abs().max())


def relative_deviation(a: Tensor, b: Tensor) -> float:
    """`deviation`, divided by the largest absolute element of `b` where that is above 1."""
    return deviation(a, b) / max(1.0, float(b.abs().max()))


def worst(deviations: list[float]) -> float:
    """The largest of at least one deviation; NaN if one is NaN."""
    return float(torch.tensor(deviations, dtype=torch.float64).max()) if deviations else float("inf")
