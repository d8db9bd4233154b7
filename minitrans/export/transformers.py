"""A trained model as a folder for Hugging Face's transformers, and for anything else that reads its format.

Blenderbot's class computes what our model does: pre-norm layers, scaled embeddings, and positions that are read from a
table, which here holds our sines. An engine is that model with its tokenizer.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
import yaml
from markupsafe import Markup
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made by protobuf
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from minitrans.errors import UserError
from minitrans.files import atomic_folder, write_file
from minitrans.model.decoding import CachedStepper, beam_search, greedy_decode, length_limits
from minitrans.model.transformer import Transformer
from minitrans.pages.render import render_template, templates
from minitrans.text.lines import base_language, escape_controls
from minitrans.text.reading import PLACEHOLDERS, PLAIN_MARKS_TABLE, clean, with_keyboard_marks
from minitrans.text.tokenizer import Tokenizer
from minitrans.translate.bundle import Bundle, save_reader_code_and_settings
from minitrans.translate.metrics import Scores

transformers.utils.logging.disable_progress_bar()  # there is one for each file, however short

BATCH_SIZE = 64  # sentences that are translated at once
LOGIT_TOLERANCE = 1e-12  # of logits in float64, absolute or as a share of the logit, whichever is larger
MAX_VERIFIED_LENGTH = 512  # tokens whose logits are compared: with more, attention's weights might not fit into memory
N_VERIFIED_WORDS = 20_000  # how many of the words in training the proof tokenizes

# What `text.reading.clean` turns into one space, with SentencePiece's mark for a space. (Libraries for regular
# expressions differ in what they take for white space.)
SPACE_PATTERN = r"[\u0000-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\u2581]+"

# What Blenderbot calls the parts of our layers.
BLENDERBOT_PART_NAMES = {
    "self_norm": "self_attn_layer_norm",
    "cross_norm": "encoder_attn_layer_norm",
    "cross_attn": "encoder_attn",
    "ff_norm": "final_layer_norm",
    "ff.w_1": "fc1",
    "ff.w_2": "fc2",
    "w_o": "out_proj",
}

# Lines that a tokenizer gets wrong if it cleans differently, takes text for special pieces, or cannot spell bytes.
HOSTILE_LINES = (
    "",
    " \t\u3000 ",
    "I  love\u2028you.\r\x00\x85!\x1f",
    "Cafe\u0301 \u1e9b\u0323 q\u0307\u0323 \u1100\u1161 \u2126",
    "<s> </s> <unk> <pad> <0x41> a<s>b</s><<0x0A>",
    "\u2581a\u2581\u2581b \u2047 a\u200db\ufeff\xad",
    "\U0001f916\U00010348\U0010ffff\ue000",
    "ha" * 99 + "." * 99 + " 3.14 & 2,000 " + "a " * 99,
    "".join(map(chr, range(0x21, 0x250))),
    " ".join(map(chr, range(0x3000, 0x3100))),
    "I don’t “know” – it’s … ＡＢＣ！ re‑do —",
    "<plain> \ue000\ue001 a\ue002b. \ue01e's \ue023!",
)


def _yaml_quoted(text: str) -> Markup:
    """A text as a YAML string on one line; without quotes, `no` would be false."""
    return Markup(yaml.safe_dump(text, allow_unicode=True, default_style='"', width=2**31).strip())


templates.filters["quoted"] = _yaml_quoted
templates.filters["hub_name"] = partial(re.sub, r"[^\w.-]+", "-", flags=re.ASCII)  # other characters are refused


class Engine(NamedTuple):
    """What `AutoModelForSeq2SeqLM` and `AutoTokenizer` read from an exported folder."""

    model: Any
    tokenizer: Any


def export(bundle: Bundle, folder: Path, license: str | None = None) -> None:
    """Write a new folder, whole or not at all, from a trained model, float32, on the CPU.

    It holds the weights, the tokenizer, settings, and a README.md that is a model card for the hub (with `license`).

    Raises:
        UserError: The folder already exists, or cannot be written; or transformers cannot compute this model: it has
            another architecture, or gives other numbers or ids.
    """
    with atomic_folder(folder) as temp:
        try:
            save_model(temp, bundle.model)
            save_tokenizer(temp, bundle)
            mismatch = next(find_mismatches(load_engine(temp, torch.float64), bundle), None)
        except (AttributeError, RuntimeError, ValueError) as error:  # something is missing, or has another size
            reason = escape_controls(" ".join(str(error).split()))
            raise UserError(f"transformers cannot compute this model: {reason}; translate with minitrans") from error
        except Exception as error:  # of safetensors and tokenizers: no OSError, even if the disk is full
            if "os error" not in str(error):
                raise
            raise UserError(f"cannot write {temp}: {error}; make room, or name another folder") from error
        if mismatch:
            what = f"transformers computes something other than this model: {mismatch}"
            raise UserError(f"{what}; translate with minitrans")
        write_card(temp, bundle, license)


def translate_fns(folder: Path, bundle: Bundle) -> Iterator[tuple[str, Callable[[Sequence[str]], list[str]]]]:
    """The name under which an exported model is scored, and a function that translates lines with it."""
    yield "transformers float32", partial(translate_exported, load_engine(folder), bundle)


def save_model(folder: Path, model: Transformer) -> None:
    """Write the weights, the sizes, and how to decode; raise a ValueError if Blenderbot cannot have these sizes."""
    c = model.config
    if c.n_heads * c.head_size != c.d_model:
        raise ValueError(f"its heads must have the size d_model / n_heads, and model.d_head is {c.d_head}")
    special = {f"{name}_token_id": getattr(c, f"{name}_id") for name in ("pad", "bos", "eos")}
    special["decoder_start_token_id"] = c.bos_id
    sizes = {"layers": c.n_layers, "ffn_dim": c.d_ff, "attention_heads": c.n_heads}
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    config = transformers.BlenderbotConfig(
        **sides,
        **special,
        vocab_size=c.vocab_size,
        max_position_embeddings=c.max_len,
        d_model=c.d_model,
        dropout=c.dropout,
        activation_dropout=c.dropout,
        attention_dropout=c.attention_dropout,
        activation_function="relu",
        scale_embedding=True,
        tie_word_embeddings=c.tie_embeddings,
        encoder_no_repeat_ngram_size=0,
        forced_eos_token_id=None,
    )
    hf_model = transformers.BlenderbotForConditionalGeneration(config)
    hf_model.load_state_dict(blenderbot_state_dict(model))
    special["suppress_tokens"] = [c.pad_id, c.bos_id]  # never chosen, but they keep their share of the probability
    hf_model.generation_config = transformers.GenerationConfig(
        **special, max_new_tokens=c.max_len, num_beams=1, do_sample=False, use_cache=True
    )
    hf_model.save_pretrained(folder)
    weights = folder / "model.safetensors"
    weights.chmod((folder / "config.json").stat().st_mode)  # safetensors lets nobody but the user read what it writes


def save_tokenizer(folder: Path, bundle: Bundle) -> None:
    """Write the tokenizer, its settings, and what reads lines for it."""
    save_reader_code_and_settings(folder, bundle)
    tokenizer = bundle.tokenizer
    ids = {name: getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "unk")}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast_tokenizer(tokenizer),
        **{f"{name}_token": tokenizer.pieces[id_] for name, id_ in ids.items()},
        model_max_length=bundle.model.config.max_len,
        padding_side="right",
        split_special_tokens=True,  # in a text, what looks like a special token is text
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}  # older versions know it
    write_file(path, json.dumps(settings, indent=2) + "\n")


def blenderbot_state_dict(model: Transformer) -> dict[str, Tensor]:
    """Our weights under the names that they have in Blenderbot."""
    weights = {"final_logits_bias": torch.zeros(1, model.config.vocab_size), "lm_head.weight": model.output.weight}
    weights["model.shared.weight"] = model.src_embedding.weight  # read only if embeddings are tied
    for side, embedding in (("encoder", model.src_embedding), ("decoder", model.tgt_embedding)):
        weights[f"model.{side}.embed_tokens.weight"] = embedding.weight
        weights[f"model.{side}.embed_positions.weight"] = model.positions
        for name, weight in getattr(model, side).state_dict().items():
            name = f"layer_{name}" if name.startswith("norm.") else name
            for own_name, hf_name in BLENDERBOT_PART_NAMES.items():
                name = name.replace(own_name, hf_name)
            if "w_qkv" in name:
                for part, rows in zip("qkv", weight.chunk(3), strict=True):
                    weights[f"model.{side}.{name.replace('w_qkv', f'{part}_proj')}"] = rows
            else:
                weights[f"model.{side}.{name}"] = weight
    return weights


def fast_tokenizer(tokenizer: Tokenizer) -> FastTokenizer:
    """Our SentencePiece model, cleaning and plain marks, as a tokenizer of the library `tokenizers`; it appends EOS.

    It takes texts that a `Reader` has read, with placeholders as pieces, and does nothing else that a `Reader` does.

    It differs in four ways. It does not sort Unicode's newest combining marks among others on the same letter. In a
    line of more than 2,000 characters, a letter keeps all its marks. It takes no lone surrogates. And where pieces
    stand for bytes that are not valid UTF-8, it decodes none of them.
    """
    proto = ModelProto.FromString(tokenizer.proto)
    unk, eos = tokenizer.pieces[tokenizer.unk_id], tokenizer.pieces[tokenizer.eos_id]
    if proto.trainer_spec.model_type == proto.trainer_spec.BPE:
        # The best piece that two neighbours make wins, whichever two they are; the others are never made.
        ordinary = sorted((p for p in proto.pieces if p.type == p.NORMAL), key=lambda p: -p.score)
        known = {p.piece for p in ordinary}
        splits = ((p.piece[:i], p.piece[i:]) for p in ordinary for i in range(1, len(p.piece)))
        merges = [(left, right) for left, right in splits if left in known and right in known]
        ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
        model: Any = models.BPE(ids, merges, unk_token=unk, byte_fallback=True)
    else:
        scores = [(p.piece, p.score) for p in proto.pieces]
        model = models.Unigram(scores, tokenizer.unk_id, byte_fallback=True)
    fast = FastTokenizer(model)
    cleaned = [normalizers.Replace(Regex(SPACE_PATTERN), " "), normalizers.Strip()]
    if tokenizer.reader.plain:
        cleaned += [normalizers.Replace(chr(mark), to) for mark, to in PLAIN_MARKS_TABLE.items()] + cleaned
    fast.normalizer = normalizers.Sequence([normalizers.NFC(), *cleaned])
    looks_special = pre_tokenizers.Split(Regex("<(?=(?:pad|s|/s|unk|plain|0x[0-9A-F]{2})>)"), "isolated")
    placeholders = pre_tokenizers.Split(Regex(f"[{PLACEHOLDERS[0]}-{PLACEHOLDERS[-1]}]"), "isolated")
    isolated = [looks_special, placeholders] if tokenizer.reader.uses_placeholders else [looks_special]
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), *isolated])
    fast.post_processor = processors.TemplateProcessing(f"$A {eos}", special_tokens=[(eos, tokenizer.eos_id)])
    tidy = [decoders.Replace(Regex(SPACE_PATTERN), " "), decoders.Replace(Regex("^ | $"), "")]
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), *tidy])
    return fast


def load_engine(folder: Path, dtype: torch.dtype = torch.float32) -> Engine:
    """Load an exported model, with nothing from the network."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return Engine(model.eval(), transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True))


