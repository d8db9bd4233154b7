"""The model compiled for this processor: a guest. Without this folder everything works, more slowly.

`batch_loss` and `admit_stepper` compute batches and steps faster than the model, or refuse in words: the plan has to
know the architecture, and the probe has to find no difference between the model's own numbers and these.
"""

import torch
from torch import Tensor

from minitrans.compiled import kernels, probe, stepper
from minitrans.compiled.library import DTYPES, NotAdmittedError, load_library
from minitrans.compiled.stepper import CompiledStepper
from minitrans.compiled.training import batch_loss as compiled_loss
from minitrans.model.transformer import Transformer
from minitrans.plan import Plan, UnknownArchitectureError, read_plan

__all__ = ["NotAdmittedError", "admit_stepper", "batch_loss", "check_compiler"]


def batch_loss(model: Transformer, src_ids: Tensor, tgt_in: Tensor, tgt_out: Tensor, smoothing: float) -> Tensor:
    """A `BatchLoss`, on a CPU.

    Raises:
        NotAdmittedError: It may not compute this model's.
    """
    enabled = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if enabled else model.output.weight.dtype
    plan = _plan(model, dtype)
    if plan.output.dtype != (computed := torch.promote_types(dtype, torch.float32)):
        raise NotAdmittedError(f"products in {dtype} train parameters in {computed} alone", expected=True)
    probe.check_training(plan, dtype)
    return compiled_loss(plan, src_ids, tgt_in, tgt_out, smoothing, dtype)


def admit_stepper(model: Transformer) -> CompiledStepper:
    """A stepper of a model on a CPU; it takes a copy of the weights.

    Raises:
        NotAdmittedError: It may not compute this model's steps.
    """
    dtype = model.output.weight.dtype
    plan = _plan(model, dtype)
    probe.check_steps(plan, dtype)
    return CompiledStepper(plan)


def _plan(model: Transformer, dtype: torch.dtype) -> Plan:
    """The model's plan, for products in a dtype."""
    device = model.output.weight.device
    if device.type != "cpu":
        raise NotAdmittedError(f"compiled code is for a CPU, and the model is on {device}", expected=True)
    if dtype not in DTYPES:
        raise NotAdmittedError(f"compiled code does not compute in {dtype}", expected=True)
    try:
        return read_plan(model)
    except UnknownArchitectureError as error:
        raise NotAdmittedError(str(error)) from error


def check_compiler() -> None:
    """Compile both libraries, unless that has been done on this machine.

    Raises:
        NotAdmittedError: It cannot be done.
    """
    for source in (kernels.SOURCE, stepper.SOURCE):
        load_library(source)
