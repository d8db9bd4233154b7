"""The model: all that computes a translation, using only PyTorch, and the same mathematics in NumPy.

To learn it, read `masks`, `attention`, `cache`, `layers`, `transformer` and `decoding` in this order; `dropout` and
`loss` are what training needs as well, `sampling` is one more way to decode, and `reference` is the whole model again,
slow and obvious.
"""

from minitrans.model.attention import MultiHeadAttention as MultiHeadAttention
from minitrans.model.transformer import Transformer as Transformer
from minitrans.model.transformer import TransformerConfig as TransformerConfig
