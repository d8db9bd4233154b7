"""The arithmetic of a run is what the user asks for, or what the device is fast at; it is reported once."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from conftest import record_calls
from lightning.pytorch.accelerators import MPSAccelerator
from train_helpers import train

from minitrans.errors import UserError
from minitrans.training.callbacks import TrainingProgress
from minitrans.training.precision import PrecisionSetting, precision_and_reason

Capture = pytest.CaptureFixture[str]
Faker = Callable[..., None]


@pytest.fixture
def fake_devices(monkeypatch: pytest.MonkeyPatch) -> Faker:
    """A function that fakes the available devices, none until it is called; the real ones are never queried."""

    def fake_devices(*units: str, cuda: bool = False, bf16: bool = False, mps: bool = False) -> None:
        def is_bf16_supported(including_emulation: bool = True) -> bool:
            return bf16 or (cuda and including_emulation)

        # All have AVX-512, which is not enough.
        capabilities = {"avx512_f": True, "avx512_bf16": False} | dict.fromkeys(units, True)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
        monkeypatch.setattr(MPSAccelerator, "is_available", lambda: mps)

    fake_devices()
    return fake_devices


CPU_BF16_MESSAGE = "precision: bf16 (this processor multiplies bfloat16: {})"
CPU_FP32_MESSAGE = "precision: fp32 (this processor is not known to multiply bfloat16: no amx_bf16 or avx512_bf16)"
GPU_BF16_MESSAGE = "precision: bf16 (this GPU computes in bfloat16)"
GPU_FP16_MESSAGE = "precision: fp16 (this GPU has no bfloat16)"


@pytest.mark.parametrize(
    ("setting", "accelerators", "units", "devices", "said"),
    [
        ("auto", "auto cpu", "avx512_bf16", {}, CPU_BF16_MESSAGE.format("avx512_bf16")),
        ("auto", "auto cpu", "avx512_bf16 amx_bf16", {}, CPU_BF16_MESSAGE.format("amx_bf16")),
        ("auto", "auto cpu", "", {}, CPU_FP32_MESSAGE),
        ("auto", "auto gpu cuda", "amx_bf16", {"cuda": True, "bf16": True}, GPU_BF16_MESSAGE),
        ("auto", "auto gpu cuda", "amx_bf16", {"cuda": True}, GPU_FP16_MESSAGE),
        ("auto", "auto gpu mps", "amx_bf16", {"mps": True}, "precision: fp32 (the safe choice on mps)"),
        ("auto", "tpu", "amx_bf16", {"mps": True}, "precision: fp32 (the safe choice on tpu)"),
        ("auto", "cpu", "", {"cuda": True, "bf16": True}, CPU_FP32_MESSAGE),  # the device that was set, not the best
        ("bf16", "cpu", "", {}, "precision: bf16 (as set)"),
        ("fp32", "cpu", "amx_bf16", {}, "precision: fp32 (as set)"),
        ("fp16", "auto", "", {"cuda": True, "bf16": True}, "precision: fp16 (as set)"),
    ],
)
def test_precision_is_as_set_or_what_the_device_is_fast_at(
    setting: PrecisionSetting, accelerators: str, units: str, devices: dict[str, bool], said: str, fake_devices: Faker
) -> None:
    fake_devices(*units.split(), **devices)
    for accelerator in accelerators.split():
        assert "precision: {} ({})".format(*precision_and_reason(setting, accelerator)) == said


@pytest.mark.parametrize("capabilities", [dict, None])
def test_a_processor_with_unknown_capabilities_gets_fp32(
    capabilities: type[dict[str, bool]] | None, fake_devices: Faker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")  # as in torch 2.10
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", capabilities)
    assert precision_and_reason("auto", "cpu")[0] == "fp32"


def test_fp16_on_a_processor_is_refused(fake_devices: Faker) -> None:
    for accelerator in ("auto", "cpu"):
        with pytest.raises(UserError, match=r"^training\.precision is fp16, .* choose auto, bf16 or fp32$"):
            precision_and_reason("fp16", accelerator)


@pytest.mark.parametrize("setting", ["auto", "fp32"])
def test_a_run_trains_in_its_precision_and_reports_it_once(
    setting: str, corpus: Path, tmp_path: Path, fake_devices: Faker, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_devices("amx_bf16")
    started = record_calls(monkeypatch, TrainingProgress, "on_train_start")
    capsys.readouterr()
    assert train(corpus, tmp_path / "run", "--training.precision", setting, max_steps=2) == 0
    captured = capsys.readouterr()
    assert [trainer.precision for _, trainer, _ in started] == ["32-true" if setting == "fp32" else "bf16-mixed"]
    name = "bf16" if setting == "auto" else setting
    assert [line.split(" (")[0] for line in captured.err.splitlines() if "precision" in line] == [f"precision: {name}"]
    assert "precision" not in captured.out


def test_torch_has_the_functions_that_are_called() -> None:
    assert "including_emulation" in inspect.signature(torch.cuda.is_bf16_supported).parameters
    for unit in ("amx_bf16", "avx512_bf16"):
        assert isinstance(getattr(torch.cpu, "get_capabilities", dict[str, bool])().get(unit, False), bool)
    assert precision_and_reason("auto", "cpu")[0] in get_args(PrecisionSetting)
