"""The proof for anyone's model: does its cached decoding give what its full masked pass gives?

A model is used only through a few functions (`protocol`), and no check looks inside it (`cache_checks`). A known fault
is recognised by its effect on the numbers (`failure_patterns`). Faults can be wrapped around any model (`faults`), to
see that the checks notice them. `measurement` defines what a check and its outcome are, for the checks of our own
model too. All of it imports only torch, except `hugging_face` and `pytest_plugin`.
"""

from minitrans.cachecheck.measurement import NotOfferedError
from minitrans.cachecheck.protocol import CachedModel, Functions, LoadError
from minitrans.cachecheck.runner import check_cache, run, self_test

__all__ = ["CachedModel", "Functions", "LoadError", "NotOfferedError", "check_cache", "run", "self_test"]
