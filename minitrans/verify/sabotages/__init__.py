"""Faults that attention code is found to have, for the self-test to apply to the live code."""

from importlib.util import find_spec

from minitrans.verify.sabotages import attention, decoding, masks, model

CHAPTERS = [attention, masks, model, decoding]

if find_spec("minitrans.compiled"):
    from minitrans.verify.sabotages import compiled

    CHAPTERS.append(compiled)

if find_spec("ctranslate2"):
    from minitrans.verify.sabotages import exported

    CHAPTERS.append(exported)

SABOTAGES = [sabotage for chapter in CHAPTERS for sabotage in chapter.SABOTAGES]
