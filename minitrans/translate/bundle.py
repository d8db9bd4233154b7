"""A trained model as a folder: `model.safetensors` (weights), `model.json` (sizes), `tokenizer.model`, `words.txt`."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from minitrans.errors import UserError
from minitrans.files import write_file
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.text import reading
from minitrans.text.tokenizer import Tokenizer

WEIGHTS, METADATA, TOKENIZER, WORDS = "model.safetensors", "model.json", "tokenizer.model", "words.txt"
# Limits on what the weights do not confirm: the table of positions, and the small files.
MAX_POSITIONS_NUMEL = 1 << 24  # numbers in the table of positions, max_len times d_model; 16,384 positions at 1,024
MAX_SMALL_FILE_BYTES = 1 << 26  # bytes; a SentencePiece model of 250,000 pieces has less than a tenth


@dataclass(frozen=True)
class Threshold:
    """The score below which translations are often wrong, and what wrong means; see `metrics.choose_threshold`.

    Attributes:
        score: A mean log-probability, in nats per token.
        chrf: A translation is wrong if it equals no reference and, where this is given, has a sentence chrF (0 to 100)
            below it.
    """

    score: float
    chrf: float | None


@dataclass(frozen=True)
class Bundle:
    """Everything that translating needs.

    Attributes:
        model: In eval mode; float32 as loaded.
        tokenizer: Agrees with the model on the vocabulary and the special ids.
        source, target: Languages translated from and to, say "en" and "zh".
        source_words: The different words seen in training, as `reading.split_lowercase_words` splits sources, each
            with its rank by frequency, from 0; None where they are not known.
        threshold: When a translation is unsure; None where that is not known.
    """

    model: Transformer
    tokenizer: Tokenizer
    source: str
    target: str
    source_words: Mapping[str, int] | None = None
    threshold: Threshold | None = None


def save_bundle(folder: Path, bundle: Bundle) -> None:
    """Write the bundle into an existing folder. Each file gets a temporary name first; the sizes are written last.

    Raises:
        UserError: The folder cannot be written.
    """
    write_file(folder / TOKENIZER, bundle.tokenizer.proto)
    weights = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in _weights_and_buffers(bundle.model).items()
    }
    write_file(folder / WEIGHTS, save(weights))
    sizes: dict[str, object] = {"source": bundle.source, "target": bundle.target, "model": asdict(bundle.model.config)}
    sizes["sha256"] = {name: _sha256(folder / name) for name in (WEIGHTS, TOKENIZER)}
    if bundle.source_words is not None:
        save_words(folder, bundle.source_words)
        sizes["words"] = len(bundle.source_words)
    else:
        (folder / WORDS).unlink(missing_ok=True)  # that of the run that training started from
    if bundle.threshold is not None:
        sizes["threshold"] = asdict(bundle.threshold)
    write_file(folder / METADATA, json.dumps(sizes, indent=2) + "\n")


def save_words(folder: Path, words: Iterable[str]) -> None:
    """Write the words seen in training, one per line, the most frequent first.

    Raises:
        UserError: The folder cannot be written.
    """
    write_file(folder / WORDS, "".join(f"{word}\n" for word in words))


def save_reader_code_and_settings(folder: Path, bundle: Bundle) -> None:
    """Write the reader of sources into an exported folder: its code, and the settings for `reading.load_reader`.

    Raises:
        UserError: The folder cannot be written.
    """
    write_file(folder / "reading.py", Path(reading.__file__).read_bytes())
    tokenizer, words = bundle.tokenizer, bundle.source_words
    settings = {"plain": tokenizer.reader.plain, "signs": tokenizer.signs, "known": [*(words or ())]}
    write_file(folder / reading.READER_SETTINGS_FILE, json.dumps(settings, ensure_ascii=False, indent=0) + "\n")


def load_bundle(folder: Path) -> Bundle:
    """Read a bundle. Nothing in it can run code, and its sizes are checked before memory is allocated.

    Raises:
        UserError: The folder is not a trained run, is incomplete or damaged, or its files do not fit together.
    """
    if not os.path.isdir(folder):  # unlike Path.is_dir, false for a name that is too long
        raise UserError(f"{folder} is not a folder; give the run folder that `minitrans train` wrote")
    if re.search("[\ud800-\udfff]", str(folder)):  # bytes that are not UTF-8, which safetensors does not open
        raise UserError(f"{folder}: its name is not UTF-8; rename it, or go into it and give .")
    if missing := [name for name in (METADATA, WEIGHTS, TOKENIZER) if not (folder / name).is_file()]:
        raise UserError(f"{folder} holds no finished run: {', '.join(missing)} is missing; train it first")
    for path in (folder / name for name in (METADATA, WEIGHTS, TOKENIZER, WORDS)):
        if path.exists() and not os.access(path, os.R_OK):
            raise UserError(f"cannot read {path}: Permission denied; ask its owner for access")
    config, source, target, n_words, threshold, digests = _load_metadata(folder / METADATA)
    tokenizer = load_tokenizer(folder)
    for name in ("vocab_size", "pad_id", "bos_id", "eos_id"):
        of_model, of_tokenizer = getattr(config, name), getattr(tokenizer, name)
        if of_model != of_tokenizer:
            differs = f"{name} is {of_model} in the model, {of_tokenizer} in the tokenizer"
            raise UserError(f"{folder}: {differs}; the files come from different runs")
    words = None if n_words is None else load_word_ranks(folder)
    if words is not None and len(words) != n_words:
        raise UserError(f"{folder / WORDS} is damaged ({len(words)} words, not {n_words}); train the run again")
    model = _load_model(folder / WEIGHTS, config)
    for name in (WEIGHTS, TOKENIZER):
        if digests[name] != _sha256(folder / name):
            raise UserError(f"{folder / name} does not have the sha256 that {METADATA} gives; copy or train it again")
    return Bundle(model, tokenizer, source, target, words, threshold)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a run folder.

    Raises:
        UserError: It is damaged, or far too large for a tokenizer.
    """
    _check_file_size(folder / TOKENIZER)
    return Tokenizer.load(folder / TOKENIZER)


