"""The arithmetic of a run: what the user asks for, or what its device is fast at."""

from typing import Literal, NamedTuple

import torch
from lightning.pytorch.accelerators import MPSAccelerator

from minitrans.errors import UserError

Setting = Literal["auto", "bf16", "fp32", "fp16"]
# Lightning's words. In the lower two, weights and their updates stay in float32.
TrainerPrecision = Literal["bf16-mixed", "32-true", "16-mixed"]
OF_TRAINER: dict[str, TrainerPrecision] = {"bf16": "bf16-mixed", "fp32": "32-true", "fp16": "16-mixed"}
_BF16_UNITS = ("amx_bf16", "avx512_bf16")  # torch's names of what gains more than rounding to bfloat16 costs


class Precision(NamedTuple):
    """An arithmetic and why.

    Attributes:
        name: bf16, fp32 or fp16.
        reason: In a few words.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"precision: {self.name} ({self.reason})"


def choose_precision(setting: Setting, accelerator: str) -> Precision:
    """The arithmetic to train in.

    Args:
        setting: auto leaves it to the device.
        accelerator: Lightning's name of the device, auto and gpu included.

    Raises:
        UserError: The device has no such arithmetic.
    """
    device = _device(accelerator)
    if setting == "fp16" and device == "cpu":
        raise UserError("training.precision is fp16, which works only on a GPU; choose auto, bf16 or fp32")
    if setting != "auto":
        return Precision(setting, "as set")
    match device:
        case "cuda" if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision("bf16", "this GPU computes in bfloat16")
        case "cuda":
            return Precision("fp16", "this GPU has no bfloat16")
        case "cpu" if unit := _bf16_unit():
            return Precision("bf16", f"this processor multiplies bfloat16: {unit}")
        case "cpu":
            return Precision("fp32", f"this processor is not known to multiply bfloat16: no {' or '.join(_BF16_UNITS)}")
        case _:
            return Precision("fp32", f"the safe one on {device}")


def _bf16_unit() -> str | None:
    """What this processor multiplies bfloat16 with, if anything; older versions of torch cannot tell."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return next((unit for unit in _BF16_UNITS if capabilities.get(unit)), None)


def _device(accelerator: str) -> str:
    """What Lightning makes of a name, where it leaves a choice."""
    if accelerator not in ("auto", "gpu"):
        return accelerator
    if MPSAccelerator.is_available():
        return "mps"
    return "cuda" if torch.cuda.is_available() else "cpu"
