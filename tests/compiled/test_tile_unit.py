"""The tile unit is set up in full, however the compiler optimizes; where a processor has none, by one in software."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import needs_compiled

from minitrans.compiled import library

HERE = Path(__file__).parent
# What stood on the stack before must not be what the unit reads.
PROGRAM = """
#include "shared.h"
__attribute__((noinline)) void soil_the_stack() {
    volatile char bytes[4096];
    for (auto &byte : bytes) byte = 77;
}
__attribute__((noinline)) void set_up() { const TileUnit unit; }
int main() {
    if (!TileUnit::allowed()) return 1;
    soil_the_stack();
    set_up();
}
"""


@needs_compiled
@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 has such a unit")
@pytest.mark.parametrize("optimized", ["-O0", "-O1", "-O2", "-O3"])
@pytest.mark.parametrize("compiler", [("gcc", "g++"), ("clang", "clang++")], ids=str)
def test_all_of_the_configuration_is_written(compiler: tuple[str, str], optimized: str, tmp_path: Path) -> None:
    if not all(map(shutil.which, compiler)):
        pytest.skip(f"no {compiler[0]} is here")
    (tmp_path / "program.cpp").write_text(PROGRAM)
    c, cpp = ([name, optimized, "-march=x86-64"] for name in compiler)
    subprocess.run([*c, "-c", HERE / "tile_unit.c"], check=True, cwd=tmp_path)
    options = ["-std=c++17", "-mamx-tile", "-mamx-bf16", f"-I{library.HEADER_PATH.parent}", "-o", "program"]
    subprocess.run([*cpp, *options, "program.cpp", "tile_unit.o"], check=True, cwd=tmp_path)
    ended = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