def find_mismatches(engine: Engine, bundle: Bundle) -> Iterator[str]:
    """How an engine in float64 differs from our model and tokenizer, one difference after another."""
    tokenizer = bundle.tokenizer
    others = engine.tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    for i, (piece, other) in enumerate(zip(tokenizer.pieces, others, strict=True)):
        if piece != other:
            yield f"piece {i} is {escape_controls(repr(other))} there and {escape_controls(repr(piece))} here"
    lines = [*HOSTILE_LINES, *tokenizer.pieces, *sorted(bundle.source_words or ())[:N_VERIFIED_WORDS]]
    encoded = tokenizer.encode_batch(map(with_keyboard_marks, lines) if tokenizer.reader.plain else lines)
    for line, ids, hf_ids in zip(lines, encoded, engine.tokenizer(lines, verbose=False).input_ids, strict=True):
        if [*ids, tokenizer.eos_id] != hf_ids:
            yield f"its tokenizer gives other ids for {escape_controls(repr(line))}"
        if tokenizer.decode(ids) != _decode(engine, hf_ids):
            yield f"its tokenizer gives another text for the ids of {escape_controls(repr(line))}"

    model = copy.deepcopy(bundle.model).double()
    model.positions = bundle.model.positions.double()  # as they were written, not the exact ones
    stepper = CachedStepper(model)
    if not (distance := _logit_difference(engine, model)) <= LOGIT_TOLERANCE:
        yield f"logits differ by {distance:.1e} (at most {LOGIT_TOLERANCE:g})"
    parts = engine.model.get_encoder(), engine.model.get_decoder()
    if not all(torch.equal(part.embed_positions.weight, model.positions) for part in parts):
        yield "its positions are different"
    src_ids = random_rows(model, (24, 1, 9, 15))
    if decode_exported(engine, bundle, src_ids) != [best.ids for best in greedy_decode(stepper, src_ids)]:
        yield "greedy decoding finds other tokens"
    src_ids = random_rows(model, (9, 9))
    if decode_exported(engine, bundle, src_ids, 5) != [best.ids for best, *_ in beam_search(stepper, src_ids, 5)]:
        yield "5 beams find other tokens"


