"""The model: everything that computes a translation, using only PyTorch, and the same mathematics in NumPy.

To learn it, read `masks`, `attention`, `cache`, `layers`, `transformer` and `decoding` in this order. Training also
needs `dropout` and `loss`; `sampling` is another way to decode, and `reference` is the whole model again, slow and
obvious.
"""

from minitrans.model.attention import MultiHeadAttention as MultiHeadAttention
from minitrans.model.transformer import Transformer as Transformer
from minitrans.model.transformer import TransformerConfig as TransformerConfig
