"""Who computes: the plain model, or compiled code that has proved to give the same numbers.

Compiled code is optional. If it is not there, does not know the model's architecture or gives other numbers, one line
of the log says why, and the plain model computes. This is decided once, when one of these functions is called: a hook
or a patch that the model gets afterwards is not noticed. Where the mode is "require", they raise a `UserError` instead.
"""

import logging
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args

import torch

from minitrans.errors import UserError
from minitrans.model import loss
from minitrans.model.decoding import CachedStepper, Stepper
from minitrans.model.transformer import Transformer

CompiledMode = Literal["auto", "off", "require"]  # compiled code: if it proves itself; never; always, or an error
T = TypeVar("T")

logger = logging.getLogger("minitrans")

PLAIN_NAME, COMPILED_NAME = "PyTorch", "compiled C++"
_backend_by_task: dict[str, str] = {}  # for each kind of work, what does it in this process


def make_batch_loss(
    model: Transformer, mode: CompiledMode, device: torch.device, dtype: torch.dtype
) -> loss.BatchLossFn:
    """Return a function for the loss of batches of a model to train on `device`, with products in `dtype`.

    The model's weights are read at each batch; once it gets others, the function raises a RuntimeError.
    """
    compiled_loss = _try_compiled(mode, "training", lambda compiled: compiled.compiled_batch_loss(model, device, dtype))
    return compiled_loss or partial(loss.batch_loss, model)


def make_stepper(model: Transformer, mode: CompiledMode) -> Stepper[Any]:
    """Return a stepper for a model in eval mode: a `CachedStepper`, or compiled code with a copy of the weights."""
    return _try_compiled(mode, "decoding", lambda compiled: compiled.compiled_stepper(model)) or CachedStepper(model)


def can_verify_compiled(mode: CompiledMode) -> bool:
    """Whether compiled code is to be verified: whether it is present and can be compiled."""
    both = f"{PLAIN_NAME} and {COMPILED_NAME}"
    return _try_compiled(mode, "verification", lambda compiled: compiled.compile_libraries(), both) or False


def describe_backends() -> str:
    """For each kind of work requested in this process so far, what does it; the latest choice counts."""
    return ", ".join(f"{work} in {who}" for work, who in _backend_by_task.items())


def _try_compiled(mode: CompiledMode, work: str, use: Callable[[Any], T], admitted: str = COMPILED_NAME) -> T | None:
    """What `use` gets from compiled code; None if that is off, missing or refuses. `admitted` names what then works."""
    if mode not in get_args(CompiledMode):
        raise ValueError(f"compiled is {mode!r}; it must be auto, off or require")
    _backend_by_task[work] = PLAIN_NAME
    if mode == "off":
        log_once(logging.INFO, f"{work} in {PLAIN_NAME}: compiled code is off")
        return None
    try:
        compiled = import_module("minitrans.compiled")
        try:
            function = use(compiled)
            _backend_by_task[work] = admitted
            log_once(logging.INFO, f"{work} in {admitted}")
            return function
        except compiled.NotAdmittedError as refusal:
            reason, level = str(refusal), logging.INFO if refusal.expected else logging.WARNING
    except ModuleNotFoundError as error:
        if error.name != "minitrans.compiled":
            raise
        reason, level = "the folder minitrans/compiled is missing", logging.INFO
    if mode == "require":
        raise UserError(f"compiled code is required, but may not do the {work}: {reason}; give auto or off")
    log_once(level, f"{work} takes the plain and slower path: {reason}")
    return None


@cache
def log_once(level: int, message: str) -> None:
    """Log a message, once in this process."""
    logger.log(level, message)
