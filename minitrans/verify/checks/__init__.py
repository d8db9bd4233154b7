"""The claims, a chapter a file, in the order in which they teach attention.

Each check has its claim for a docstring, and returns the worst that it found, in the dtype of its subject. Identifiers
C1 to C26 number the claims of the attention literature that this package is held to. Where a text has it wrong, the
check also computes what the text says and fails if that would do as well: a claim that cannot be told from its opposite
is no claim.
"""

from importlib.util import find_spec

from minitrans.verify.checks import decoding, heads, lookup, masks, model, scaling, training

CHAPTERS = [lookup, scaling, heads, masks, model, training, decoding]

if find_spec("minitrans.compiled"):
    from minitrans.verify.checks import compiled

    CHAPTERS.append(compiled)

if find_spec("ctranslate2"):
    from minitrans.verify.checks import exported

    CHAPTERS.append(exported)

CHECKS = [check for chapter in CHAPTERS for check in chapter.CHECKS]
