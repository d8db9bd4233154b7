"""The proof: each claim about attention and cached decoding, measured on the model in hand.

`run(model)` measures a model of ours, `run()` a fresh one with random weights; `self_test()` shows that checks notice
when the code is wrong. The claims are in `checks`, a chapter a file, the faults in `sabotages.toml`; what the claims
are measured against is in `oracles`, the model and data they are measured on in `model_and_pairs`.

`check_cache` runs the checks that suit anyone's model, without looking inside it: see `minitrans.cachecheck`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from minitrans.cachecheck import CachedModel, Functions, NotOfferedError, check_cache

if TYPE_CHECKING:
    from minitrans.verify.run_checks import run, self_test

__all__ = ["CachedModel", "Functions", "NotOfferedError", "check_cache", "run", "self_test"]


def __getattr__(name: str) -> object:
    """`run` and `self_test`, imported when first used (PEP 562): to check another model, PyTorch is enough."""
    if name in ("run", "self_test"):
        return getattr(import_module("minitrans.verify.run_checks"), name)
    raise AttributeError(f"module 'minitrans.verify' has no attribute {name!r}")
