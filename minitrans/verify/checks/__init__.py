"""The claims, a chapter a file, in the order in which they teach attention.

A check's docstring is its claim; the check returns the largest deviation that it found, in the dtype of its subject.
C1 to C26 number claims of the attention literature that this package must meet. Where a text gets one wrong, the check
also computes what the text says, and fails if that passes as well: a claim that cannot be told from its opposite says
nothing.
"""

from importlib.util import find_spec

from minitrans.verify.checks import decoding, heads, masks, model, scaling, soft_lookup, training

CHECK_MODULES = [soft_lookup, scaling, heads, masks, model, training, decoding]

if find_spec("minitrans.compiled"):
    from minitrans.verify.checks import compiled

    CHECK_MODULES.append(compiled)

try:
    import ctranslate2  # noqa: F401 (it may be there, and not work)
except ImportError:
    pass
else:
    from minitrans.verify.checks import exported

    CHECK_MODULES.append(exported)

CHECKS = [check for chapter in CHECK_MODULES for check in chapter.CHECKS]
