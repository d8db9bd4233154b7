"""A trained model as a folder for CTranslate2, which translates in C++ without PyTorch.

An engine is CTranslate2's `Translator`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import ctranslate2
import torch
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
from torch import nn

from minitrans.errors import UserError
from minitrans.files import atomic_folder, write_file
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.decoding import length_limit, suppress_pad_bos, token_log_probs
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.transformer import Transformer
from minitrans.pages.render import render_template
from minitrans.translate.bundle import TOKENIZER, Bundle, save_reader_code_and_settings

BATCH_TOKENS = 4096  # source tokens in a batch, padding included
LOG_PROB_TOLERANCE = 1e-3  # what float32 may change in the log-probability of a token, in nats or as a share of it


def export(bundle: Bundle, folder: Path) -> None:
    """Write a new folder, whole or not at all, from a trained model, float32, on the CPU.

    It holds CTranslate2's files, the tokenizer, what reads lines for it, and a README.md that says how to translate.

    Raises:
        UserError: The folder already exists, or cannot be written; or CTranslate2 cannot compute this model: it has
            another architecture, or gives other numbers.
    """
    pieces = bundle.tokenizer.pieces
    with atomic_folder(folder) as temp:
        try:
            save_engine(temp, bundle.model, pieces, bundle.tokenizer.unk_id)
        except (AttributeError, RuntimeError, ValueError) as error:  # something is missing, or has another size
            raise UserError(f"CTranslate2 cannot compute this model: {error}; translate with minitrans") from error
        if not (distance := _log_prob_difference(load_engine(temp), bundle.model, pieces)) <= LOG_PROB_TOLERANCE:
            raise UserError(
                f"CTranslate2 gives other numbers than this model: log-probabilities differ by {distance:.1e} "
                f"(at most {LOG_PROB_TOLERANCE:g}); translate with minitrans"
            )
        write_file(temp / TOKENIZER, bundle.tokenizer.proto)
        save_reader_code_and_settings(temp, bundle)
        readme = render_template("engine.md", bundle=bundle, tokenizer=TOKENIZER, batch_tokens=BATCH_TOKENS)
        write_file(temp / "README.md", f"{readme}\n")


def save_engine(folder: Path, model: Transformer, pieces: Sequence[str], unk_id: int) -> None:
    """Write CTranslate2's own files into an existing folder, from a model that is float32 and on the CPU.

    `pieces` has the text of every piece id, all different; CTranslate2 reads any other text as `unk_id`. It appends EOS
    to sources, as our model was trained. PAD and BOS, which we never choose, have a bias of -inf there.
    """
    config = model.config
    sizes = {"num_layers": config.n_layers, "num_heads": config.n_heads, "head_dim": config.head_size}
    encoder, decoder = TransformerEncoderSpec(**sizes), TransformerDecoderSpec(**sizes)
    encoder.embeddings[0].weight = model.src_embedding.weight
    decoder.embeddings.weight = model.tgt_embedding.weight
    bias = model.output.weight.new_zeros(config.vocab_size)
    bias[[config.pad_id, config.bos_id]] = -torch.inf
    decoder.projection.weight, decoder.projection.bias = model.output.weight, bias
    for side, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        side.position_encodings.encodings = model.positions
        _fill_norm(side.layer_norm, stack.norm)
        for filled, layer in zip(side.layer, cast(Iterable[EncoderLayer | DecoderLayer], stack.layers), strict=True):
            _fill_attention(filled.self_attention, layer.self_norm, layer.self_attn)
            if isinstance(layer, DecoderLayer):
                _fill_attention(filled.attention, layer.cross_norm, layer.cross_attn)
            _fill_norm(filled.ffn.layer_norm, layer.ff_norm)
            for linear, weights in ((filled.ffn.linear_0, layer.ff.w_1), (filled.ffn.linear_1, layer.ff.w_2)):
                linear.weight, linear.bias = weights.weight, weights.bias

    spec = TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(list(pieces))
    spec.register_target_vocabulary(list(pieces))
    spec.config.add_source_eos = True
    spec.config.bos_token = spec.config.decoder_start_token = pieces[config.bos_id]
    spec.config.eos_token = pieces[config.eos_id]
    spec.config.unk_token = pieces[unk_id]
    spec.config.layer_norm_epsilon = model.decoder.norm.eps  # of all norms
    spec.validate()
    spec.optimize()  # a tied matrix is written once
    spec.save(str(folder))


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = norm.weight, norm.bias


def _fill_attention(spec: Any, norm: nn.LayerNorm, attention: MultiHeadAttention) -> None:
    """Self-attention is a product with (W_q, W_k, W_v) and one with W_o; cross-attention has W_q by itself."""
    _fill_norm(spec.layer_norm, norm)
    *first, last = spec.linear
    width = attention.w_o.in_features
    rows = [width, 2 * width] if len(first) == 2 else [3 * width]
    weights, biases = attention.w_qkv.weight.split(rows), attention.w_qkv.bias.split(rows)
    for filled, weight, bias in zip(first, weights, biases, strict=True):
        filled.weight, filled.bias = weight, bias
    last.weight, last.bias = attention.w_o.weight, attention.w_o.bias


@torch.no_grad()
def _log_prob_difference(engine: Any, model: Transformer, pieces: Sequence[str]) -> float:
    """The largest difference in a token's log-probability, relative where that is above one nat, on two ragged rows."""
    c = model.config
    ordinary = [i for i in range(c.vocab_size - 1, 0, -1) if i not in (c.pad_id, c.bos_id, c.eos_id)]
    differences = []
    for src, tgt in ((ordinary[:5], ordinary[2:9:2]), (ordinary[3:5], ordinary[:6])):
        src, tgt = src[: c.max_len - 1], tgt[: c.max_len - 1]
        src_ids, tgt_ids = torch.tensor([[*src, c.eos_id]]), torch.tensor([[c.bos_id, *tgt, c.eos_id]])
        (expected,) = token_log_probs(suppress_pad_bos(model(src_ids, tgt_ids[:, :-1]), c), tgt_ids[:, 1:])
        (scored,) = engine.score_batch([[pieces[i] for i in src]], [[pieces[i] for i in tgt]], max_input_length=0)
        differences.append(((expected - torch.tensor(scored.log_probs)) / expected.abs().clamp(min=1.0)).abs().max())
    return float(torch.stack(differences).max())


