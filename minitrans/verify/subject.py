"""What is measured: a model and sentences for it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minitrans.bundle import Bundle
from minitrans.model import Transformer, TransformerConfig

N_PAIRS = 12  # real sentence pairs for the full passes
DECODE_ROWS = 100  # sentences decoded together


@dataclass(frozen=True)
class Subject:
    """A model, a batch of sentence pairs, and sources to decode.

    Attributes:
        model: In float64 and eval mode.
        src_ids: int64 (B, S), ragged, padded on the right.
        tgt_in: int64 (B, T), begins with BOS, ragged, padded on the right; T != S.
        tgt_out: int64 (B, T), ends with EOS, padded alike.
        decode_batches: int64 (B, S) each: what greedy decoding is tried on.
    """

    model: Transformer
    src_ids: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    decode_batches: list[Tensor]


def fresh_model(seed: int = 0) -> Transformer:
    """A small model in which every parameter is random, biases and norms too, so that no fault hides behind 0 or 1."""
    config = TransformerConfig(
        vocab_size=29, pad_id=0, bos_id=1, eos_id=2, d_model=20, n_heads=4, d_ff=28, n_layers=3, max_len=48
    )
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.4, generator=generator)
    return model


def random_subject(model: Transformer, seed: int = 1) -> Subject:
    """Random sentences for a model; a copy of it is taken in float64 and eval mode."""
    generator = torch.Generator().manual_seed(seed)
    sources = [_random_ids(model.config, n, generator) for n in (7, 3, 6, 1)]
    targets = [_random_ids(model.config, n, generator) for n in (4, 8, 5, 9)]
    more = [_random_ids(model.config, n, generator) for n in (2, 9, 5, 5, 1, 8, 4)]
    return make_subject(model, sources, targets, [sources, more])


def text_subject(bundle: Bundle, pairs: Sequence[tuple[str, str]], decode_lines: Sequence[str]) -> Subject:
    """Real sentences for a trained model.

    Args:
        bundle: The model and its tokenizer; a float64 copy of the model is taken.
        pairs: Source and target sentences, of which a few of different lengths serve for the full passes.
        decode_lines: Source sentences, all of which are decoded.
    """
    encode, longest = bundle.tokenizer.encode, bundle.model.config.max_len - 1
    by_length = sorted(pairs, key=lambda pair: len(pair[0]))
    chosen = by_length[:: max(1, len(by_length) // N_PAIRS)][:N_PAIRS]
    sources, targets = ([encode(text)[:longest] for text in texts] for texts in zip(*chosen, strict=True))
    lines = sorted((encode(line)[:longest] for line in decode_lines), key=len)
    batches = [lines[i : i + DECODE_ROWS] for i in range(0, len(lines), DECODE_ROWS)]
    return make_subject(bundle.model, sources, targets, batches)


def make_subject(
    model: Transformer,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    decode_batches: Sequence[Sequence[list[int]]],
) -> Subject:
    """Put sentences of piece ids, without special ids, into tensors; a float64 copy of the model is taken."""
    config = model.config
    return Subject(
        model=copy.deepcopy(model).to("cpu", torch.float64).eval(),
        src_ids=_pad([[*ids, config.eos_id] for ids in sources], config.pad_id),
        tgt_in=_pad([[config.bos_id, *ids] for ids in targets], config.pad_id),
        tgt_out=_pad([[*ids, config.eos_id] for ids in targets], config.pad_id),
        decode_batches=[_pad([[*ids, config.eos_id] for ids in batch], config.pad_id) for batch in decode_batches],
    )


def _random_ids(config: TransformerConfig, n: int, generator: torch.Generator) -> list[int]:
    special = {config.pad_id, config.bos_id, config.eos_id}
    ordinary = torch.tensor([i for i in range(config.vocab_size) if i not in special])
    return ordinary[torch.randint(len(ordinary), (n,), generator=generator)].tolist()


def _pad(rows: Sequence[list[int]], pad_id: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
