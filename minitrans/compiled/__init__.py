"""The model compiled for this processor: an optional part. Without this folder everything works, only more slowly.

`compiled_batch_loss` and `compiled_stepper` return something that computes batches or steps faster than the model, or
refuse and say why: the plan has to know the architecture, and the probe has to find no difference from the model's own
numbers. Both look at the model and its code once, when they are called; the loss reads dropout at each batch.
"""

from functools import partial
from itertools import zip_longest
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
    """Return the loss function of a model, with products in a dtype; it reads weights and dropout at each batch.

    Raises:
        NotAdmittedError: Compiled code may not compute this model's loss.
    """
    plan = _plan_model(model, device, dtype)
    if model.output.weight.dtype != (computed := torch.promote_types(dtype, torch.float32)):
        raise NotAdmittedError(f"products in {dtype} need parameters in {computed}", expected=True)
    probe.check_training(plan, dtype)
    compute = partial(training.batch_loss, plan, dtype=dtype)
    return partial(_batch_loss, model, [*model.parameters()], computed, compute)  # so deepcopy copies it


def _batch_loss(model: Transformer, own: list[Tensor], dtype: torch.dtype, compute: BatchLossFn, *batch: Any) -> Tensor:
    pairs = zip_longest(model.parameters(), own)
    if any(now is not before or now.dtype != dtype or not now.is_cpu for now, before in pairs):
        raise RuntimeError(f"the model, {dtype} on the CPU, has been converted, moved or given other parameters since")
    return compute(*batch)


def compiled_stepper(model: Transformer) -> CompiledStepper:
    """Return a stepper for a model on a CPU; it has a copy of the weights.

    Raises:
        NotAdmittedError: Compiled code may not compute this model's steps.
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
    """Load both libraries, compiling them unless that has been done on this machine; return True.

    Raises:
        NotAdmittedError: They cannot be compiled or loaded.
    """
    return all(load_library(source, {}) for source in (training.CPP_PATH, stepper.CPP_PATH))