def load_engine(folder: Path, compute_type: str = "float32", threads: int = 1) -> Any:
    """Load what `export` or `save_engine` wrote as a `ctranslate2.Translator`, with its weights in `compute_type`.

    It translates as many batches at once as it has threads. (Several threads for a batch are far slower where
    PyTorch, in the same process, has threads of its own.)
    """
    n_threads = torch.get_num_threads()
    engine = ctranslate2.Translator(str(folder), compute_type=compute_type, inter_threads=threads, intra_threads=1)
    torch.set_num_threads(n_threads)  # CTranslate2 has changed it
    return engine


def translate_fns(folder: Path, bundle: Bundle) -> Iterator[tuple[str, Callable[[Sequence[str]], list[str]]]]:
    """For each arithmetic that is worth scoring, its name and a function that translates lines in it."""
    for compute_type in ("float32", "int8"):
        engine = load_engine(folder, compute_type, torch.get_num_threads())
        yield f"ctranslate2 {compute_type}", partial(translate_exported, engine, bundle)


def greedy_exported(
    engine: Any, vocabulary: Sequence[str], max_len: int, sources: Sequence[Sequence[int]]
) -> list[list[int]]:
    """What `greedy_decode` does, done by the engine: the target tokens of each source, without BOS and EOS.

    Sources: no EOS, at most max_len - 1 tokens; an empty one is not decoded. `vocabulary`: as `save_engine`'s `pieces`.
    """
    limits = [length_limit(len(source) + 1, max_len) for source in sources]
    results = engine.translate_batch(
        [[vocabulary[i] for i in source] for source in sources],
        beam_size=1,
        min_decoding_length=0,  # with 1, the default, EOS could not come first
        max_decoding_length=max(limits, default=0),  # of the whole call; each row is cut at its own limit below
        max_input_length=0,
        max_batch_size=BATCH_TOKENS,
        batch_type="tokens",
    )
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    hypotheses = (result.hypotheses[0][:limit] for result, limit in zip(results, limits, strict=True))
    return [[ids[piece] for piece in row] for row in hypotheses]


def translate_exported(engine: Any, bundle: Bundle, lines: Sequence[str]) -> list[str]:
    """What `Translator.translate` does, done by the engine; lines that are too long are cut without a warning."""
    tokenizer, max_len = bundle.tokenizer, bundle.model.config.max_len
    reader = tokenizer.make_reader(bundle.source_words)
    read = [reader.preprocess_line(line) for line in lines]
    sources = [ids[: max_len - 1] for ids in tokenizer.encode_batch(text for line in read for text, _ in line)]
    outputs = map(tokenizer.decode, greedy_exported(engine, tokenizer.pieces, max_len, sources))
    return [reader.postprocess_line(outputs, line) for line in read]
