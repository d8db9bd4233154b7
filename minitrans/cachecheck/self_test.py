"""What a fault is, and the self-test: a check that has never failed proves nothing."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from minitrans.cachecheck.measure import Caught, Check, Result

SubjectByDtype = Mapping[torch.dtype, Any]


@dataclass(frozen=True)
class Fault(ABC):
    """What can be wrong; each subclass is a way to bring it about.

    Attributes:
        id: Its name.
        fault: What is wrong, in one sentence.
    """

    id: str
    fault: str

    @abstractmethod
    def apply_fault(self) -> AbstractContextManager[Callable[[Any], Any]]:
        """A context in which the fault is there; it yields what makes the faulty subject of a right one."""

    def results_under_fault(
        self, checks: Sequence[Check], make_subjects: Callable[[], SubjectByDtype], may_lack: bool = False
    ) -> list[Result]:
        """What the checks measure on subjects made while the fault is there; arguments as for `catch_faults`."""
        with self.apply_fault() as faulty:
            subjects = {dtype: faulty(subject) for dtype, subject in make_subjects().items()}
            return [check.run(subjects, may_lack) for check in checks]


def catch_faults(
    checks: Sequence[Check],
    faults: Sequence[Fault],
    make_subjects: Callable[[], SubjectByDtype],
    before: Mapping[str, Result],
    may_lack: bool = False,
) -> Iterator[Caught]:
    """Bring about every fault, one at a time, and run all checks.

    Args:
        checks: What should notice.
        faults: What to bring about.
        make_subjects: Makes what is measured, for each dtype; it is called under each fault.
        before: What each check measures without a fault, by its id.
        may_lack: As for `Check.run`.

    Yields:
        For each fault the checks that noticed it; the fault is gone by then.
    """
    for fault in faults:
        results = fault.results_under_fault(checks, make_subjects, may_lack)
        yield Caught(fault.id, fault.fault, [result.id for result in results if is_worse(result, before[result.id])])


def is_worse(result: Result, before: Result) -> bool:
    """Whether a check fails in a dtype in which it passed before, or by a hundred times what it measured then."""
    known = before.by_dtype
    return any(
        name in known and not m.passed and (known[name].passed or m.measured > 100 * known[name].measured)
        for name, m in result.by_dtype.items()
    )
