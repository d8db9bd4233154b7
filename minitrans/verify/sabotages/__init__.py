"""Faults that attention code is found to have, for the self-test to apply to the live code."""

from minitrans.verify.sabotages import attention  # isort: skip
from minitrans.verify.sabotages import masks  # isort: skip
from minitrans.verify.sabotages import model  # isort: skip
from minitrans.verify.sabotages import decoding  # isort: skip

CHAPTERS = (attention, masks, model, decoding)