@torch.no_grad()
def _logit_difference(engine: Engine, model: Transformer) -> float:
    """The largest difference in a logit, relative where the logit is above 1, on ragged rows."""
    c, n = model.config, MAX_VERIFIED_LENGTH
    src_ids, tgt_in = random_rows(model, (n, 1, 9, 15)), random_rows(model, (n,) * 4)
    tgt_in = torch.cat([torch.full((4, 1), c.bos_id), tgt_in[:, :-1]], 1)
    expected = model(src_ids, tgt_in)
    logits = engine.model(input_ids=src_ids, attention_mask=src_ids != c.pad_id, decoder_input_ids=tgt_in).logits
    return float(((expected - logits).abs() / expected.abs().clamp(min=1.0)).max())


def random_rows(model: Transformer, lengths: Sequence[int]) -> Tensor:
    """int64 (B, longest): any tokens but PAD, always the same ones, then EOS, then padding."""
    c, generator = model.config, torch.Generator().manual_seed(0)
    lengths = [min(length, c.max_len) for length in lengths]
    ids = torch.tensor([i for i in range(c.vocab_size) if i != c.pad_id])
    rows = ids[torch.randint(len(ids), (len(lengths), max(lengths)), generator=generator)]
    for row, length in zip(rows, lengths, strict=True):
        row[length - 1], row[length:] = c.eos_id, c.pad_id
    return rows


