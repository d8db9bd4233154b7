"""kernels.cpp, compiled once for this machine's processor, as functions of tensors.

All tensors lie on the CPU, are contiguous, and have one of the dtypes bfloat16, float32 and float64; statistics and
parameters of norms are float32, or float64 beside float64.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from ctypes import c_bool, c_double, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

logger = logging.getLogger("minitrans")

LONGEST = 1024  # keys that `masked_softmax` can take
SOURCE = Path(__file__).with_name("kernels.cpp")
COMPILE = ["-std=c++17", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC"]
if platform.machine() == "x86_64":
    COMPILE.append("-mprefer-vector-width=512")


class _Shape(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("B", "H", "Tq", "Tk")]


class _Mask(ctypes.Structure):
    _fields_ = [("admits", c_void_p), *((name, c_int64) for name in ("b", "h", "q", "k"))]


_POINTER = c_void_p
_ARGUMENTS = {
    "dropout_add": [_POINTER] * 3 + [c_int64, c_uint64, c_int],
    "relu_dropout": [_POINTER, c_int64, c_uint64, c_int],
    "relu_dropout_backward": [_POINTER] * 2 + [c_int64, c_int],
    "norm": [_POINTER] * 6 + [c_int64, c_int64, c_double],
    "norm_backward": [_POINTER] * 9 + [c_int64, c_int64],
    "masked_softmax": [_POINTER] * 3 + [_Shape, _Mask, c_double, c_uint64, c_int],
    "masked_softmax_backward": [_POINTER] * 3 + [_Shape, c_double, c_uint64, c_int],
    "softmax": [_POINTER, c_int64, c_int64],
    "split_heads": [_POINTER] * 2 + [c_int64] * 5 + [c_bool],
}
_DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}


def serve(x: Tensor) -> bool:
    """Whether the kernels take such a tensor; the first call on a machine compiles them."""
    return x.device.type == "cpu" and x.dtype in _DTYPES and _library() is not None


@functools.cache
def _library() -> ctypes.CDLL | None:
    compiler = shlex.split(os.environ.get("CXX", "")) or list(filter(shutil.which, ("c++", "g++", "clang++")))[:1]
    if not compiler:
        logger.warning("no C++ compiler is here, so training takes its plain and slower path; install one, such as g++")
        return None
    key = hashlib.sha256(repr([SOURCE.read_bytes(), COMPILE, compiler, _processor()]).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minitrans"
    path = cache / f"kernels-{key.hexdigest()[:32]}{sysconfig.get_config_var('SHLIB_SUFFIX')}"
    try:
        if not path.is_file():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                compiled, linked = f"{folder}/kernels.o", f"{folder}/kernels.so"
                # Linked apart: with -ffast-math GCC would have the library change the arithmetic of the whole process.
                for step in (
                    [*COMPILE, "-c", str(SOURCE), "-o", compiled],
                    ["-shared", "-fopenmp", compiled, "-o", linked],
                ):
                    subprocess.run([*compiler, *step], check=True, capture_output=True, text=True)
                os.replace(linked, path)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        logger.warning(
            "%s cannot compile %s, so training takes its plain and slower path (%s)", *compiler[:1], SOURCE, error
        )
        return None
    for name, arguments in _ARGUMENTS.items():
        for dtype in _DTYPES.values():
            function = getattr(library, f"{name}_{dtype}")
            function.argtypes, function.restype = arguments, None
    return library


def _processor() -> str:
    """Something that differs where -march=native does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else [platform.machine()]
    return next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])


def _call(name: str, x: Tensor, *arguments: object) -> None:
    assert all(a.is_contiguous() for a in arguments if isinstance(a, Tensor))
    function = getattr(_library(), f"{name}_{_DTYPES[x.dtype]}")
    function(*(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))


def dropout_add(x: Tensor, residual: Tensor | None, seed: int, dropped: int) -> Tensor:
    """`residual` plus `x` with each element dropped with probability `dropped` / 256; the shape is that of `x`."""
    out = torch.empty_like(x)
    _call("dropout_add", x, x, residual, out, x.numel(), seed, dropped)
    return out


def relu_dropout_(x: Tensor, seed: int, dropped: int) -> Tensor:
    """Put relu and dropout of `x` in its place."""
    _call("relu_dropout", x, x, x.numel(), seed, dropped)
    return x


def relu_dropout_backward_(grad: Tensor, y: Tensor, dropped: int) -> Tensor:
    """Put the gradient at the argument of `relu_dropout_`, whose result was `y`, in the place of that at its result."""
    _call("relu_dropout_backward", grad, grad, y, grad.numel(), dropped)
    return grad


def norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm of (..., D): the result, and the (rows,) mean and 1 / deviation for `norm_backward`."""
    size = x.size(-1)
    rows = x.numel() // size
    y, mean, rstd = torch.empty_like(x), gamma.new_empty(rows), gamma.new_empty(rows)
    _call("norm", x, x, gamma, beta, y, mean, rstd, rows, size, eps)
    return y, mean, rstd


def norm_backward(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `norm` at x, with `residual` added, at gamma and at beta."""
    dx, d_gamma, d_beta = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)
    rows, size = len(mean), x.size(-1)
    _call("norm_backward", x, dy, x, gamma, mean, rstd, residual, dx, d_gamma, d_beta, rows, size)
    return dx, d_gamma, d_beta


def masked_softmax(scores: Tensor, mask: Tensor, scale: float, seed: int, dropped: int) -> tuple[Tensor, Tensor]:
    """Attention weights of scale * scores (B, H, Tq, Tk), before and after dropout.

    Args:
        scores: (B, H, Tq, Tk), Tk at most `LONGEST`.
        mask: bool, broadcastable to the scores, True = may attend. A query that sees nothing has weights 0.
        scale: What the scores are multiplied by.
        seed: Of the dropout.
        dropped: 256 times its probability.
    """
    weights, kept_weights = torch.empty_like(scores), torch.empty_like(scores)
    admits = _Mask(mask.data_ptr(), *mask.expand(scores.shape).stride())
    _call("masked_softmax", scores, scores, weights, kept_weights, _Shape(*scores.shape), admits, scale, seed, dropped)
    return weights, kept_weights


def masked_softmax_backward(grad: Tensor, weights: Tensor, scale: float, seed: int, dropped: int) -> Tensor:
    """The gradient at the scores, of that at the weights after dropout; the other arguments as in `masked_softmax`."""
    out = torch.empty_like(grad)
    _call("masked_softmax_backward", grad, grad, weights, out, _Shape(*grad.shape), scale, seed, dropped)
    return out


def softmax_(x: Tensor) -> Tensor:
    """Put the softmax of each row in its place: (rows, V)."""
    _call("softmax", x, x, *x.shape)
    return x


def split_heads(x: Tensor, n: int, n_heads: int) -> Tensor:
    """(B, T, n*H*Dh) -> (n, B, H, T, Dh)."""
    batch, length, size = x.shape
    d_head = size // (n * n_heads)
    out = x.new_empty(n, batch, n_heads, length, d_head)
    _call("split_heads", x, x, out, batch, length, n, n_heads, d_head, False)
    return out


def merge_heads(x: Tensor) -> Tensor:
    """(n, B, H, T, Dh) -> (B, T, n*H*Dh)."""
    n, batch, n_heads, length, d_head = x.shape
    out = x.new_empty(batch, length, n * n_heads * d_head)
    _call("split_heads", x, x, out, batch, length, n, n_heads, d_head, True)
    return out
