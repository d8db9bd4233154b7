"""Lines of text in, lines of text out."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from minitrans.bundle import Bundle, load_bundle
from minitrans.decoding import greedy_decode

logger = logging.getLogger("minitrans")


class Translator:
    """A model and its tokenizer, ready to translate.

    Attributes:
        bundle: The model, in eval mode, on the device and in the dtype to translate with, and its tokenizer.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Take the bundle as it is."""
        self.bundle = bundle

    @classmethod
    def load(cls, run: str | Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> "Translator":
        """Load a trained run folder.

        Raises:
            UserError: The folder is not a trained run, is incomplete or damaged, or its files do not fit together.
        """
        bundle = load_bundle(Path(run))
        bundle.model.to(device, dtype)
        return cls(bundle)

    def translate(
        self, lines: Sequence[str], batch_tokens: int = 4096, use_cache: bool = True, first_line: int = 1
    ) -> list[str]:
        """Translate each line greedily.

        Args:
            lines: Source sentences. A blank one gives an empty translation; one longer than the model's `max_len` is
                cut, with a logged warning.
            batch_tokens: Source tokens in a batch, padding included; a longer line forms a batch of its own.
            use_cache: False computes every prefix anew: the same translations, slowly.
            first_line: Number of the first line in its file, for warnings.

        Returns:
            As many translations, in the same order; none holds a line break.
        """
        model, tokenizer = self.bundle.model, self.bundle.tokenizer
        sources = [self._source_ids(line, first_line + i) for i, line in enumerate(lines)]
        translations = [""] * len(lines)
        for rows in self._batches(sources, batch_tokens):
            width = len(sources[rows[-1]])
            padded = [sources[i] + [tokenizer.pad_id] * (width - len(sources[i])) for i in rows]
            src_ids = torch.tensor(padded, device=model.positions.device)
            for i, tgt_ids in zip(rows, greedy_decode(model, src_ids, use_cache), strict=True):
                translations[i] = tokenizer.decode(tgt_ids)
        return translations

    def _source_ids(self, line: str, number: int) -> list[int]:
        """Ids of a line with EOS at the end, none for a blank line, never more than the model can take."""
        ids = self.bundle.tokenizer.encode(line)
        longest = self.bundle.model.config.max_len - 1
        if len(ids) > longest:
            logger.warning("line %d is cut: it has %d tokens, the model takes %d", number, len(ids), longest)
        return [*ids[:longest], self.bundle.tokenizer.eos_id] if ids else []

    @staticmethod
    def _batches(sources: list[list[int]], batch_tokens: int) -> Iterator[list[int]]:
        """Indices of the sources that are not empty, short ones first, in batches of rows x longest <= batch_tokens."""
        rows: list[int] = []
        for i in sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: len(sources[i])):
            if rows and (len(rows) + 1) * len(sources[i]) > batch_tokens:
                yield rows
                rows = []
            rows.append(i)
        if rows:
            yield rows
