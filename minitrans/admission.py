"""Who computes: the plain model, or compiled code that has proved to give the same numbers.

Compiled code is a guest. Where it is not there, does not know the model's architecture or gives other numbers, one line
says why, and the plain model computes.
"""

import functools
import logging
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from torch import Tensor

from minitrans.errors import UserError
from minitrans.model import loss
from minitrans.model.decoding import CachedStepper, Stepper
from minitrans.model.transformer import Transformer

Mode = Literal["auto", "off", "require"]  # compiled code where it proves itself; never; or else an error

logger = logging.getLogger("minitrans")


def make_batch_loss(mode: Mode) -> loss.BatchLoss:
    """What computes the loss of the batches of a training; it asks anew at each batch whether compiled code may.

    Args:
        mode: "require" has it raise a UserError where the plain model would have to.
    """
    compiled = _compiled(mode, "training")
    if compiled is None:
        return loss.batch_loss

    def batch_loss(model: Transformer, src_ids: Tensor, tgt_in: Tensor, tgt_out: Tensor, smoothing: float) -> Tensor:
        try:
            found: Tensor = compiled.batch_loss(model, src_ids, tgt_in, tgt_out, smoothing)
            return found
        except compiled.NotAdmittedError as reason:
            _fall_back(mode, "training", str(reason), reason.expected)
            return loss.batch_loss(model, src_ids, tgt_in, tgt_out, smoothing)

    return batch_loss


def make_stepper(model: Transformer, mode: Mode) -> tuple[Stepper[Any], bool]:
    """What computes a model's steps in decoding, as the model is now.

    Args:
        model: In eval mode.
        mode: Who may.

    Returns:
        The stepper, and whether it is compiled code.

    Raises:
        UserError: The mode is "require", and the plain model would have to.
    """
    compiled = _compiled(mode, "decoding")
    if compiled is not None:
        try:
            return compiled.admit_stepper(model), True
        except compiled.NotAdmittedError as reason:
            _fall_back(mode, "decoding", str(reason), reason.expected)
    return CachedStepper(model), False


def is_measured(mode: Mode) -> bool:
    """Whether compiled code is to be verified: where it is there and can be compiled.

    Raises:
        UserError: The mode is "require", and it is not, or cannot.
    """
    compiled = _compiled(mode, "verification")
    if compiled is None:
        return False
    try:
        compiled.check_compiler()
    except compiled.NotAdmittedError as reason:
        _fall_back(mode, "verification", str(reason), reason.expected)
        return False
    return True


def _compiled(mode: Mode, work: str) -> ModuleType | None:
    """The folder of compiled code, if it may be asked and is there."""
    if mode == "off":
        return None
    try:
        return import_module("minitrans.compiled")
    except ModuleNotFoundError as error:
        if error.name != "minitrans.compiled":
            raise
        _fall_back(mode, work, "the folder minitrans/compiled is not there", expected=True)
        return None


def _fall_back(mode: Mode, work: str, reason: str, expected: bool) -> None:
    if mode == "require":
        raise UserError(f"compiled code is required, and may not do the {work}: {reason}; give auto or off")
    say_once(logging.INFO if expected else logging.WARNING, f"{work} takes the plain and slower path: {reason}")


@functools.cache
def say_once(level: int, message: str) -> None:
    """Log a message the first time in this process."""
    logger.log(level, message)
