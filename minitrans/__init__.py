"""A translation Transformer small enough to read in an evening, which proves its own attention.

The names below are imported when first used: `minitrans.model` and all it needs import torch alone, and a program
that only translates never pays for what only training needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrans import verify as verify
    from minitrans.explain import explain as explain
    from minitrans.model.attention import MultiHeadAttention as MultiHeadAttention
    from minitrans.model.transformer import Transformer as Transformer
    from minitrans.model.transformer import TransformerConfig as TransformerConfig
    from minitrans.translate.translator import Translator as Translator

__version__ = "0.1.0"

_HOMES = {
    "MultiHeadAttention": "minitrans.model",
    "Transformer": "minitrans.model",
    "TransformerConfig": "minitrans.model",
    "Translator": "minitrans.translate.translator",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home (PEP 562)."""
    if name in ("explain", "verify"):
        return import_module(f"minitrans.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'minitrans' has no attribute {name!r}")
