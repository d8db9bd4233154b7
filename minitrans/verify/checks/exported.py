"""The exported model, run by CTranslate2, which shares no code with this package, gives what our own code gives."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn import functional as F

from minitrans.cachecheck.measurement import deviation, dtype_tolerance, new_check_group, worst
from minitrans.export.ctranslate2 import greedy_exported, load_engine, save_engine
from minitrans.model.decoding import length_limit, suppress_pad_bos, token_log_probs
from minitrans.verify.model_and_pairs import ModelAndPairs

claim, CHECKS = new_check_group("Another engine")


def export_and_load_engine(subject: ModelAndPairs) -> tuple[Any, list[str]]:
    """CTranslate2 with the model, in float32, and the text of every piece id."""
    pieces = [subject.piece(i) for i in range(subject.model.config.vocab_size)]
    with TemporaryDirectory() as folder:
        save_engine(Path(folder), subject.to(torch.float32).model, pieces, unk_id=subject.model.config.pad_id)
        return load_engine(Path(folder)), pieces


@claim(
    "export.score",
    "log-probability of every right token, by CTranslate2 in float32, against the full pass in float64",
    tolerance=dtype_tolerance(torch.float32),
    lower=(),
)
def ctranslate2_scores_agree(subject: ModelAndPairs) -> float:
    """The exported model, run by CTranslate2, gives each token of a translation the probability that ours gives."""
    # Sources and targets without a token are left out: CTranslate2 answers them without computing anything.
    model, config = subject.model, subject.model.config
    engine, pieces = export_and_load_engine(subject)
    pairs = [(src, tgt) for src, tgt in subject.pairs() if len(src) > 1 and len(tgt) > 1]
    results = engine.score_batch(
        [[pieces[i] for i in src[:-1]] for src, _ in pairs],
        [[pieces[i] for i in tgt[1:]] for _, tgt in pairs],
        max_input_length=0,
    )
    expected: list[float] = []
    for src, tgt in pairs:
        logits = suppress_pad_bos(model(torch.tensor([src]), torch.tensor([tgt])), config)
        expected += token_log_probs(logits, torch.tensor([[*tgt[1:], config.eos_id]]))[0].tolist()
    log_probs = [log_p for result in results for log_p in result.log_probs]
    return deviation(torch.tensor(log_probs), torch.tensor(expected, dtype=torch.float64))


@claim(
    "export.greedy",
    "how far the logits of its tokens are below our largest ones, relative to these; 0 if all tokens are the same",
    tolerance=dtype_tolerance(torch.float32),
    lower=(),
)
def ctranslate2_decodes_the_same(subject: ModelAndPairs) -> float:
    """Greedy decoding by CTranslate2 takes the same tokens and ends at the same place."""
    # A full pass reads CTranslate2's output. Where rounding decides between two tokens, both are right.
    model, config = subject.model, subject.model.config
    engine, pieces = export_and_load_engine(subject)
    deviations = []
    for batch in subject.decode_batches:
        sources = [[i for i in row if i != config.pad_id][:-1] for row in batch.tolist()]
        non_empty = [row for row, source in enumerate(sources) if source]  # an empty line is never decoded
        sources = [sources[row] for row in non_empty]
        outputs = greedy_exported(engine, pieces, config.max_len, sources)
        limits = [length_limit(len(source) + 1, config.max_len) for source in sources]
        for src_ids, ids, limit in zip(batch[non_empty], outputs, limits, strict=True):
            if len(ids) > limit:
                return math.inf
            tgt_out = torch.tensor([ids if len(ids) == limit else [*ids, config.eos_id]])
            tgt_in = F.pad(tgt_out[:, :-1], (1, 0), value=config.bos_id)
            logits = suppress_pad_bos(model(src_ids[None], tgt_in), config)
            taken, largest = logits.gather(-1, tgt_out[..., None])[..., 0], logits.amax(-1)
            deviations.append(float(((largest - taken) / largest.abs().clamp(min=1.0)).max()))
    return worst(deviations)
