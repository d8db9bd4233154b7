"""The proof for anyone's model: does its cached decoding give what its full masked pass gives?

A model is seen through a few functions (`protocol`); what is measured on it asks for no look inside (`measures`,
`checks`); what a failure looks like is told by what it does to the numbers (`patterns`). `faults` can be put around
any model, to see that they are noticed. All of it imports only torch, except `hugging_face`.
"""

from minitrans.verify.anyone.checks import check_cache, run, self_test
from minitrans.verify.anyone.protocol import CachedModel, Functions
from minitrans.verify.check import NotOfferedError

__all__ = ["CachedModel", "Functions", "NotOfferedError", "check_cache", "run", "self_test"]
