"""Compile C++ once for this machine's processor, load it, and call its functions on tensors."""

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import c_bool, c_double, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HEADER_PATH = Path(__file__).with_name("shared.h")
# The parts of -ffast-math that let sums be added up in any order; not those that promise no infinity and no NaN.
CXX_FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros"]
CXX_FLAGS += ["-fopenmp", "-fPIC", "-shared"]
CXX_FLAGS += ["-march=native", "-mprefer-vector-width=512"] if platform.machine() == "x86_64" else ["-mcpu=native"]
LIBRARY_SUFFIX = sysconfig.get_config_var("SHLIB_SUFFIX")
MAX_CACHED_FILES = 16  # in the cache: two libraries for each of the last eight versions, compilers and processors
DTYPE_SUFFIXES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}


class SublayerParameters(ctypes.Structure):
    """Pointers to the parameters of a sub-layer's norm and linear layers, as compiled code takes them; and its eps."""

    _fields_ = [(name, c_void_p) for name in ("gamma", "beta", "w_in", "b_in", "w_out", "b_out")] + [("eps", c_double)]


class NotAdmittedError(Exception):
    """Compiled code may not compute something; the message says why.

    Attributes:
        expected: Whether the refusal surprises nobody, as on a GPU.
    """

    def __init__(self, reason: str, expected: bool = False) -> None:
        super().__init__(reason)
        self.expected = expected


def load_library(source: Path, functions: Mapping[str, tuple[Any, Sequence[Any]]]) -> ctypes.CDLL:
    """Load the library of a C++ file; compile it first, unless that has been done on this machine.

    Args:
        source: The file, which includes shared.h.
        functions: By name, the types of its result (or None) and arguments; each has a version for every dtype.

    Raises:
        NotAdmittedError: It cannot be compiled or loaded.
    """
    library = _library_or_reason(source)
    if isinstance(library, str):
        raise NotAdmittedError(library)
    for name, (result, arguments) in functions.items():
        for dtype in DTYPE_SUFFIXES.values():
            function = getattr(library, f"{name}_{dtype}")
            function.restype, function.argtypes = result, arguments
    return library


def call_function(library: ctypes.CDLL, dtype: torch.dtype, name: str, *arguments: object) -> Any:
    """Call a function in its version for a dtype; it gets only the address of a tensor, not the shape."""
    assert all(a.is_contiguous() for a in arguments if isinstance(a, Tensor))
    function = getattr(library, f"{name}_{DTYPE_SUFFIXES[dtype]}")
    result = function(*(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))
    if function.restype in (c_bool, c_void_p) and not result:
        raise MemoryError("there is not enough memory for compiled code")
    return result


@functools.cache
def _library_or_reason(source: Path) -> ctypes.CDLL | str:
    """The library, or why there is none."""
    command = os.environ.get("CXX", "")
    try:
        compiler = shlex.split(command) or list(filter(shutil.which, ("c++", "g++", "clang++")))[:1]
    except ValueError as error:
        return f"CXX is {command!r}, which is not a valid command ({error})"
    if not compiler:
        return "no C++ compiler was found; install one, such as g++"
    try:
        parts = [source.read_bytes(), HEADER_PATH.read_bytes(), CXX_FLAGS, compiler, _cpu_features()]
        parts += [platform.libc_ver(), *map(os.path.realpath, filter(None, map(shutil.which, compiler)))]  # which c++
        name = f"{source.stem}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"
        place = Path(os.environ.get("XDG_CACHE_HOME", ""))  # ignored, as its specification says, if it is relative
        cache = (place if place.is_absolute() else Path.home() / ".cache") / "minitrans-compiled"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(cache)
        programs = [i for i, word in enumerate(compiler) if shutil.which(word) and compiler[i - 1] != "-x"]
        own_flags = compiler[max(programs, default=0) + 1 :]  # as in nice -n 9 g++ -O1; repeated, so that they win
        path = _find_cached(cache, name) or _compile([*compiler, *CXX_FLAGS, *own_flags, str(source)], cache, name)
        library = ctypes.CDLL(str(path))
        library.usable.restype = c_bool
        if not library.usable():
            raise OSError("the operating system does not allow use of the processor's tile unit")
    except NotAdmittedError as error:
        return str(error)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:  # RuntimeError: no home folder
        reason = _first_error(error) if isinstance(error, subprocess.CalledProcessError) else error
        return f"{compiler[0]} cannot compile and load {source} ({reason})"
    return library


def _find_cached(cache: Path, name: str) -> Path | None:
    """The library of that name, if it is there and intact: its file name ends with a hash of its content."""
    for path in cache.glob(f"{name}-*{LIBRARY_SUFFIX}"):
        with suppress(FileNotFoundError):  # another process has tidied up
            _check_private(path)
            if path == _hashed_path(cache, name, path.read_bytes()):
                with suppress(OSError):  # the file system is read-only
                    os.utime(path)
                return path
    return None


def _compile(command: list[str], cache: Path, name: str) -> Path:
    """Compile a library into the cache, for this user alone."""
    if os.isatty(2):
        print(f"minitrans: compiling {command[-1]}, once on this machine ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=cache) as folder:
        made = Path(folder, "library")
        words, env = [*command, "-o", str(made)], os.environ | {"LC_ALL": "C"}
        subprocess.run(words, check=True, capture_output=True, env=env, encoding="utf-8", errors="replace")
        made.chmod(0o700)
        with open(made, "rb") as file:
            os.fsync(file.fileno())  # or a power failure might leave the name without the content
            path = _hashed_path(cache, name, file.read())
        os.replace(made, path)
    _evict_oldest(cache)
    return path


def _evict_oldest(cache: Path) -> None:
    """Remove the least recently used libraries and the remains of killed compilations; others may do so too."""
    with suppress(OSError):
        libraries = sorted(cache.glob(f"*{LIBRARY_SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for path in libraries[:-MAX_CACHED_FILES]:
            path.unlink(missing_ok=True)
        for folder in cache.glob("compiling-*"):
            if time.time() - folder.stat().st_mtime > 3600:
                shutil.rmtree(folder)


def _hashed_path(cache: Path, name: str, content: bytes) -> Path:
    return cache / f"{name}-{hashlib.sha256(content).hexdigest()[:32]}{LIBRARY_SUFFIX}"


def _check_private(path: Path) -> None:
    """Refuse a path that someone else may have written to: the code in it would be run."""
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NotAdmittedError(f"other users can write to {path}; remove it, because code in it would be run")


def _first_error(failed: subprocess.CalledProcessError) -> str:
    """The first line in which a compiler says what is wrong."""
    said = re.search(r"(?m)^.*(?:error|\bld): .*$", failed.stderr) or re.search(r"\S.*", failed.stderr)
    return said[0].strip() if said else f"exit status {failed.returncode}"


def _cpu_features() -> str:
    """A description of the processor that differs, on Linux, wherever the meaning of -march=native does."""
    lines = info.read_text().splitlines() if (info := Path("/proc/cpuinfo")).is_file() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def check_token_ids(ids: Tensor, vocab_size: int) -> None:
    """Refuse ids unless they are int64, on the CPU (TypeError), and from 0 to `vocab_size` - 1 (IndexError)."""
    if ids.dtype != torch.int64 or ids.device.type != "cpu":
        raise TypeError(f"ids are {ids.dtype} on {ids.device}; they must be int64, on the CPU")
    if ids.numel():
        low, high = (extreme.item() for extreme in ids.aminmax())
        if low < 0 or high >= vocab_size:
            raise IndexError(f"ids {low} to {high} are not all in the vocabulary, which has {vocab_size}")
