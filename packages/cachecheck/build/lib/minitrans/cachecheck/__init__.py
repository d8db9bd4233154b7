"""The proof for anyone's model: does its cached decoding give what its full masked pass gives?

A model is seen through a few functions (`protocol`); what has to be true of it asks for no look inside (`checks`); what
a failure looks like is told by what it does to the numbers (`patterns`). `faults` can be put around any model, to see
that they are noticed. The engine is `check` and `fault`: what a check, its outcome and a fault are, and the self-test.
The proof of our own model goes by it too. All of it imports only torch, except `hugging_face`.
"""

from minitrans.cachecheck.measure import NotOfferedError
from minitrans.cachecheck.proof import check_cache, run, self_test
from minitrans.cachecheck.protocol import CachedModel, Functions, LoadError

__all__ = ["CachedModel", "Functions", "LoadError", "NotOfferedError", "check_cache", "run", "self_test"]
