"""SentencePiece: one vocabulary for both languages; lines of text to piece ids and back."""

import hashlib
import io
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from minitrans.errors import UserError
from minitrans.text.reading import PLACEHOLDERS, Reader, clean, collect_symbols

_PLAIN_SOURCES_SYMBOL = "<plain>"  # no text has this piece: it tells how sources are read
_SPACE = "\u2581"  # SentencePiece's mark for a space

ModelType = Literal["unigram", "bpe"]


@dataclass(frozen=True)
class TokenizerConfig:
    """How to train the tokenizer.

    Args:
        vocab_size: Pieces in the vocabulary, both languages together; fewer if the text does not yield so many.
        model_type: Algorithm: unigram (Kudo 2018) or bpe (Sennrich et al. 2016).
        character_coverage: Share of the text's characters that get a piece; rarer ones are spelled in bytes.
        plain_sources: Read sources sentence by sentence, in lower case, with a keyboard's marks for typographic ones.
        placeholders: Reserve pieces for what is copied, such as names and numbers; this suits a pair of languages if
            one of them is not written in Latin letters.
    """

    vocab_size: int = 8000
    model_type: ModelType = "unigram"
    character_coverage: float = 0.9995
    plain_sources: bool = True
    placeholders: bool = False

    def __post_init__(self) -> None:
        if self.vocab_size < (least := 261 + self.plain_sources + self.placeholders * len(PLACEHOLDERS)):
            raise UserError(
                f"tokenizer.vocab_size is {self.vocab_size}; it must be at least {least} "
                "(4 special ids, 256 bytes and what the settings reserve come first)"
            )
        if not 0.98 <= self.character_coverage <= 1:  # SentencePiece takes no less
            raise UserError(f"tokenizer.character_coverage is {self.character_coverage}; it must be from 0.98 to 1")

    @property
    def spm_options(self) -> dict[str, Any]:
        """All settings of SentencePiece's trainer: what decides the pieces besides the text."""
        settings = asdict(self)
        plain, placeholders = settings.pop("plain_sources"), settings.pop("placeholders")
        return {
            **settings,
            "control_symbols": [_PLAIN_SOURCES_SYMBOL] * plain,
            "user_defined_symbols": [*PLACEHOLDERS] * placeholders,
            "hard_vocab_limit": False,
            "byte_fallback": True,
            "split_digits": True,  # a number is copied digit by digit
            "normalization_rule_name": "identity",  # `clean` has normalised; the default, NFKC, makes ，？！ ASCII
            "max_sentence_length": 2**30,  # bytes, the most it takes; longer sentences are dropped
            "num_threads": 16,  # fixed, because sums of floats, and so the pieces, depend on it
            "minloglevel": 2,
            "pad_id": 0,  # everyone else reads these back from the tokenizer
            "bos_id": 1,
            "eos_id": 2,
            "unk_id": 3,
        }


class Tokenizer:
    """A trained SentencePiece model.

    It pickles and copies by the bytes of its model file, so that equal models hash alike wherever they are loaded.

    Attributes:
        proto: The bytes of the model file.
        digest: SHA-256 of the model file, in hexadecimal.
        pieces: The text of each piece by its id, with U+2581 for a space: a label, not a translation.
        vocab_size: Number of ids.
        pad_id: Fills rows up to a common length.
        bos_id: Begins a translation.
        eos_id: Ends a sentence.
        unk_id: Never made by `encode`, which falls back to bytes.
        reader: Reads sources and pairs as in training; a reader from `make_reader` knows the words, too.

    Raises:
        UserError: The bytes are not a SentencePiece model, or it lacks a special id.
    """

    def __init__(self, proto: bytes) -> None:
        self.proto = proto
        try:
            if not proto:  # to SentencePiece, no bytes mean "load nothing"
                raise RuntimeError("it is empty")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
            ids = range(self._processor.vocab_size())
            self.pieces: list[str] = [self._processor.id_to_piece(i) for i in ids]  # raises where one is not UTF-8
        except (RuntimeError, UnicodeDecodeError) as error:
            raise UserError("not a SentencePiece model; train the tokenizer again or copy the file again") from error
        self.digest: str = hashlib.sha256(proto).hexdigest()
        self.vocab_size = len(self.pieces)
        self.pad_id: int = self._processor.pad_id()
        self.bos_id: int = self._processor.bos_id()
        self.eos_id: int = self._processor.eos_id()
        self.unk_id: int = self._processor.unk_id()
        for name in ("pad_id", "bos_id", "eos_id", "unk_id"):
            if getattr(self, name) < 0:
                raise UserError(f"the SentencePiece model has no {name}; use a tokenizer that minitrans trained")
        self.reader = self.make_reader(None)

    @property
    def pad_bos_eos_ids(self) -> tuple[int, int, int]:
        """PAD, BOS and EOS."""
        return self.pad_id, self.bos_id, self.eos_id

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[bytes]]:
        return type(self), (self.proto,)

    def make_reader(self, words: Iterable[str] | None) -> Reader:
        """The reader of sources for a run that saw these words in training, frequent ones first; None: not known."""
        return Reader(_PLAIN_SOURCES_SYMBOL in self.pieces, self.signs, words)

    @property
    def signs(self) -> str | None:
        """The characters that have a piece and are not letters, digits or blanks; None where nothing is set aside."""
        if not {*PLACEHOLDERS} <= {*self.pieces}:
            return None
        is_ = self._processor
        ids = (i for i in range(self.vocab_size) if not (is_.is_byte(i) or is_.is_control(i) or is_.is_unknown(i)))
        return collect_symbols(self.pieces[i] for i in ids).replace(_SPACE, "")

    @classmethod
    def train(cls, sentences: Iterable[str], config: TokenizerConfig) -> "Tokenizer":
        """Train a tokenizer; the same sentences in the same order give the same bytes.

        Args:
            sentences: Text of both languages, as a `Reader` reads pairs; cleaned here, empty lines skipped.
            config: Size, algorithm and coverage. A size that the text cannot fill is lowered.

        Raises:
            UserError: There is no text, or the vocabulary cannot hold even its characters.
        """
        sentences = [line for line in map(clean, sentences) if line]
        if not sentences:
            raise UserError("there is no text to train the tokenizer on; check data.path")
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences), model_writer=model, **config.spm_options
            )
        except RuntimeError as error:
            smallest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
            if smallest is None:
                raise
            raise UserError(
                f"tokenizer.vocab_size is {config.vocab_size}, too small for the characters of this text; "
                f"make it at least {smallest[1]}, or lower tokenizer.character_coverage"
            ) from error
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Load a model file.

        Raises:
            UserError: The file cannot be read, or is not a usable tokenizer.
        """
        try:
            return cls(Path(path).read_bytes())
        except OSError as error:
            raise UserError(f"cannot read the tokenizer {path}: {error.strerror}; train one first") from error
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def encode(self, line: str) -> list[int]:
        """Return the piece ids of one line, without BOS and EOS.

        `decode` gives `clean(line)` back, whatever the line.
        """
        return self._processor.encode(clean(line))

    def encode_batch(self, lines: Iterable[str]) -> list[list[int]]:
        """Return what `encode` gives for each line; many lines are shared out among the processor's cores."""
        return self._processor.encode([clean(line) for line in lines])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the clean line that ids from 0 to `vocab_size` - 1 spell.

        Special ids are skipped; bytes that are not valid UTF-8 become U+FFFD.
        """
        silent = {*self.pad_bos_eos_ids, self.unk_id}
        return clean(self._processor.decode([i for i in ids if i not in silent]))
