"""What a check is, how a deviation is measured, and what is reported."""

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

FLOAT64_TOLERANCE = 1e-12  # how far two ways of computing the same thing may differ in float64
# And in a lower dtype, relative to the largest element: this many times its eps. n roundings one after another add up
# to about sqrt(n) / 2 times eps (Higham and Mary 2019), and twice that is allowed. A sum in float32 is rounded at each
# of its terms: on the way from ids to logits up to 16,384 times. A sum in bfloat16 is taken in float32 and rounded only
# at its end: some 64 times on that way.
TOLERANCES_IN_EPS = {torch.float32: 128, torch.bfloat16: 8}
LOWER_DTYPES = tuple(TOLERANCES_IN_EPS)
MIN_FAULT = 1e-3  # a wrong formula has to be off by at least this: else a check has not told it from the right one
SEED = 0  # of the random numbers that a check draws

MeasureFn = Callable[[Any], float]  # takes a subject, and returns how far it deviates
MeasureT = TypeVar("MeasureT", bound=Callable[..., float])  # such a function, which may take more than a subject

logger = logging.getLogger("minitrans")


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype's name, say "float32"."""
    return str(dtype).removeprefix("torch.")


def dtype_tolerance(dtype: torch.dtype) -> float:
    """How far two ways of computing the same thing may differ in a dtype."""
    return FLOAT64_TOLERANCE if dtype == torch.float64 else TOLERANCES_IN_EPS[dtype] * torch.finfo(dtype).eps


def one_line_message(error: Exception) -> str:
    """An error's message on one line, cut to 200 characters."""
    return " ".join(str(error).split())[:200]


class NotOfferedError(Exception):
    """A model cannot do what a check asks for; the message says what, or is the model's own error."""


