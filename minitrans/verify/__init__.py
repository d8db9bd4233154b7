"""The proof: each claim about attention and cached decoding, measured on the model in hand.

`run(model)` measures a model of ours, `run()` a fresh one with random weights; `self_test()` shows that checks notice
when the code is wrong. The claims are in `checks` and the faults in `sabotages`, a chapter a file; what the claims are
measured against is in `oracles`, the model and data they are measured on in `subject`.

`check_cache` runs the checks that suit anyone's model, without a look inside: see `minitrans.cachecheck`.
The names below are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrans.cachecheck import CachedModel as CachedModel
    from minitrans.cachecheck import Functions as Functions
    from minitrans.cachecheck import NotOfferedError as NotOfferedError
    from minitrans.cachecheck import check_cache as check_cache
    from minitrans.verify.proof import run as run
    from minitrans.verify.proof import self_test as self_test

_HOMES = {
    **dict.fromkeys(["CachedModel", "Functions", "NotOfferedError", "check_cache"], "minitrans.cachecheck"),
    **dict.fromkeys(["run", "self_test"], "minitrans.verify.proof"),
}


def __getattr__(name: str) -> object:
    """Import a public name from its home (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'minitrans.verify' has no attribute {name!r}")
