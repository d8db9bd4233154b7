"""Compiling without warnings for every kind of processor; the tile unit; the cache of compiled libraries."""

import errno
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import COMPILER_COMMAND, needs_compiled

from minitrans.compiled import library, stepper, training
from minitrans.compiled.library import NotAdmittedError

pytestmark = needs_compiled

Load = Callable[[], tuple[Path, bool]]
REAL_READ_BYTES = Path.read_bytes
WARNING_FLAGS = ["-Wall", "-Wextra", "-Wshadow", "-Werror"]
CXX_COMMAND = shlex.split(COMPILER_COMMAND)
X86_CPUS = ["x86-64", "haswell", "skylake-avx512", "cooperlake", "sapphirerapids"]  # SSE2, AVX2, AVX-512, bfloat16, AMX
COMPILER_CPU_PAIRS = [
    *itertools.product([CXX_COMMAND, ["clang++"]], X86_CPUS if platform.machine() == "x86_64" else []),
    (["aarch64-linux-gnu-g++"] if platform.machine() != "aarch64" else CXX_COMMAND, "armv8-a"),
]


@pytest.mark.parametrize(("compiler", "processor"), COMPILER_CPU_PAIRS, ids=str)
def test_no_compiler_warns(compiler: list[str], processor: str) -> None:
    if not shutil.which(compiler[0]):
        pytest.skip(f"{compiler[0]} is not installed")
    command = [*compiler, "-std=c++17", "-fopenmp", f"-march={processor}", *WARNING_FLAGS, "-fsyntax-only"]
    known = [*compiler, "-fopenmp", f"-march={processor}", "-fsyntax-only", "-xc++", "-include", "omp.h", os.devnull]
    if subprocess.run(known).returncode:
        pytest.skip(f"{compiler[0]} has no omp.h, or does not know {processor}")
    ended = subprocess.run([*command, training.CPP_PATH, stepper.CPP_PATH], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


# The tile unit is configured completely, however the compiler optimizes; a processor without one gets an emulation.
# The unit must not read what was on the stack before.
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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 has such a unit")
@pytest.mark.parametrize("optimized", ["-O0", "-O1", "-O2", "-O3"])
@pytest.mark.parametrize("compiler", [("gcc", "g++"), ("clang", "clang++")], ids=str)
def test_the_whole_tile_configuration_is_written(compiler: tuple[str, str], optimized: str, tmp_path: Path) -> None:
    if not all(map(shutil.which, compiler)):
        pytest.skip(f"{compiler[0]} is not installed")
    (tmp_path / "program.cpp").write_text(PROGRAM)
    c, cpp = ([name, optimized, "-march=x86-64"] for name in compiler)
    subprocess.run([*c, "-c", Path(__file__).with_name("tile_unit.c")], check=True, cwd=tmp_path)
    options = ["-std=c++17", "-mamx-tile", "-mamx-bf16", f"-I{library.HEADER_PATH.parent}", "-o", "program"]
    subprocess.run([*cpp, *options, "program.cpp", "tile_unit.o"], check=True, cwd=tmp_path)
    ended = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


# -- The cache ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cache(fresh_libraries: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, with no library loaded yet, as in a new process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "minitrans-compiled"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.cpp"
    path.write_text('extern "C" bool usable() { return true; }\n')
    return path


@pytest.fixture
def load(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads the library of the source as a new process would; returns where it is, and whether it was compiled."""
    runs = Mock(wraps=subprocess.run)
    monkeypatch.setattr(subprocess, "run", runs)

    def loads() -> tuple[Path, bool]:
        library._library_or_reason.cache_clear()
        runs.reset_mock()
        assert library.load_library(source, {}).usable()
        (path,) = cache.glob("source-*")
        return path, runs.called

    return loads


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="this system reports its processor in another way")
def test_the_processor_is_identified_by_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, abilities = library._cpu_features().partition(":")
    assert name.strip() in ("flags", "Features")
    assert {"avx2", "sse2", "asimd"} & set(abilities.split())
    monkeypatch.setattr(Path, "read_text", lambda _: "")
    assert library._cpu_features() == platform.machine()


def test_each_source_is_compiled_once_and_again_for_a_new_header_processor_or_flag(
    load: Load, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = load()
    assert (path.suffix, list(cache.iterdir())) == (library.LIBRARY_SUFFIX, [path])
    assert load() == (path, False)
    source.write_text('extern "C" bool usable() { return !false; }\n')
    flags = [*library.CXX_FLAGS, "-O1"]
    for n, (name, value) in enumerate(
        [("__doc__", ""), ("HEADER_PATH", source), ("_cpu_features", lambda: "others"), ("CXX_FLAGS", flags)], 2
    ):
        monkeypatch.setattr(library, name, value)
        library._library_or_reason.cache_clear()
        assert library.load_library(source, {}).usable()
        assert len(list(cache.iterdir())) == n


def test_a_library_that_another_process_removes_is_compiled_anew(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = load()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda p: (p.unlink() if p == path else None) or REAL_READ_BYTES(p))
        assert load() == (path, True)


def test_a_damaged_library_is_compiled_anew(load: Load) -> None:
    path, _ = load()
    assert load() == (path, False)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-1])
    other.chmod(0o700)
    other.replace(path)  # what is loaded stays as it is
    assert load() == (path, True)
    assert load() == (path, False)


@pytest.mark.parametrize("differs", ["platform.libc_ver", "os.path.realpath"])  # the second, of several called c++
def test_systems_that_share_a_home_have_separate_libraries(
    differs: str, load: Load, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    monkeypatch.setattr(differs, lambda *_: "another")
    library._library_or_reason.cache_clear()
    assert library.load_library(source, {}).usable()
    assert len(list(cache.glob("source-*"))) == 2


@pytest.mark.parametrize("place", ["", ".", "a/b"])
def test_an_xdg_cache_home_that_is_not_absolute_is_ignored(
    place: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("XDG_CACHE_HOME", place), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    assert library.load_library(source, {}).usable()
    assert len([*(tmp_path / ".cache" / "minitrans-compiled").glob("source-*")]) == 1


def test_a_read_only_cache_is_used(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = load()
    read_only = Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    for where, name in ((Path, "chmod"), (os, "chmod"), (os, "utime")):
        monkeypatch.setattr(where, name, read_only)
    assert load() == (path, False)


def test_only_the_user_has_access_to_the_cache(cache: Path, load: Load) -> None:
    before = os.umask(0o002)
    try:
        path, _ = load()
    finally:
        os.umask(before)
    assert [f"{made.stat().st_mode & 0o777:o}" for made in (cache, path)] == ["700", "700"]


@pytest.mark.parametrize("mode", [0o720, 0o702])
@pytest.mark.parametrize("which", ["folder", "file"])
def test_files_that_others_can_write_are_not_run(which: str, mode: int, cache: Path, load: Load) -> None:
    path, _ = load()
    open_to_others = cache if which == "folder" else path
    open_to_others.chmod(mode)
    with pytest.raises(NotAdmittedError, match=f"^other users can write to {open_to_others}; remove it"):
        load()
    assert f"{open_to_others.stat().st_mode & 0o777:o}" == f"{mode:o}"


def test_files_of_another_user_are_not_run(load: Load, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + 1)
    with pytest.raises(NotAdmittedError, match=f"^other users can write to {cache}; remove it"):
        load()


def test_a_library_is_synced_to_disk_before_it_is_renamed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Mock()
    for name in ("fsync", "replace"):
        done.attach_mock(Mock(wraps=getattr(os, name)), name)
        monkeypatch.setattr(os, name, getattr(done, name))
    load()
    assert [name for name, *_ in done.mock_calls] == ["fsync", "replace"]


def test_the_least_recently_used_libraries_are_removed(cache: Path, load: Load, source: Path) -> None:
    used, _ = load()
    for i in range(library.MAX_CACHED_FILES):
        (cache / f"training-{i}.so").touch()
        os.utime(cache / f"training-{i}.so", (i, i))
    mine = [cache.parent / "mine.so", cache / "mine" / "file", *(cache / f"mine-{i}.txt" for i in range(20))]
    compiling = [cache / f"compiling-{i}" / "library" for i in range(20)]  # other processes
    killed = cache / "compiling-killed" / "library"
    for path in [*mine, *compiling, killed]:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for path in [*mine, cache / "mine", killed.parent]:
        os.utime(path, (1, 1))
    os.utime(used, (0, 0))  # which loading updates
    load()
    other = source.with_name("other.cpp")
    shutil.copy(source, other)
    library.load_library(other, {})
    left = {path.name for path in cache.glob("*.so")}
    assert len(left) == library.MAX_CACHED_FILES
    assert used.name in left
    assert not {"training-0.so", "training-1.so"} & left
    assert all(path.exists() for path in [*mine, *compiling])
    assert not killed.parent.exists()


def test_a_terminal_shows_what_is_being_compiled(
    load: Load, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: False)
    path, _ = load()
    assert capsys.readouterr() == ("", "")
    path.unlink()
    terminal = Mock(spec=["write"])  # a stand-in need not have more
    monkeypatch.setattr(os, "isatty", lambda file: file == 2)
    with monkeypatch.context() as patch:  # ends before `capsys` does
        patch.setattr(sys, "stderr", terminal)
        assert [load()[1], load()[1]] == [True, False]
    told = "".join(call.args[0] for call in terminal.write.mock_calls)
    assert told == f"minitrans: compiling {source}, once on this machine ...\n"


@pytest.mark.parametrize("launcher", ["", "env -u NONE"])
def test_user_flags_win_and_may_have_values(
    launcher: str, source: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write_text(f"#ifdef __OPTIMIZE__\n#error\n#endif\n{source.read_text()}")
    monkeypatch.setenv("CXX", shlex.join([*launcher.split(), *CXX_COMMAND, "-O0", "-isystem", "."]))
    assert load()[1]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            b"In file included from a.cpp:\n  a.h:1:2: error: no such thing\n1 error generated.\n",
            "a.h:1:2: error: no such",
        ),
        (b"\nclang: kaputt\nmore\n", "clang: kaputt"),
        (b"\xff error: \xfe\n", "\ufffd error: \ufffd"),
        (b"/home/error/ld: no space\ncollect2: error: ld returned 1 exit status\n", "/home/error/ld: no space"),
        (b"", "exit status 3"),
    ],
)
def test_the_error_of_a_failing_compiler_is_quoted(
    said: bytes, reason: str, source: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").write_bytes(said)
    monkeypatch.setenv("CXX", f"sh -c 'cat {tmp_path}/said >&2; exit 3'")
    with pytest.raises(NotAdmittedError) as error:
        library.load_library(source, {})
    assert str(error.value).startswith(f"sh cannot compile and load {source} ({reason}")
    assert "\n" not in str(error.value)
    assert not list(cache.iterdir())
