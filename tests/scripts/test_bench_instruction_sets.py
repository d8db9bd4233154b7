"""A benchmark limited to an instruction set: other libraries are limited too, and the output says so."""

import subprocess
import sys
from pathlib import Path

import instruction_sets
import pytest

CPU_FLAGS = ["fpu", "avx2", "avx512f", "avx512_bf16", "amx_tile"]
RESTART_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from instruction_sets import restart_with_instruction_set, usable_matmul_flags
restart_with_instruction_set("sse2")
import torch
print(torch.backends.cpu.get_cpu_capability(), *usable_matmul_flags(sys.argv[2:]))
"""


def test_a_program_restarts_with_the_instruction_set(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RESTART_PROGRAM)
    folder = Path(instruction_sets.__file__).parent
    command: list[str | Path] = [sys.executable, tmp_path / "program.py", folder, *CPU_FLAGS]
    assert subprocess.check_output(command, text=True) == "DEFAULT\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sse2", []),
        ("avx2", CPU_FLAGS[1:2]),
        ("avx512", CPU_FLAGS[1:3]),
        ("avx512_bf16", CPU_FLAGS[1:4]),
        (None, CPU_FLAGS[1:]),
    ],
)
def test_only_usable_flags_are_listed(name: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    held = instruction_sets.INSTRUCTION_SETS[name].environment if name else {}
    monkeypatch.setattr("os.environ", held)
    assert instruction_sets.usable_matmul_flags(CPU_FLAGS) == expected
