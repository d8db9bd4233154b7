"""Instruction sets to which environment variables can hold a program: our C++ and the other libraries alike."""

import os
import sys
from typing import NamedTuple


class InstructionSet(NamedTuple):
    """An instruction set of x86 processors."""

    flag: str  # that the processor needs; flags that come later in `MATMUL_FLAGS` are not used
    environment: dict[str, str]  # in which no code uses more


def _make_isa(flag: str, gxx_flags: str, aten: str, onednn: str, mkl: str, ctranslate2: str) -> InstructionSet:
    """`gxx_flags` are flags of g++; the others are what PyTorch, oneDNN, MKL and CTranslate2 call it."""
    names = {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl}
    return InstructionSet(flag, {"CXX": f"g++ {gxx_flags}", "CT2_FORCE_CPU_ISA": ctranslate2} | names)


# What decides how fast a processor multiplies matrices, as Linux calls it on x86 and on ARM.
MATMUL_FLAGS = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
         "asimd", "sve", "sve2", "bf16", "i8mm"]  # fmt: skip
INSTRUCTION_SETS = {
    "sse2": _make_isa("sse2", "-mno-avx -mno-amx-tile", "default", "SSE41", "SSE4_2", "GENERIC"),
    "avx2": _make_isa("avx2", "-mno-avx512f -mno-amx-tile", "avx2", "AVX2", "AVX2", "AVX2"),
    "avx512": _make_isa("avx512f", "-mno-avx512bf16 -mno-amx-tile", "avx512", "AVX512_CORE", "AVX512", "AVX512"),
    "avx512_bf16": _make_isa("avx512_bf16", "-mno-amx-tile", "avx512", "AVX512_CORE_BF16", "AVX512", "AVX512"),
}


def restart_with_instruction_set(name: str) -> None:
    """Start this program again with the variables of an instruction set, unless it has them already."""
    environment = os.environ | INSTRUCTION_SETS[name].environment
    if environment != os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def usable_matmul_flags(cpu_flags: list[str]) -> list[str]:
    """Which of a processor's flags are in `MATMUL_FLAGS` and may be used by this program."""
    for isa in INSTRUCTION_SETS.values():
        if isa.environment.items() <= os.environ.items():
            n_usable = MATMUL_FLAGS.index(isa.flag) + 1 if isa.flag in MATMUL_FLAGS else 0
            return [flag for flag in MATMUL_FLAGS[:n_usable] if flag in cpu_flags]
    return [flag for flag in MATMUL_FLAGS if flag in cpu_flags]
