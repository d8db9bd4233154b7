"""The model compiled for this processor: a guest. Without this folder everything works, more slowly.

`compiled_batch_loss` and `compiled_stepper` give what computes batches and steps faster than the model, or refuse in
words: the plan has to know the architecture, and the probe has to find no difference between the model's own numbers
and these. Both look at the model and its code once, when they are called; the loss reads dropout at each batch.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from minitrans.compiled import probe, stepper, training
from minitrans.compiled.library import DTYPE_SUFFIXES, NotAdmittedError, load_library
from minitrans.compiled.plan import Plan, read_plan
from minitrans.compiled.stepper import CompiledStepper
from minitrans.model.loss import BatchLossFn
from minitrans.model.transformer import Transformer

__all__ = ["NotAdmittedError", "compile_libraries", "compiled_batch_loss", "compiled_stepper"]


def compiled_batch_loss(model: Transformer, device: torch.device, dtype: torch.dtype) -> BatchLossFn:
    """The loss of a model's batches, with products in a dtype: of its weights and dropout as they are at each batch.

    Raises:
        NotAdmittedError: It may not compute this model's.
    """
    plan = _plan_model(model, device, dtype)
    kind = model.output.weight.dtype, model.output.weight.device
    if kind[0] != (computed := torch.promote_types(dtype, torch.float32)):
        raise NotAdmittedError(f"products in {dtype} train parameters in {computed} alone", expected=True)
    probe.check_training(plan, dtype)
    return partial(_batch_loss, model, kind, partial(training.batch_loss, plan, dtype=dtype))  # which deepcopy copies


def _batch_loss(model: Transformer, kind: tuple[object, object], compute: BatchLossFn, *batch: Any) -> Tensor:
    if (model.output.weight.dtype, model.output.weight.device) != kind:
        raise RuntimeError(f"the model, which was {kind[0]} on {kind[1]}, has been converted or moved since")
    return compute(*batch)


def compiled_stepper(model: Transformer) -> CompiledStepper:
    """A stepper of a model on a CPU; it takes a copy of the weights.

    Raises:
        NotAdmittedError: It may not compute this model's steps.
    """
    plan = _plan_model(model, model.output.weight.device, model.output.weight.dtype)
    probe.check_steps(plan, plan.output.dtype)
    return CompiledStepper(plan)


def _plan_model(model: Transformer, device: torch.device, dtype: torch.dtype) -> Plan:
    """The model's plan, for products in a dtype."""
    if device.type != "cpu":
        raise NotAdmittedError(f"compiled code is for a CPU, and the model is on {device}", expected=True)
    if dtype not in DTYPE_SUFFIXES:
        raise NotAdmittedError(f"compiled code does not compute in {dtype}", expected=True)
    return read_plan(model)


def compile_libraries() -> bool:
    """True: both libraries are there, compiled unless that has been done on this machine.

    Raises:
        NotAdmittedError: It cannot be done.
    """
    return all(load_library(source, {}) for source in (training.CPP_PATH, stepper.CPP_PATH))
