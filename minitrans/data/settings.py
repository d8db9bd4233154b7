"""Settings of the data: which parallel text, and how much of it at once."""

import re
from dataclasses import dataclass

from minitrans.data.noise import NOISES
from minitrans.data.setting_types import Count, CountFromZero, Ratio, Share
from minitrans.errors import UserError, nearest_name_error


@dataclass(frozen=True)
class DataConfig:
    """Which parallel text to train on, and how much of it at once.

    Args:
        path: Folder with train.SOURCE and train.TARGET, or train.tsv, .csv, .jsonl or .parquet, all but the last also
            with .gz at the end, or several such as train-1.tsv; or such a folder's address, as s3://bucket/corpus; or a
            hub name.
        source: Language to translate from, as the files or columns are named, such as en.
        target: Language to translate into.
        batch_tokens: Most tokens of either side in a batch, padding counted, before noise.
        cache_dir: Folder for downloaded, read and tokenized data; null is where Hugging Face keeps data sets.
        name: Configuration of a hub data set that has several, such as en-zh.
        source_column: Column, or ending of the files, of the source, if not named after the language.
        target_column: Column, or ending of the files, of the target, if not named after the language.
        splits: Which split, or which part of one, is train, valid and each test set, such as
            {train: "train[:-1000]", valid: "train[-1000:]"}; null uses all splits under their own names.
        min_length: Fewest tokens of either side of a training pair, EOS counted.
        max_length: Most tokens of either side of a training pair, EOS counted; null: as many as the model takes.
        max_length_ratio: Most tokens of a training pair's longer side per token of the shorter; null: any number.
        deduplicate: Leave out training pairs that are copies (of a stream, in one buffer) or whose source is in another
            split; else only count them.
        streaming: Read the training pairs one after another while training, and keep none: for corpora too large for
            memory.
        shuffle_buffer: Pairs that are held in memory, sorted by length and shuffled together when streaming.
        reversed_epochs: For this many epochs at first, half of the pairs are reversed, to be translated from target to
            source, without noise: this way a model learns more from a small corpus (Ding et al. 2021).
        noise: Shares of the training pairs that get noise, as people type, drawn again in each epoch, such as
            {lower: 0.1, typo: 0.05}; the kinds are capitals, title, lower, no_end, more_ends, other_end,
            blank_before_end, no_apostrophes, no_blanks, typo, emoji, item, quotes; null: none.
    """

    path: str
    source: str
    target: str
    batch_tokens: Count = 4096
    cache_dir: str | None = None
    name: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    splits: dict[str, str] | None = None
    min_length: Count = 1
    max_length: Count | None = None
    max_length_ratio: Ratio | None = None
    deduplicate: bool = False
    streaming: bool = False
    shuffle_buffer: Count = 100_000
    reversed_epochs: CountFromZero = 0
    noise: dict[str, Share] | None = None

    def __post_init__(self) -> None:
        for flag, value in (("path", self.path), ("source", self.source), ("target", self.target)):
            if not value:
                raise UserError(f"data.{flag} is empty; give one")
            if flag != "path" and not value.isprintable():
                raise UserError(f"data.{flag} is {value!r}; a language's name has no such characters")
        if self.source == self.target:
            raise UserError(f"data.source and data.target are both {self.source}; they must differ")
        if self.columns[0] == self.columns[1]:
            raise UserError(f"the columns of source and target are both {self.columns[0]}; they must differ")
        for kind in self.noise or {}:
            if kind not in NOISES:
                raise nearest_name_error(f"data.noise has no {kind}", kind, NOISES)
        if (total := round(sum((self.noise or {}).values()), 9)) >= 1:  # with 1, noise would be added without end
            raise UserError(f"the shares in data.noise add up to {total:g}; they must add up to less than 1")
        for split, part in (self.splits or {}).items():
            if self.streaming and re.search(r"[\[+]", part):
                raise UserError(f"data.splits.{split} is {part}; with data.streaming it must be a whole split")

    @property
    def columns(self) -> tuple[str, str]:
        """Names of the two columns, or endings of the files."""
        return self.source_column or self.source, self.target_column or self.target

    @property
    def train_split(self) -> str:
        """Name that the corpus gives to the training split."""
        return (self.splits or {}).get("train", "train")
