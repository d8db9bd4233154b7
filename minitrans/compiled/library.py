"""C++ compiled once for this machine's processor, and what Python hands to it."""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from ctypes import c_bool, c_double, c_void_p
from pathlib import Path

import torch
from torch import Tensor

HEADER = Path(__file__).with_name("shared.h")
COMPILE = ["-std=c++17", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC"]
if platform.machine() == "x86_64":
    COMPILE.append("-mprefer-vector-width=512")
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}


class Parameters(ctypes.Structure):
    """Pointers to the parameters of a sub-layer's norm and linear layers, as compiled code takes them; and its eps."""

    _fields_ = [(name, c_void_p) for name in ("gamma", "beta", "w_in", "b_in", "w_out", "b_out")] + [("eps", c_double)]


class NotAdmittedError(Exception):
    """Compiled code may not compute something; the message says in words why.

    Attributes:
        expected: Whether nobody would have thought that it might, as on a GPU.
    """

    def __init__(self, reason: str, expected: bool = False) -> None:
        """Take the reason."""
        super().__init__(reason)
        self.expected = expected


def load_library(source: Path) -> ctypes.CDLL:
    """Load a file that includes shared.h, compiled unless that has been done on this machine.

    Raises:
        NotAdmittedError: That cannot be done.
    """
    library = _compile(source)
    if isinstance(library, str):
        raise NotAdmittedError(library)
    return library


@functools.cache
def _compile(source: Path) -> ctypes.CDLL | str:
    """The library, or why there is none."""
    compiler = shlex.split(os.environ.get("CXX", "")) or list(filter(shutil.which, ("c++", "g++", "clang++")))[:1]
    if not compiler:
        return "no C++ compiler is here; install one, such as g++"
    key = hashlib.sha256(repr([source.read_bytes(), HEADER.read_bytes(), COMPILE, compiler, _processor()]).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minitrans"
    path = cache / f"{source.stem}-{key.hexdigest()[:32]}{sysconfig.get_config_var('SHLIB_SUFFIX')}"
    try:
        if not path.is_file():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                compiled, linked = f"{folder}/library.o", f"{folder}/library.so"
                # Linked apart: with -ffast-math GCC would have the library change the arithmetic of the whole process.
                for step in (
                    [*COMPILE, "-c", str(source), "-o", compiled],
                    ["-shared", "-fopenmp", compiled, "-o", linked],
                ):
                    subprocess.run([*compiler, *step], check=True, capture_output=True, text=True)
                os.replace(linked, path)
        library = ctypes.CDLL(str(path))
        library.usable.restype = c_bool
        if not library.usable():
            raise OSError("the system does not let it use the processor's tile unit")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{compiler[0]} cannot compile and load {source} ({error})"
    return library


def _processor() -> str:
    """Something that differs where -march=native does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else [platform.machine()]
    return next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])


def check_ids(ids: Tensor, vocab_size: int) -> None:
    """Raise an IndexError if an int64 id is not below `vocab_size`, or negative: compiled code would read elsewhere."""
    assert ids.dtype == torch.int64
    if ids.numel():
        low, high = (extreme.item() for extreme in ids.aminmax())
        if low < 0 or high >= vocab_size:
            raise IndexError(f"ids {low} to {high} are not all among the {vocab_size} of the vocabulary")
