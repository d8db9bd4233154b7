"""What is measured: a model and sentences for it."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.cachecheck.protocol import ModelAndTokens
from minitrans.data.batching import collate, id_rows, to_padded_tensor
from minitrans.model.cache import DecoderCache
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.text.tokenizer import Tokenizer
from minitrans.translate.bundle import Bundle, load_bundle
from minitrans.verify.transformer_adapter import TransformerAdapter, adapt_model_and_tokens

N_TEXT_PAIRS = 12  # real sentence pairs for the full passes
MAX_DECODE_LINES = 600  # most sentences that are decoded, because they are decoded without a cache too
MAX_TOKENS_A_SIDE = 40  # tokens of a sentence, where the work grows with their square
DECODE_BATCH_SIZE = 100  # sentences decoded together

# The running example of texts on attention; the corpus in this repository has these sentences too.
RUNNING_EXAMPLE_PAIRS = {
    "Machine learning is fun.": "机器学习真好玩。",
    "I love you.": "我爱你。",
    "deep learning": "深度学习",
}


@dataclass(frozen=True)
class ModelAndPairs:
    """A model, a batch of sentence pairs, and sources to decode.

    Attributes:
        model: In eval mode.
        src_ids: int64 (B, S), ragged, padded on the right.
        tgt_in: int64 (B, T), begins with BOS, ragged, padded on the right.
        tgt_out: int64 (B, T), ends with EOS, padded alike.
        decode_batches: Sources for greedy decoding, int64 (B, S) each.
        known_pairs: Sources from its training corpus, and their only right translations, as piece ids.
        piece: The text of a piece id.
    """

    model: Transformer
    src_ids: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    decode_batches: list[Tensor]
    known_pairs: Sequence[tuple[list[int], list[int]]] = ()
    piece: Callable[[int], str] = str

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return self.model.output.weight.dtype

    def to(self, dtype: torch.dtype) -> "ModelAndPairs":
        """The same with a copy of the model in another dtype."""
        return replace(self, model=copy.deepcopy(self.model).to(dtype))

    def case(self) -> ModelAndTokens[DecoderCache]:
        """Model and sentence pairs, as the checks of anyone's model take them."""
        return adapt_model_and_tokens(self.model, self.src_ids, self.tgt_in)

    def randn(self, *shape: int, seed: int) -> Tensor:
        """Numbers of unit variance in the model's dtype, the same in all dtypes but for rounding."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(self.dtype)

    def pairs(self) -> list[tuple[list[int], list[int]]]:
        """Each source and each `tgt_in` without its padding."""
        pad_id = self.model.config.pad_id
        rows = zip(self.src_ids, self.tgt_in, strict=True)
        return [(src[src != pad_id].tolist(), tgt[tgt != pad_id].tolist()) for src, tgt in rows]


def fresh_model(seed: int = 6) -> Transformer:
    """A small model in which every parameter is random, biases and norms too, so that no fault hides behind 0 or 1.

    Numbers keep their size on the way through it, so that rounding errors do not grow. Only the last norm is large, and
    with it the differences between the model's choices: decoding ends early, late and not at all.
    No two of its sizes are equal, nor equal to one of `model_and_random_pairs`, so that a swapped axis cannot pass.
    """
    config = TransformerConfig(
        vocab_size=29, pad_id=0, bos_id=1, eos_id=2, d_model=12, n_heads=3, d_ff=14, n_layers=2, max_len=32
    )
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
            if name.endswith("norm.weight"):
                parameter.add_(2.0 if name == "decoder.norm.weight" else 1.0)
    return model


def model_and_random_pairs(model: Transformer, seed: int = 1) -> ModelAndPairs:
    """Random sentences, no longer than the model takes; a float64 copy of the model is taken."""
    generator, ordinary = torch.Generator().manual_seed(seed), torch.tensor(TransformerAdapter(model).ordinary)

    def ids(n: int) -> list[int]:
        n = min(n, model.config.max_len - 1)
        return ordinary[torch.randint(len(ordinary), (n,), generator=generator)].tolist()

    sources, targets = [ids(n) for n in (7, 3, 6, 1, 4)], [ids(n) for n in (4, 8, 5, 9, 2)]
    return model_and_id_pairs(model, sources, targets, [sources, [ids(n) for n in (2, 7, 5, 5, 1, 6, 4)]])


def load_run_and_pairs(run: Path, data: str | None = None) -> ModelAndPairs:
    """A trained run: its weights, its tokenizer, validation text for the full passes, and test sentences to decode.

    Its corpus is at `data`; None: where `config.yaml` says.

    Raises:
        UserError: The run or its corpus cannot be read.
    """
    from minitrans.data.corpus import load_run_corpus  # only here, because it takes seconds to import

    bundle = load_bundle(run)
    corpus = load_run_corpus(run, data)
    tests = [name for name in corpus if name not in ("train", "valid")] or ["valid"]
    decode_lines = [source for name in tests for source in corpus[name]["source"][:]]
    valid = list(zip(corpus["valid"]["source"][:], corpus["valid"]["target"][:], strict=True))
    parts = corpus["train"].iter(10_000)  # all its pairs may not fit in memory
    pairs = (pair for part in parts for pair in zip(part["source"], part["target"], strict=True))
    seen = {pair for pair in pairs if pair in RUNNING_EXAMPLE_PAIRS.items()}
    learnt = [pair for pair in RUNNING_EXAMPLE_PAIRS.items() if pair in seen]
    return model_and_text_pairs(bundle, valid, decode_lines, learnt)


def model_and_text_pairs(
    bundle: Bundle, pairs: Sequence[tuple[str, str]], decode_lines: Sequence[str], learnt: Sequence[tuple[str, str]]
) -> ModelAndPairs:
    """Real sentences for a trained model, of which a float64 copy is taken.

    A few of the sentence `pairs`, of different lengths, serve for the full passes. At most MAX_DECODE_LINES of the
    `decode_lines`, of all lengths, are decoded. `learnt` are sentences with their only right translations.
    """
    tokenizer, longest = bundle.tokenizer, bundle.model.config.max_len - 1
    by_length = sorted(pairs, key=lambda pair: len(pair[0]))
    n = min(N_TEXT_PAIRS, len(by_length))
    chosen = [by_length[i * len(by_length) // n] for i in range(n)]
    id_pairs = _encode_pairs(tokenizer, chosen)
    sources = [source[: longest - 1] for source, _ in id_pairs]  # all may be equally long: leave room for padding
    targets = [target[:longest] for _, target in id_pairs]
    reader = tokenizer.make_reader(bundle.source_words)
    read = [text for line in decode_lines for text, _ in reader.preprocess_line(line)]
    lines = sorted((ids[:longest] for ids in tokenizer.encode_batch(read)), key=len)
    lines = lines[:: max(1, math.ceil(len(lines) / MAX_DECODE_LINES))]
    batches = [lines[i : i + DECODE_BATCH_SIZE] for i in range(0, len(lines), DECODE_BATCH_SIZE)]
    subject = model_and_id_pairs(bundle.model, sources, targets, batches)
    src_ids = F.pad(subject.src_ids, (0, 1), value=bundle.model.config.pad_id)
    known = [pair for pair in _encode_pairs(tokenizer, learnt) if max(map(len, pair)) <= longest]
    return replace(subject, src_ids=src_ids, known_pairs=known, piece=tokenizer.pieces.__getitem__)


def _encode_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
    """The piece ids of pairs, read as training reads them."""
    sides = tokenizer.reader.preprocess_pairs([source for source, _ in pairs], [target for _, target in pairs])
    return list(zip(*map(tokenizer.encode_batch, sides), strict=True))


def model_and_id_pairs(
    model: Transformer,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    decode_batches: Sequence[Sequence[list[int]]],
) -> ModelAndPairs:
    """Put sentences of piece ids, without special ids, into tensors; a float64 copy of the model is taken."""
    config = model.config
    batch = collate(sources, targets, config.pad_id, config.bos_id, config.eos_id)
    exact = copy.deepcopy(model).to("cpu", torch.float64).eval().requires_grad_()
    to_decode = [to_padded_tensor(id_rows(rows), config.pad_id, eos_id=config.eos_id) for rows in decode_batches]
    return ModelAndPairs(exact, *batch, to_decode)
