"""Lines of text in, lines of text out."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minitrans.model.decoding import CachedStepper, Hypothesis, Stepper, UncachedStepper, beam_search, greedy_decode
from minitrans.model.sampling import sample
from minitrans.model.transformer import Transformer
from minitrans.text.reading import KeptParts, Reader, clean, lower, split_lowercase_words
from minitrans.translate.backend import CompiledMode, make_stepper
from minitrans.translate.bundle import Bundle, load_bundle

# What may be another word without its apostrophe: shed, hens; but not hes.
_AMBIGUOUS = re.compile(r"he'll|(?:she|we)'(?:ll|d)|(?!(?:s?he|that|wh\w+|how|t?here|let)'s).*'s")
MIN_ROWS_PER_THREAD_BATCH = 8  # about as many per batch when batches are made smaller so that there are more of them
MAX_REMEMBERED_ENCODINGS = 256  # of sentences: a server asks for their lengths before it has them translated

logger = logging.getLogger("minitrans")
RowResult = TypeVar("RowResult")
# A sentence as the model is to see it: its pieces, then EOS, or nothing if the model does not translate it; and what
# its translation gets back, see `text.reading.Reader`.
TokenizedSource = tuple[list[int], KeptParts]


class AttentionWeights(NamedTuple):
    """Where each of a model's L layers, with H heads each, looked while it translated a line.

    Row t of `decoder` and `cross` is the step that read `target[t]` and wrote `target[t + 1]`. The weights are of the
    model's dtype and on the CPU; each row sums to 1.

    Attributes:
        source: The S pieces of the source, EOS last; in place of a placeholder, what it stands for.
        target: T + 1 pieces: BOS, the translation, and EOS unless the length limit came first.
        encoder: (L, H, S, S) from each piece of the source to all of them.
        decoder: (L, H, T, T) from each step to the pieces read by then, `target[: t + 1]`; 0 beyond.
        cross: (L, H, T, S) from each step to the source.
        source_ids, target_ids: The ids of these pieces.
    """

    source: list[str]
    target: list[str]
    encoder: Tensor
    decoder: Tensor
    cross: Tensor
    source_ids: list[int]
    target_ids: list[int]


class Translation(NamedTuple):
    """One of a line's translations.

    Attributes:
        text: The translation.
        score: What beam search ranks by, see `Hypothesis`; 0 for a blank line.
        attention: Where the model looked; None if it was not asked for, or the line has no or several sentences.
        unknown_words: The words of the line that were not seen in training and are not copied, see
            `Translator.unknown_words`.
        unsure: Whether many such translations are wrong: there are such words; or it changes a number
            (`has_changed_numbers`) or loses a value to copy; or the mean log-probability of a sentence's tokens, which
            is its score with length penalty 1, is below the run's threshold, if it has one.
    """

    text: str
    score: float
    attention: AttentionWeights | None = None
    unknown_words: tuple[str, ...] = ()
    unsure: bool = False


class Translator:
    """A model and its tokenizer, ready to translate: by the model as it is at each call, or by compiled code.

    Compiled code has a copy of the weights, made with the translator: it does not notice when the weights, the hooks or
    the code of the model change afterwards.

    Attributes:
        bundle: The model, in eval mode, on the device and in the dtype to translate with, and its tokenizer.
        compiled: Whether compiled code decodes.
        split_sentences: Whether lines are cut into sentences by `text.sentences` alone; False unless it is set.
    """

    def __init__(self, bundle: Bundle, compiled: CompiledMode = "off") -> None:
        """Take the bundle as it is, and choose what computes its steps, see `CompiledMode`.

        Raises:
            UserError: Compiled code is required, but may not compute this model.
        """
        self.bundle, self._stepper = bundle, make_stepper(bundle.model, compiled)
        self.compiled = not isinstance(self._stepper, CachedStepper)
        self._reader = bundle.tokenizer.make_reader(bundle.source_words)
        self._encode = lru_cache(MAX_REMEMBERED_ENCODINGS)(partial(_tokenize_sentence, self._reader, bundle))
        self.split_sentences = False

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle makes compiled code anew, because that holds pointers."""
        made_of = self.bundle, "auto" if self.compiled else "off"
        return type(self), made_of, {"split_sentences": self.split_sentences}

    @classmethod
    def load(
        cls, run: str | Path, device: str = "cpu", dtype: torch.dtype = torch.float32, compiled: CompiledMode = "off"
    ) -> "Translator":
        """Load a trained run folder.

        Raises:
            UserError: The folder is not a trained run, is incomplete or damaged, or its files do not fit together;
                or compiled code is required, but may not compute this model.
        """
        bundle = load_bundle(Path(run))
        bundle.model.to(device, dtype)
        return cls(bundle, compiled)

    def translate(
        self,
        lines: Sequence[str],
        beam: int = 1,
        *,
        length_penalty: float = 1.0,
        batch_tokens: int = 4096,
        use_cache: bool = True,
        first_line: int = 1,
    ) -> list[str]:
        """Translate each line, greedily or by beam search.

        Threads may share a translator: none of them changes it.

        Args:
            lines: Texts, whose sentences are translated one by one. A blank one gives an empty translation; one of
                signs alone stays as it is. A sentence longer than `max_len` is cut, with a logged warning.
            beam: Hypotheses that are kept for each line; 1 is greedy.
            length_penalty: Power of the length by which a log-probability is divided, for the rank and the score.
            batch_tokens: Source tokens in a batch, padding included, counted `beam` times; a longer line forms a batch
                of its own.
            use_cache: False computes every prefix again with the plain model: the same translations, slower.
            first_line: Number of the first line in its file, for warnings.

        Returns:
            As many translations, in the same order; none holds a line break.
        """
        sources = self._tokenize_lines(lines, first_line)
        hypotheses = self._search(sources, beam, length_penalty, batch_tokens, use_cache)
        return self._decode_lines(sources, [[best.ids for best, *_ in each] for each in hypotheses])

    def translations(
        self,
        lines: Sequence[str],
        beam: int = 1,
        *,
        attention: bool = False,
        length_penalty: float = 1.0,
        batch_tokens: int = 4096,
        use_cache: bool = True,
        first_line: int = 1,
        split: bool = True,
    ) -> list[Translation]:
        """The translations that `translate` gives, each with its score and the other fields of a `Translation`.

        With `attention`, each has the attention weights too, from one more pass over source and translation. Without
        `split`, each line is one sentence, such as `to_sentences` gives. The other arguments are those of `translate`.
        """
        sources = self._tokenize_lines(lines, first_line, split)
        hypotheses = self._search(sources, beam, length_penalty, batch_tokens, use_cache)
        best = [[ranked[0] for ranked in each] for each in hypotheses]
        texts = self._decode_lines(sources, [[hypothesis.ids for hypothesis in each] for each in best])
        rows = zip(texts, best, lines, sources, strict=True)
        return [self._rate_translation(*row, length_penalty, attention) for row in rows]

    def n_best(
        self,
        lines: Sequence[str],
        beam: int,
        *,
        length_penalty: float = 1.0,
        batch_tokens: int = 4096,
        use_cache: bool = True,
        first_line: int = 1,
    ) -> list[list[Translation]]:
        """What beam search finds for each line, at most `beam` translations: that of `translate`, the others by score.

        The arguments are those of `translate`. A blank line has one translation, the empty one, with a score of 0. Of
        translations with the same text, only the best is returned.
        """
        sources = self._tokenize_lines(lines, first_line)
        hypotheses = self._search(sources, beam, length_penalty, batch_tokens, use_cache)
        best: list[dict[str, Translation]] = [{} for _ in hypotheses]
        for ranks, each, line, source in zip(best, hypotheses, lines, sources, strict=True):
            for rank in range(max(map(len, each))):  # each sentence's hypothesis of this rank, or its last one
                chosen = [ranked[min(rank, len(ranked) - 1)] for ranked in each]
                (text,) = self._decode_lines([source], [[hypothesis.ids for hypothesis in chosen]])
                ranks.setdefault(text, self._rate_translation(text, chosen, line, source, length_penalty))
        found = [[*ranks.values()] for ranks in best]
        return [[*ranks[:1], *sorted(ranks[1:], key=lambda t: t.score, reverse=True)] for ranks in found]

    def sample(
        self,
        lines: Sequence[str],
        top: int,
        seed: int,
        *,
        batch_tokens: int = 4096,
        use_cache: bool = True,
        first_line: int = 1,
    ) -> list[str]:
        """A random translation of each line, of tokens drawn from the `top` likeliest; see `model.sampling.sample`.

        The other arguments are those of `translate`. Equal lines have equal translations; another seed gives others.
        """
        sources, draw = self._tokenize_lines(lines, first_line), partial(sample, top=top, seed=seed)
        return self._decode_lines(sources, self._decode_batches(sources, batch_tokens, use_cache, draw, []))

    def unknown_words(self, line: str, translation: str = "") -> tuple[str, ...]:
        """The words of a line that were not seen in training, each once: see `reading.split_lowercase_words`.

        Words that the translation has too are left out if they have a digit, are names, written with a capital, or are
        in addresses: they are to be copied, except for 's or the known unit of a number. Words that are read as
        known ones, such as `dont` and `u` but not `shed`, are left out too. There are none for a run that saw too many
        words in training to list them.
        """
        known = self.bundle.source_words
        if known is None:
            return ()
        line = self._reader.normalize_punctuation(clean(line))
        names = [] if line.isupper() else [w for w in line.split() if w != w.lower() or re.search(r"@|\w\.\w", w)]
        named = {word for name in names if self._reader.uses_placeholders for word in split_lowercase_words(name)}

        def is_unknown(word: str) -> bool:
            return word not in known and all(map(_AMBIGUOUS.fullmatch, self._reader.expansions(word)))

        unknown = dict.fromkeys(filter(is_unknown, split_lowercase_words(line)))
        copied = lower(translation)
        stems = (re.sub(r"(?<=\d)\D\D+$", lambda unit: unit[0] * is_unknown(unit[0]), w) for w in unknown)
        pairs = ((w, stem.removesuffix("'s")) for w, stem in zip(unknown, stems, strict=True))
        return tuple(w for w, stem in pairs if not (stem in copied and (re.search(r"\d", w) or w in named)))

    def to_sentences(self, text: str) -> list[str]:
        """The sentences of a text, each of which is translated by itself."""
        if not self.split_sentences:
            return self._reader.to_sentences(text)
        from minitrans.text.sentences import split_sentences  # imported here: most commands do not need it

        return split_sentences(text, self.bundle.source)

    def longest_sentence_length(self, line: str) -> int:
        """How many pieces the longest sentence of a line has; the model reads `max_len` - 1."""
        return max(n_pieces for n_pieces, _ in map(self._encode, self.to_sentences(line)))

    def _decode_lines(
        self, sources: Sequence[Sequence[TokenizedSource]], target_ids: Sequence[Sequence[list[int]]]
    ) -> list[str]:
        """The translations of lines, from the target ids of each of their sentences."""
        texts = map(self.bundle.tokenizer.decode, chain.from_iterable(target_ids))
        return [self._reader.postprocess_line(texts, line) for line in sources]

    def _rate_translation(
        self,
        text: str,
        hypotheses: Sequence[Hypothesis],
        line: str,
        sources: Sequence[TokenizedSource],
        length_penalty: float,
        attention: bool = False,
    ) -> Translation:
        """The hypotheses for the sentences of a line as one text, and whether it is unsure."""
        log_prob, n_tokens = (sum(getattr(each, name) for each in hypotheses) for name in ("log_prob", "n_tokens"))
        threshold, unknown = self.bundle.threshold, self.unknown_words(line, text)
        low = threshold is not None and any(
            each.n_tokens and each.log_prob / each.n_tokens < threshold.score for each in hypotheses
        )
        lost = any(value not in text for _, kept in sources for value in kept.placeholder_values.values())
        unsure = bool(unknown) or lost or has_changed_numbers(line, text) or low
        ids, kept = sources[0]
        traced = attention and ids and len(sources) == 1
        weights = self._attention_weights(ids, kept, hypotheses[0]) if traced else None
        return Translation(text, log_prob / max(1, n_tokens) ** length_penalty, weights, unknown, unsure)

    def _search(
        self, lines: list[list[TokenizedSource]], beam: int, length_penalty: float, batch_tokens: int, use_cache: bool
    ) -> list[list[list[Hypothesis]]]:
        """What beam search finds for each sentence of each line; with one beam the greedy translation."""

        def search(stepper: Stepper[Any], src_ids: Tensor) -> list[list[Hypothesis]]:
            if beam == 1:
                return [[hypothesis] for hypothesis in greedy_decode(stepper, src_ids)]
            return beam_search(stepper, src_ids, beam, length_penalty)

        blank = [Hypothesis([], 0.0, 0.0, 0)]
        return self._decode_batches(lines, batch_tokens // max(1, beam), use_cache, search, blank)

    def _decode_batches(
        self,
        lines: list[list[TokenizedSource]],
        batch_tokens: int,
        use_cache: bool,
        decode: Callable[[Stepper[Any], Tensor], list[RowResult]],
        of_blank: RowResult,
    ) -> list[list[RowResult]]:
        """What `decode` makes of each sentence of each line; threads share the batches if the stepper allows it."""
        sources = [ids for line in lines for ids, _ in line]
        stepper = self._stepper if use_cache else UncachedStepper(self.bundle.model)
        threads = stepper.max_concurrent_batches
        if threads > 1:  # a few batches for each, so that all end at about the same time
            tokens = sum(map(len, sources))
            least = MIN_ROWS_PER_THREAD_BATCH * tokens // max(1, len(sources))
            batch_tokens = min(batch_tokens, max(least, tokens // (4 * threads)))
        batches = self._batch_indices(sources, batch_tokens)[::-1]  # the longest first
        outputs = [of_blank] * len(sources)
        with ThreadPoolExecutor(threads) as pool:
            run = map if threads == 1 or len(batches) == 1 else pool.map
            decoded = run(lambda rows: decode(stepper, self._pad_rows([sources[i] for i in rows])), batches)
            for i, output in zip(chain.from_iterable(batches), chain.from_iterable(decoded), strict=True):
                outputs[i] = output
        in_order = iter(outputs)
        return [[next(in_order) for _ in line] for line in lines]

    @torch.no_grad()
    def _attention_weights(self, source: list[int], kept: KeptParts, best: Hypothesis) -> AttentionWeights:
        """The weights of one full pass over a source and its translation."""
        model, tokenizer = self.bundle.model, self.bundle.tokenizer
        target = [tokenizer.bos_id, *best.ids, tokenizer.eos_id][: 1 + best.n_tokens]
        *_, kinds = traced_full_pass(model, self._pad_rows([source]), self._pad_rows([target[:-1]]))
        among, within, across = (stack_layers(kind)[:, 0] for kind in kinds)
        shown = [kept.placeholder_values.get(piece, piece) for piece in tokenizer.pieces]
        read, written = ([shown[id_] for id_ in side] for side in (source, target))
        return AttentionWeights(read, written, among, within, across, [*source], target)

    def _pad_rows(self, rows: list[list[int]]) -> Tensor:
        """Ids as the model takes them: int64 (B, longest), padded on the right."""
        ids = pad_sequence([torch.tensor(row, device="cpu") for row in rows], True, self.bundle.tokenizer.pad_id)
        return ids.to(self.bundle.model.positions.device)

    def _tokenize_lines(self, lines: Sequence[str], first_line: int, split: bool = True) -> list[list[TokenizedSource]]:
        """The sentences of each line as the model is to see them."""
        if isinstance(lines, str) or not isinstance(lines, Sized):  # its letters; or what can be read only once
            raise TypeError(f"lines is a {type(lines).__name__}; give a list of texts: [text], or list(lines)")
        longest = self.bundle.model.config.max_len - 1
        sources: list[list[TokenizedSource]] = [[] for _ in lines]
        for number, line in enumerate(lines, first_line):
            for n_pieces, source in map(self._encode, self.to_sentences(line) if split else [line]):
                if n_pieces > longest:
                    logger.warning("line %d is cut: it has %d tokens, the model takes %d", number, n_pieces, longest)
                sources[number - first_line].append(source)
        return sources

    @staticmethod
    def _batch_indices(sources: list[list[int]], batch_tokens: int) -> list[list[int]]:
        """Indices of the sources that are not empty, short ones first, in batches of rows x longest <= batch_tokens."""
        batches: list[list[int]] = []
        for i in sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: len(sources[i])):
            if not batches or (len(batches[-1]) + 1) * len(sources[i]) > batch_tokens:
                batches.append([])
            batches[-1].append(i)
        return batches


def _tokenize_sentence(reader: Reader, bundle: Bundle, sentence: str) -> tuple[int, TokenizedSource]:
    """How many pieces a sentence has, and what the model is to see of it, never more than it can take."""
    text, kept = reader.preprocess(sentence)
    ids = bundle.tokenizer.encode(text)
    cut = [*ids[: bundle.model.config.max_len - 1], bundle.tokenizer.eos_id]
    return len(ids), (cut if ids else [], kept)


_ANY_MINUS = re.compile(r"(?i)[-−–－负負]|零下|氷点下|マイナス|영하|\b(?:minus|moins|menos?|минус)\b")
_MINUS_SIGN = re.compile(r"""(?<![^\s("'])[-−–－](?=[$€£¥]?\d)""")


def has_changed_numbers(line: str, translation: str) -> bool:
    """Whether a translation has digits, but lacks a number or the minus signs of its line.

    A translation that spells numbers out changes none, nor does one with other digits or other signs in them: 1374 for
    1,374.
    """
    separators = ",.", ",.٬'’\\s"
    given = {number for each in separators for number in _whole_numbers(translation, each)}
    lost_minus = _MINUS_SIGN.search(line) and not _ANY_MINUS.search(translation)
    return bool(given) and bool(lost_minus or not any(_whole_numbers(line, each) <= given for each in separators))


def _whole_numbers(text: str, separators: str) -> set[int]:
    """The whole numbers of a text, in any digits; separators stand between groups, as in 1,374 and 1,00,000."""
    text = re.sub(rf"(?<=\d)[{separators}](?=(?:\d\d[{separators}]){{,9}}\d{{3}}(?!\d))", "", text)
    return {int(digits) for digits in re.findall(r"\d{1,4000}", text)}


def traced_full_pass(
    model: Transformer, src_ids: Tensor, tgt_in: Tensor
) -> tuple[Tensor, Tensor, Tensor, list[list[Tensor]]]:
    """A full pass: memory, the source's mask, hidden states, and each layer's attention weights, (B, H, Tq, Tk).

    The weights are those of the encoder's self-attention, of the decoder's, and of cross-attention.
    """
    memory, src_mask, encoder = model.run_encoder(src_ids, need_weights=True)
    hidden, decoder = model.run_decoder(tgt_in, memory, src_mask, need_weights=True)
    kinds = [x.self_weights for x in encoder], [x.self_weights for x in decoder], [x.cross_weights for x in decoder]
    return memory, src_mask, hidden, [[weights for weights in kind if weights is not None] for kind in kinds]


def stack_layers(layers: Iterable[Tensor | None]) -> Tensor:
    """Each layer's weights, (B, H, Tq, Tk) -> (L, B, H, Tq, Tk) on the CPU."""
    return torch.stack([weights for weights in layers if weights is not None]).cpu()