@dataclass(frozen=True)
class Measurement:
    """The outcome in one dtype: the worst deviation found, where NaN and infinity fail; and the largest allowed."""

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
        group: The chapter of the table that it belongs to.
        claim: What it shows, in one sentence.
        what: What is measured.
        measured: The worst deviation found in float64; None if float64 was not measured.
        tolerance: The largest deviation allowed in float64.
        passed: Whether it passed in float64 and in every lower dtype.
        seconds: How long it took.
        lower: Measured and tolerance in lower dtypes, by the dtype's name, where that makes sense.
        offered: Whether the model can do what is asked at all; if not, the check has not passed, and `detail` says why.
        detail: If the check failed, what differs first, and which known fault that looks like; else perhaps a remark.
    """

    id: str
    group: str
    claim: str
    what: str
    measured: float | None
    tolerance: float
    passed: bool
    seconds: float
    lower: dict[str, Measurement]
    offered: bool = True
    detail: str = ""

    @property
    def failed(self) -> bool:
        """Whether something was measured, and exceeds what is allowed."""
        return self.offered and not self.passed

    @property
    def first_failed_dtype(self) -> str:
        """The name of the first dtype in which it failed."""
        return next(name for name, m in self.by_dtype.items() if not m.passed)

    @property
    def failed_measurement(self) -> Measurement:
        """The outcome in the first dtype in which it failed."""
        return self.by_dtype[self.first_failed_dtype]

    @property
    def by_dtype(self) -> dict[str, Measurement]:
        """What was measured in each dtype, by its name."""
        float64 = {} if self.measured is None else {"float64": Measurement(self.measured, self.tolerance)}
        return {**float64, **self.lower}

    def is_worse_than(self, before: "Result") -> bool:
        """Whether it fails in a dtype in which it passed before, or by a hundred times what it measured then."""
        known = before.by_dtype
        return any(
            name in known and not m.passed and (known[name].passed or m.measured > 100 * known[name].measured)
            for name, m in self.by_dtype.items()
        )


@contextmanager
def default_modes() -> Iterator[None]:
    """Gradients can be computed, dtypes are those of the tensors, new ones on the CPU, whatever the caller has set.

    Afterwards PyTorch's generator of random numbers (the CPU's, which alone is used) is as it was.
    """
    cpu = nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")  # which is slow
    cuda = torch.autocast("cuda", enabled=False) if torch.cuda.is_available() else nullcontext()
    off = torch.autocast("cpu", enabled=False)
    with torch.inference_mode(False), off, cuda, torch.random.fork_rng(devices=[]), cpu:
        yield


@dataclass(frozen=True)
class Check:
    """A claim, and the function that measures how far the code and the model are from it."""

    id: str
    group: str
    claim: str
    what: str
    tolerance: float
    lower_dtypes: tuple[torch.dtype, ...]
    measure: MeasureFn

    @default_modes()
    def run(self, subjects: Mapping[torch.dtype, Any], may_lack: bool = False) -> Result:
        """Measure in the first dtype of `subjects` that offers what is asked, and in the check's lower dtypes after it.

        The first is float64, if the model computes in it. A check that raises has failed, with an infinite deviation;
        but with `may_lack`, a `NotOfferedError` means that the model does not offer what is asked.
        """
        began = time.perf_counter()
        errors: dict[torch.dtype, Deviation] = {}
        lacking = ""
        for dtype in subjects:
            if dtype in self.lower_dtypes or not errors:
                try:
                    errors[dtype] = as_deviation(self._measure_or_inf(subjects[dtype], may_lack))
                    lacking = ""
                except NotOfferedError as error:
                    lacking = str(error) or "no reason is given"
                    if errors:
                        break
        measured = {
            dtype: Measurement(float(x), self.tolerance_in(x.rounding_dtype or dtype)) for dtype, x in errors.items()
        }
        if any(not m.passed for m in measured.values()):
            lacking = ""  # a failure in one dtype counts, whatever is not offered in another
        details = [x.locate(measured[dtype].tolerance) for dtype, x in errors.items() if not measured[dtype].passed][:1]
        details += [f"part of it is computed in {dtype_name(x.rounding_dtype)}, and allowed its rounding"
                    for x in errors.values() if x.rounding_dtype]  # fmt: skip
        return Result(
            id=self.id,
            group=self.group,
            claim=self.claim,
            what=self.what,
            measured=measured[torch.float64].measured if torch.float64 in measured else None,
            tolerance=measured[torch.float64].tolerance if torch.float64 in measured else self.tolerance,
            passed=not lacking and bool(measured) and all(m.passed for m in measured.values()),
            seconds=time.perf_counter() - began,
            lower={dtype_name(dtype): m for dtype, m in measured.items() if dtype != torch.float64},
            offered=not lacking,
            detail=lacking or "; ".join(filter(None, details)),
        )

    def tolerance_in(self, dtype: torch.dtype) -> float:
        """The largest deviation allowed in a dtype: what is exactly 0 in float64 has to be so in every other."""
        return self.tolerance if dtype == torch.float64 or self.tolerance == 0.0 else dtype_tolerance(dtype)

    def _measure_or_inf(self, subject: Any, may_lack: bool) -> float:
        try:
            torch.default_generator.manual_seed(SEED)  # modules that a check makes are the same every time
            return self.measure(subject)
        except Exception as error:  # wrong code raises all kinds: shapes, dtypes, missing parameters, a division by 0
            if may_lack and isinstance(error, NotOfferedError):
                raise
            logger.info("%s raised", self.id, exc_info=True)
            return unmeasured(f"{type(error).__name__}: {one_line_message(error)}")


def new_check_group(title: str) -> tuple[Callable[..., Callable[[MeasureT], MeasureT]], list[Check]]:
    """Begin a chapter of a table: returns the decorator that adds checks to it, and the list of its checks.

    The decorator takes the check's id, what is measured, the tolerance in float64, and the lower dtypes that it is
    measured in too. The docstring of the decorated function is the claim, one sentence. Gradients are off,
    unless the function turns them on.
    """
    checks: list[Check] = []

    def check(
        id_: str, what: str, tolerance: float = FLOAT64_TOLERANCE, lower: tuple[torch.dtype, ...] = LOWER_DTYPES
    ) -> Callable[[MeasureT], MeasureT]:
        def register(measure: MeasureT) -> MeasureT:
            checks.append(Check(id_, title, measure.__doc__ or "", what, tolerance, lower, torch.no_grad()(measure)))
            return measure

        return register

    return check, checks


@dataclass(frozen=True)
class Caught:
    """A sabotage: its id, what was done to the code in one sentence, and the ids of the checks that failed."""

    id: str
    fault: str
    caught_by: list[str]


@dataclass(frozen=True)
class Report:
    """The outcome of all checks, and of the self-test if there was one.

    Attributes:
        checks: One result for each check.
        sabotages: One entry for each sabotage; None if there was no self-test.
        each_must_catch: Whether each check has to catch at least one sabotage.
    """

    checks: list[Result]
    sabotages: list[Caught] | None = None
    each_must_catch: bool = True

    @property
    def blind_checks(self) -> list[str]:
        """Ids of the checks that should have caught a sabotage, and caught none; empty without a self-test."""
        if self.sabotages is None or not self.each_must_catch:
            return []
        caught = {id_ for sabotage in self.sabotages for id_ in sabotage.caught_by}
        return [result.id for result in self.checks if result.id not in caught]

    @property
    def missing_steps(self) -> Result | None:
        """The result for single steps, which are required, if the model does not offer them."""
        return next((r for r in self.checks if r.id == "steps" and not r.offered), None)

    @property
    def passed(self) -> bool:
        """Whether checks passed, none failed, steps are offered, and a self-test missed no sabotage and no check."""
        none_failed = any(r.passed for r in self.checks) and not any(r.failed for r in self.checks)
        all_caught = all(s.caught_by for s in self.sabotages or []) and not self.blind_checks
        return none_failed and not self.missing_steps and all_caught


class Deviation(float):
    """How far something is from what it should be; and where, if that is known.

    Attributes:
        position_errors: (B, n), the largest deviation of each row at each position; None if there are no positions.
        offset: The position of their first column.
        context: What was done to find it, such as "fed in chunks of 3 + 2"; empty if that is obvious.
        reason: Why there is no number; empty if there is one.
        rounding_dtype: The dtype whose rounding is allowed, if it is lower than the model's.
    """

    position_errors: Tensor | None = None
    offset: int = 0
    context: str = ""
    reason: str = ""
    rounding_dtype: torch.dtype | None = None

    def named(self, what: str = "", offset: int = 0) -> "Deviation":
        """A copy that says what was done, with its positions moved by `offset`."""
        same = copy.copy(self)
        same.context, same.offset = what or self.context, self.offset + offset
        return same

    def locate(self, tolerance: float) -> str:
        """Where it first exceeds a tolerance, in words; empty if that is not known."""
        words = [word for word in (self.reason, self.context) if word]
        if self.position_errors is not None:
            wrong = ~(self.position_errors <= tolerance)
            if wrong.any():
                position = int(wrong.any(0).nonzero()[0])
                row = int(wrong[:, position].nonzero()[0])
                size = to_str(float(self.position_errors[row, position]))
                where = f"position {position + self.offset}" + f" of row {row}" * (len(wrong) > 1)
                words.insert(0, f"{where} is the first that differs, by {size}")
        return ", ".join(words)


def unmeasured(reason: str) -> Deviation:
    """An infinite deviation, for what could not be measured."""
    infinite = Deviation(math.inf)
    infinite.reason = reason
    return infinite


def deviation(a: Tensor, b: Tensor) -> Deviation:
    """How far two tensors of one shape are apart: the largest absolute difference of two elements.

    In a lower dtype than float64 it is relative to the largest element of `b` where that is above 1, since rounding
    errors grow with the numbers. Infinite if the shapes differ or there is nothing to compare, for that is not
    agreement; NaN if one holds NaN.

    Args:
        a: Any shape and floating dtype: the dtype that is measured. With three axes or more, the first is the rows, and
            the last but one the positions.
        b: Same shape, the same dtype or a higher one.
    """
    if a.shape != b.shape or a.numel() == 0:
        return unmeasured(f"numbers of shape {tuple(a.shape)}, to compare with {tuple(b.shape)}")
    errors = (a.double() - b.double()).abs()
    if a.dtype != torch.float64:
        errors = errors / max(1.0, float(b.abs().max()))
    largest = Deviation(errors.max())
    if a.dim() > 2:
        largest.position_errors = errors.flatten(1, -3).amax((1, -1)) if a.dim() > 3 else errors.amax(-1)
    return largest


def compare(got: Sequence[Tensor], want: Sequence[Tensor]) -> Deviation:
    """The worst deviation between corresponding tensors.

    The last of four axes is padded with zeros to equal size: weights of tokens that do not exist yet are 0.
    """
    if len(got) != len(want):
        return unmeasured(f"kinds of numbers: {len(got)}, to compare with {len(want)}")
    return worst([deviation(*pad_weights_to_widest(a, b)) for a, b in zip(got, want, strict=True)])


def pad_weights_to_widest(*parts: Tensor) -> list[Tensor]:
    """Attention weights (B, H, n, k), each padded with zeros to the widest; tensors of other shapes are left alone."""
    if any(x.dim() != 4 for x in parts):
        return list(parts)
    width = max(x.size(-1) for x in parts)
    return [F.pad(x, (0, width - x.size(-1))) for x in parts]


def worst(deviations: Sequence[float]) -> Deviation:
    """The largest deviation; NaN if one is NaN, infinite if there is none."""
    return as_deviation(max(deviations, key=lambda each: (math.isnan(each), each), default=math.inf))


def as_deviation(x: float) -> Deviation:
    """The same number, with what is known about it if it is a `Deviation` already."""
    return x if isinstance(x, Deviation) else Deviation(x)


def to_str(x: float | None) -> str:
    """A deviation or tolerance as short text: whole numbers as such (0 is exactly zero), others to two digits."""
    if x is None:
        return ""
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "∞"
    if x == int(x) and abs(x) < 1e6:
        return str(int(x))
    mantissa, _, exponent = f"{x:.2g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
