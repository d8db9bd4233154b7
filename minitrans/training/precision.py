"""The arithmetic of a run: what the user asks for, or what its device is fast at."""

from typing import Literal

import torch

from minitrans.errors import UserError

PrecisionSetting = Literal["auto", "bf16", "fp32", "fp16"]
# Lightning's names. With the two lower precisions, weights and their updates stay in float32.
TrainerPrecision = Literal["bf16-mixed", "32-true", "16-mixed"]
TRAINER_PRECISIONS: dict[str, TrainerPrecision] = {"bf16": "bf16-mixed", "fp32": "32-true", "fp16": "16-mixed"}
_BF16_FEATURES = ("amx_bf16", "avx512_bf16")  # torch's names for what makes bfloat16 worth the rounding to it


def precision_and_reason(setting: PrecisionSetting, accelerator: str) -> tuple[str, str]:
    """The arithmetic to train in on what Lightning calls `accelerator`, and why, in a few words.

    Raises:
        UserError: The device has no such arithmetic.
    """
    device = accelerator
    if accelerator in ("auto", "gpu"):  # as Lightning chooses
        from lightning.pytorch.accelerators import MPSAccelerator  # takes seconds to import; settings do not need it

        device = "mps" if MPSAccelerator.is_available() else "cuda" if torch.cuda.is_available() else "cpu"
    if setting == "fp16" and device == "cpu":
        raise UserError("training.precision is fp16, which works only on a GPU; choose auto, bf16 or fp32")
    if setting != "auto":
        return setting, "as set"
    if device == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "this GPU computes in bfloat16"
        return "fp16", "this GPU has no bfloat16"
    if device != "cpu":
        return "fp32", f"the safe choice on {device}"
    # torch 2.10 and before cannot tell.
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    for unit in _BF16_FEATURES:
        if capabilities.get(unit):
            return "bf16", f"this processor multiplies bfloat16: {unit}"
    return "fp32", f"this processor is not known to multiply bfloat16: no {' or '.join(_BF16_FEATURES)}"