def load_word_ranks(folder: Path) -> dict[str, int]:
    """Read the words seen in training, each with its rank by frequency.

    Raises:
        UserError: The list is missing, damaged, or far too large.
    """
    try:
        _check_file_size(folder / WORDS)
        return {word: i for i, word in enumerate((folder / WORDS).read_text(encoding="utf-8").split())}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / WORDS} is missing or damaged ({error}); train the run again") from error


def _check_file_size(path: Path) -> None:
    if (size := path.stat().st_size) > MAX_SMALL_FILE_BYTES:
        raise UserError(f"{path} is damaged ({size} bytes, more than {MAX_SMALL_FILE_BYTES}); train the run again")


def _load_metadata(path: Path) -> tuple[TransformerConfig, str, str, int | None, Threshold | None, dict[str, str]]:
    """Sizes, languages, how many words are listed, the threshold, hashes."""
    _check_file_size(path)
    try:
        sizes = json.loads(path.read_bytes())
        digests = {name: sizes["sha256"][name] for name in (WEIGHTS, TOKENIZER)}
        config = TransformerConfig(**sizes["model"])
        threshold = Threshold(**sizes["threshold"]) if "threshold" in sizes else None
        for record in (config, threshold):
            for name, kind in get_type_hints(type(record)).items():
                value = getattr(record, name)
                # JSON may write 0 for 0.0.
                if not (value in get_args(kind) if get_origin(kind) is Literal else isinstance(value, (int, kind))):
                    raise TypeError(f"{name} is {value!r}")
        if config.max_len * config.d_model > MAX_POSITIONS_NUMEL:
            raise ValueError(f"max_len is {config.max_len}, d_model {config.d_model}")
        source, target = str(sizes["source"]), str(sizes["target"])
        if not (source + target).isprintable():  # they are printed, on terminals and in READMEs
            raise ValueError(f"source is {source!r}, target {target!r}")
        return config, source, target, sizes.get("words"), threshold, digests
    except KeyError as error:
        raise UserError(f"{path} has no {error}: another version of minitrans wrote it; train the run again") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); train the run again") from error


def count_parameters(c: TransformerConfig) -> int:
    """Weights and biases of a model of these sizes."""
    d, inner = c.d_model, c.n_heads * c.head_size
    attention, ff, norm = 4 * d * inner + 3 * inner + d, 2 * d * c.d_ff + c.d_ff + d, 2 * d
    layers = (attention + ff + 2 * norm) + (2 * attention + ff + 3 * norm)
    return c.vocab_size * d * (1 if c.tie_embeddings else 3) + c.n_layers * layers + 2 * norm


def _weights_and_buffers(model: Transformer) -> dict[str, Tensor]:
    """What a run keeps of a model, a tied matrix under one name: its parameters, and the buffers in its state."""
    state = model.state_dict()
    return {**dict(model.named_parameters()), **{name: x for name, x in model.named_buffers() if name in state}}


def _load_model(path: Path, config: TransformerConfig) -> Transformer:
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (not a dict)
            wrong = ["n_layers"] * (config.n_layers > len(shapes))  # or making so many would take for ever
            # A model far larger than the file is not built; if the difference is smaller, the weight is named.
            wrong += ["the number of weights"] * (count_parameters(config) > 12 * sum(map(prod, shapes.values())))
            if not wrong:
                model = Transformer(config).float()  # whatever torch.set_default_dtype says
                expected = {name: list(x.shape) for name, x in _weights_and_buffers(model).items()}
                wrong = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))
            if wrong:
                raise UserError(
                    f"{path} does not fit {METADATA}: {wrong[0]} differs; the files come from different runs"
                )
            with torch.no_grad():
                for name, tensor in _weights_and_buffers(model).items():
                    tensor.copy_(file.get_tensor(name))
                    if isinstance(tensor, nn.Parameter) and not tensor.isfinite().all():
                        raise UserError(f"{path} is damaged ({name} is not finite); train the run again")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged ({error}); train the run again") from error
    return model.eval()
