"""Faults that attention code is found to have, for the self-test to apply to the live code."""

from importlib.util import find_spec
from types import ModuleType

from minitrans.verify.sabotages import attention  # isort: skip
from minitrans.verify.sabotages import masks  # isort: skip
from minitrans.verify.sabotages import model  # isort: skip
from minitrans.verify.sabotages import decoding  # isort: skip

CHAPTERS: tuple[ModuleType, ...] = (attention, masks, model, decoding)

if find_spec("minitrans.compiled"):
    from minitrans.verify.sabotages import compiled

    CHAPTERS += (compiled,)

if find_spec("ctranslate2"):
    from minitrans.verify.sabotages import exported

    CHAPTERS += (exported,)
