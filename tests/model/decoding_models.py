"""What the tests of decoding share: a model that seldom repeats itself, and ragged sources."""

import torch
from conftest import random_ids, random_model
from torch import Tensor

from minitrans.model.transformer import Transformer

SOURCE_LENGTHS = [4, 7, 1, 6, 2, 7, 3, 5, 4]
OUTPUT_LIMITS = [18, 24, 12, 22, 14, 24, 16, 20, 18]
DECODING_SEED = 5  # its rows end at eight different steps, some by EOS, some at their limit


def varied_model(seed: int, vocab_size: int = 11, max_len: int = 29) -> Transformer:
    """A random model that seldom says what it has just been told, so that its outputs vary and end."""
    model = random_model(seed, d_model=10, vocab_size=vocab_size, max_len=max_len, tie_embeddings=False)
    with torch.no_grad():
        model.output.weight.sub_(2.0 * model.tgt_embedding.weight)
        model.decoder.norm.bias.zero_()
    return model


def decoding_sources(seed: int) -> Tensor:
    """int64 (9, 7), ragged."""
    return random_ids(seed + 1, SOURCE_LENGTHS, max(SOURCE_LENGTHS))
