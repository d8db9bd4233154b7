"""How translations came about: what every head looked at, step by step, from the cache and from the full pass.

`minitrans.explain` is this package, and can be called: `minitrans.explain(translator, text)`.
"""

import sys
from collections.abc import Sequence
from types import ModuleType

from minitrans.explain.page import MAX_WEIGHT_BYTES, ExplanationPage, layer_bytes
from minitrans.explain.tracing import TracedTranslation, trace_translation, translate_sentences
from minitrans.translate.translator import Translator


def explain(translator: Translator, texts: str | Sequence[str], limit: int | None = None) -> ExplanationPage:
    """Translate one text or several, greedily, and show how, for `limit` sentences at most.

    Sentences without words are left out (logged at level INFO); a page says if it has no room for more.

    Raises:
        UserError: There are no texts, or none has words.
    """
    traced, size = list[TracedTranslation](), 0
    for sentence in translate_sentences(translator, [texts] if isinstance(texts, str) else texts, limit):
        if size > MAX_WEIGHT_BYTES:
            return ExplanationPage(traced, is_cut=True)
        traced.append(trace_translation(translator.bundle, *sentence))
        size += layer_bytes(traced[-1])
    return ExplanationPage(traced)


class _CallableModule(ModuleType):
    """Importing a package binds its name to the module, so the module itself has to be callable."""

    __call__ = staticmethod(explain)


sys.modules[__name__].__class__ = _CallableModule
