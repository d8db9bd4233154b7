"""What a check is, how a deviation is measured, and what is reported."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from minitrans.verify.subject import Subject

FLOAT64 = 1e-12  # what two ways of computing one thing may differ by in float64
# And in a lower dtype, relative to the largest element: this many times its eps. A sum in float32 is rounded at each of
# its hundreds of terms, one in bfloat16 only at the end, for it is taken in float32.
ROUNDINGS = {torch.float32: 128, torch.bfloat16: 16}
LOWER = tuple(ROUNDINGS)
CONTROL = 1e-3  # what a wrong formula has to be off by at least, for a check to have told it from the right one

Measure = Callable[[Subject], float]

logger = logging.getLogger("minitrans")


def name_of(dtype: torch.dtype) -> str:
    """A dtype's name, say "float32"."""
    return str(dtype).removeprefix("torch.")


def rounding(dtype: torch.dtype) -> float:
    """What two ways of computing one thing may differ by in a dtype."""
    return FLOAT64 if dtype == torch.float64 else ROUNDINGS[dtype] * torch.finfo(dtype).eps


@dataclass(frozen=True)
class Measurement:
    """The outcome in one dtype.

    Attributes:
        measured: The worst that was found; NaN and infinity fail.
        tolerance: The largest allowed.
    """

    measured: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether measured <= tolerance."""
        return self.measured <= self.tolerance


@dataclass(frozen=True)
class Result:
    """The outcome of a check.

    Attributes:
        id: The check's name.
        group: The chapter of the table that it stands in.
        claim: What it shows, in one sentence.
        what: What is measured.
        measured: The worst that was found in float64.
        tolerance: The largest allowed in float64.
        passed: Whether it passed in float64 and in every lower dtype.
        seconds: How long it took.
        lower: The same in lower dtypes, by name, where that makes sense.
    """

    id: str
    group: str
    claim: str
    what: str
    measured: float
    tolerance: float
    passed: bool
    seconds: float
    lower: dict[str, Measurement]


@dataclass(frozen=True)
class Check:
    """A claim, and the function that measures how far the code and the model are from it."""

    id: str
    group: str
    claim: str
    what: str
    tolerance: float
    lower: tuple[torch.dtype, ...]
    measure: Measure

    def run(self, subjects: Mapping[torch.dtype, Subject]) -> Result:
        """Measure in float64, and in those of the check's lower dtypes that `subjects` has a subject for.

        A check that raises has failed, with an infinite deviation.
        """
        began = time.perf_counter()
        float64 = Measurement(self._measure(subjects[torch.float64]), self.tolerance)
        lower = {
            name_of(dtype): Measurement(self._measure(subjects[dtype]), self.tolerance_in(dtype))
            for dtype in self.lower
            if dtype in subjects
        }
        return Result(
            id=self.id,
            group=self.group,
            claim=self.claim,
            what=self.what,
            measured=float64.measured,
            tolerance=float64.tolerance,
            passed=float64.passed and all(m.passed for m in lower.values()),
            seconds=time.perf_counter() - began,
            lower=lower,
        )

    def tolerance_in(self, dtype: torch.dtype) -> float:
        """The largest deviation allowed in a lower dtype: what is exactly 0 in float64 has to be so in every other."""
        return 0.0 if self.tolerance == 0.0 else rounding(dtype)

    def _measure(self, subject: Subject) -> float:
        try:
            with torch.random.fork_rng(devices=[]):  # modules that a check makes are the same every time
                torch.manual_seed(0)
                return self.measure(subject)
        except Exception:  # wrong code raises all kinds: shapes, dtypes, missing parameters, a division by 0
            logger.info("%s raised", self.id, exc_info=True)
            return math.inf


CHECKS: list[Check] = []  # in the order in which they are defined, which is the order in which they teach


def group(title: str) -> Callable[..., Callable[[Measure], Measure]]:
    """Begin a chapter of the table: returns the decorator that registers its checks.

    The decorator takes the check's id, its claim in one sentence, what is measured, the tolerance in float64, and the
    lower dtypes that it is measured in too.
    """

    def check(
        id_: str, claim: str, what: str, tolerance: float = FLOAT64, lower: tuple[torch.dtype, ...] = ()
    ) -> Callable[[Measure], Measure]:
        def register(measure: Measure) -> Measure:
            CHECKS.append(Check(id_, title, claim, what, tolerance, lower, measure))
            return measure

        return register

    return check


@dataclass(frozen=True)
class Caught:
    """A sabotage, and the checks that noticed it.

    Attributes:
        id: The sabotage's name.
        fault: What was done to the code, in one sentence.
        caught_by: Ids of the checks that failed.
    """

    id: str
    fault: str
    caught_by: list[str]


@dataclass(frozen=True)
class Report:
    """The outcome of all checks, and of the self-test if there was one.

    Attributes:
        checks: One result for each check.
        sabotages: One entry for each sabotage; None if there was no self-test.
    """

    checks: list[Result]
    sabotages: list[Caught] | None = None

    @property
    def blind(self) -> list[str]:
        """Ids of the checks that caught no sabotage; empty without a self-test."""
        if self.sabotages is None:
            return []
        caught = {id_ for sabotage in self.sabotages for id_ in sabotage.caught_by}
        return [result.id for result in self.checks if result.id not in caught]

    @property
    def passed(self) -> bool:
        """Whether every check passed, and there was one; with a self-test, every sabotage was caught, by all checks."""
        escaped = [s for s in self.sabotages or [] if not s.caught_by]
        return bool(self.checks) and all(r.passed for r in self.checks) and not escaped and not self.blind

    def as_dict(self) -> dict[str, object]:
        """The object that `minitrans verify --json` prints. JSON knows no NaN and no infinity: they become null."""
        found: dict[str, object] = {"passed": self.passed, "checks": [_finite(asdict(r)) for r in self.checks]}
        if self.sabotages is not None:
            found["sabotages"] = [asdict(s) for s in self.sabotages]
        return found


def _finite(value: object) -> object:
    """The value with null for every NaN and infinity in it."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def deviation(a: Tensor, b: Tensor) -> float:
    """How far two tensors of one shape are apart: the largest absolute difference of two elements.

    In a lower dtype than float64 it is relative to the largest element of `b` where that is above 1, since rounding
    errors grow with the numbers. Infinite if the shapes differ or there is nothing to compare, for that is not
    agreement; NaN if one holds NaN.

    Args:
        a: Any shape and floating dtype: the dtype that is measured.
        b: Same shape, the same dtype or a higher one.
    """
    if a.shape != b.shape or a.numel() == 0:
        return math.inf
    distance = float((a.double() - b.double()).abs().max())
    return distance if a.dtype == torch.float64 else distance / max(1.0, float(b.abs().max()))


def worst(deviations: Sequence[float]) -> float:
    """The largest of at least one deviation; NaN if one is NaN."""
    return float(torch.tensor(deviations, dtype=torch.float64).max()) if deviations else math.inf


def number(x: float) -> str:
    """A deviation or tolerance as short text: whole numbers as such (0 is exactly zero), others to two digits."""
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "∞"
    if x == int(x) and abs(x) < 1e6:
        return str(int(x))
    mantissa, _, exponent = f"{x:.2g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
