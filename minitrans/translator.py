"""Lines of text in, lines of text out."""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minitrans.bundle import Bundle, load_bundle
from minitrans.decoding import Hypothesis, beam_search, greedy_decode
from minitrans.engine import compiled

logger = logging.getLogger("minitrans")
Output = TypeVar("Output")


class Translation(NamedTuple):
    """One of a line's translations.

    Attributes:
        text: The translation.
        score: What it was ranked by, see `Hypothesis`.
    """

    text: str
    score: float


class Translator:
    """A model and its tokenizer, ready to translate. What happens to the model's weights later, it need not see.

    Attributes:
        bundle: The model, in eval mode, on the device and in the dtype to translate with, and its tokenizer.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Take the bundle as it is; on a CPU, make an engine of the model."""
        self.bundle = bundle
        self._model = compiled(bundle.model)

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
        self,
        lines: Sequence[str],
        batch_tokens: int = 4096,
        use_cache: bool = True,
        first_line: int = 1,
        beam: int = 1,
        length_penalty: float = 1.0,
    ) -> list[str]:
        """Translate each line, greedily or by beam search.

        Args:
            lines: Source sentences. A blank one gives an empty translation; one longer than the model's `max_len` is
                cut, with a logged warning.
            batch_tokens: Source tokens in a batch, padding included and once for each beam; a longer line forms a batch
                of its own.
            use_cache: False computes every prefix anew: the same translations, slowly. Beam search always uses it.
            first_line: Number of the first line in its file, for warnings.
            beam: Beginnings that are followed for each line; 1 is greedy.
            length_penalty: Power of the length by which beam search divides a log-probability.

        Returns:
            As many translations, in the same order; none holds a line break.
        """
        if beam > 1:
            return [best.text for best, *_ in self.n_best(lines, beam, length_penalty, batch_tokens, first_line)]
        model, tokenizer = self._model if use_cache else self.bundle.model, self.bundle.tokenizer
        nothing: list[int] = []
        outputs = self._decode(
            lines, batch_tokens, first_line, lambda src_ids: greedy_decode(model, src_ids, use_cache), nothing
        )
        return [tokenizer.decode(ids) for ids in outputs]

    def n_best(
        self,
        lines: Sequence[str],
        beam: int,
        length_penalty: float = 1.0,
        batch_tokens: int = 4096,
        first_line: int = 1,
    ) -> list[list[Translation]]:
        """All that beam search finds for each line, the best first: up to `beam` translations.

        The arguments are those of `translate`. A blank line has one translation, the empty one, with a score of 0.
        """
        model, tokenizer = self._model, self.bundle.tokenizer
        outputs = self._decode(
            lines,
            max(1, batch_tokens // beam),
            first_line,
            lambda src_ids: beam_search(model, src_ids, beam, length_penalty),
            [Hypothesis([], 0.0, 0.0)],
        )
        return [[Translation(tokenizer.decode(h.ids), h.score) for h in hypotheses] for hypotheses in outputs]

    def _decode(
        self,
        lines: Sequence[str],
        batch_tokens: int,
        first_line: int,
        decode: Callable[[Tensor], list[Output]],
        of_blank: Output,
    ) -> list[Output]:
        """What `decode` makes of each line, in their order."""
        sources = [self._source_ids(line, first_line + i) for i, line in enumerate(lines)]
        outputs = [of_blank] * len(lines)
        for rows in self._batches(sources, batch_tokens):
            ids = [torch.tensor(sources[i]) for i in rows]
            src_ids = pad_sequence(ids, batch_first=True, padding_value=self.bundle.tokenizer.pad_id)
            for i, output in zip(rows, decode(src_ids.to(self.bundle.model.positions.device)), strict=True):
                outputs[i] = output
        return outputs

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
