"""The proof for anyone's model: does its cached decoding give what its full masked pass gives?

A model is seen through a few functions (`protocol`); what has to be true of it asks for no look inside
(`cache_checks`); what a failure looks like is told by what it does to the numbers (`failure_patterns`). Faults can be
put around any model (`faults`), to see that they are noticed. What a check and its outcome are is said in `check`,
by which the proof of our own model goes too. All of it imports only torch, except `hugging_face` and `pytest_plugin`.
"""

from minitrans.cachecheck.measurement import NotOfferedError
from minitrans.cachecheck.protocol import CachedModel, Functions, LoadError
from minitrans.cachecheck.runner import check_cache, run, self_test

__all__ = ["CachedModel", "Functions", "LoadError", "NotOfferedError", "check_cache", "run", "self_test"]
