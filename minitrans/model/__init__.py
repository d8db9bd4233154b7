"""The model: all that computes a translation, in PyTorch alone, and the same mathematics in NumPy beside it.

To learn it, read `masks`, `attention`, `cache`, `layers`, `transformer` and `decoding` in this order; `dropout` and
`loss` are what training needs besides, and `reference` is the whole of it again, slow and obvious.
"""

from minitrans.model.attention import MultiHeadAttention as MultiHeadAttention
from minitrans.model.transformer import Transformer as Transformer
from minitrans.model.transformer import TransformerConfig as TransformerConfig