def decode_exported(engine: Engine, bundle: Bundle, src_ids: Tensor, beam: int = 1) -> list[list[int]]:
    """What `greedy_decode` and `beam_search` do, done by the engine: each row's best tokens, without BOS and EOS.

    `src_ids` is int64 (B, S), padded on the right; with several beams, all rows have one length, as they share a limit.
    """
    c = bundle.model.config
    limits = length_limits(src_ids, c)
    outputs = engine.model.generate(
        input_ids=src_ids,
        attention_mask=src_ids != c.pad_id,
        max_new_tokens=max(limits),
        num_beams=beam,
        early_stopping=beam > 1,
    )
    rows = (row[1 : limit + 1] for row, limit in zip(outputs.tolist(), limits, strict=True))
    return [[id_ for id_ in row if id_ not in (c.eos_id, c.pad_id)] for row in rows]


def translate_exported(engine: Engine, bundle: Bundle, lines: Sequence[str]) -> list[str]:
    """What `Translator.translate` does, done by the engine; lines that are too long are cut without a warning."""
    reader = bundle.tokenizer.make_reader(bundle.source_words)
    read = [reader.preprocess_line(line) for line in lines]
    texts, outputs = [text for line in read for text, _ in line], list[str]()
    for i in range(0, len(texts), BATCH_SIZE):
        part = texts[i : i + BATCH_SIZE]
        src_ids = engine.tokenizer(part, padding=True, truncation=True, return_tensors="pt").input_ids
        outputs += [_decode(engine, ids) for ids in decode_exported(engine, bundle, src_ids)]
    written = iter([text if source else "" for text, source in zip(outputs, texts, strict=True)])
    return [reader.postprocess_line(written, line) for line in read]


def _decode(engine: Engine, ids: Sequence[int]) -> str:
    return clean(engine.tokenizer.decode(ids, skip_special_tokens=True))


def write_card(
    folder: Path, bundle: Bundle, license: str | None = None, scores: Mapping[str, Scores] | None = None
) -> None:
    """Write the README.md of an exported folder as the hub reads it; a test runs its code.

    The license is as the hub writes it, say "apache-2.0". `scores` has the exported model's scores on each test set.
    """
    languages = dict.fromkeys(map(base_language, (bundle.source, bundle.target)))
    codes = [code for code in languages if re.fullmatch("[a-z]{2,3}", code)]
    given = {"bundle": bundle, "codes": codes, "license": license, "scores": scores or {}, "batch_size": BATCH_SIZE}
    card = render_template("model_card.md", **given)
    write_file(folder / "README.md", f"{card}\n")
