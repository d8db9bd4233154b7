"""How translations came about: what every head looked at, step by step, from the cache and from the full pass.

`minitrans.explain(translator, text)` is this folder, called.
"""

import sys
from collections.abc import Sequence
from types import ModuleType

from minitrans.explain.computing import explain
from minitrans.explain.page import Explanation
from minitrans.serving.translator import Translator


class _Callable(ModuleType):
    """A module that can be called. Its name belongs to the folder as soon as that is imported."""

    def __call__(self, translator: Translator, texts: str | Sequence[str]) -> Explanation:
        """See `Explanation`; `texts` is one text or several.

        Raises:
            UserError: There is no text that is not blank.
        """
        return Explanation(explain(translator, [texts] if isinstance(texts, str) else texts))


sys.modules[__name__].__class__ = _Callable
