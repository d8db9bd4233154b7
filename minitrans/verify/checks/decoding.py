"""Decoding step by step from a cache gives what the full masked pass gives."""

import io
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional as F

from minitrans.cachecheck import cache_checks
from minitrans.cachecheck.measurement import MeasureFn, deviation, new_check_group, worst
from minitrans.cachecheck.protocol import N_BEAMS
from minitrans.data.batching import collate, id_rows, to_padded_tensor
from minitrans.model.decoding import (
    CachedStepper,
    UncachedStepper,
    beam_search,
    greedy_decode,
    greedy_token_ids,
    length_limit,
    token_log_probs,
)
from minitrans.model.loss import batch_loss
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.verify.model_and_pairs import MAX_TOKENS_A_SIDE, RUNNING_EXAMPLE_PAIRS, ModelAndPairs
from minitrans.verify.transformer_adapter import adapt_model_and_tokens

GROUP_TITLE = "Decoding step by step"
claim, CHECKS = new_check_group(GROUP_TITLE)

MODEL_OUTPUTS = "logits, outputs of all layers, all attention weights"


def register_cache_claim(id_: str, cachecheck_id: str, also_measured: str = "") -> Callable[[MeasureFn], MeasureFn]:
    """Like `claim`, for a check of anyone's model; on ours all numbers are compared, and `also_measured`."""
    (known,) = (each for each in cache_checks.CHECKS if each.id == cachecheck_id)

    def register(measure: MeasureFn) -> MeasureFn:
        what = known.what.replace("logits", MODEL_OUTPUTS) + also_measured
        CHECKS.append(replace(known, id=id_, group=GROUP_TITLE, what=what, measure=torch.no_grad()(measure)))
        return measure

    return register


@register_cache_claim("cache.steps", "steps", "; and the logits of `step`")
def steps_are_full_pass(subject: ModelAndPairs) -> float:
    """The batch as it is; `step` is the public way to the same numbers."""
    model, src_ids, tgt_in = subject.model, subject.src_ids, subject.tgt_in
    cache = model.init_cache(*model.encode(src_ids))
    stepped = torch.cat([model.step(token, cache) for token in tgt_in.split(1, 1)], 1)
    return worst([cache_checks.step_deviation(subject.case()), deviation(stepped, model(src_ids, tgt_in))])


@claim(
    "cache.shapes",
    f"{MODEL_OUTPUTS}, one token at a time, for S > T, S < T, T = max_len (at most 1024), and each sentence unpadded",
)
def steps_match_at_all_lengths(subject: ModelAndPairs) -> float:
    """Steps equal the full pass for longer and shorter sources than targets, at full length, for one row and many."""
    model, src_ids, tgt_in = subject.model, subject.src_ids, subject.tgt_in
    longest = model.config.max_len
    source = src_ids[:, : max(1, longest - 2)]
    long = tgt_in.repeat(1, longest)[:, : min(longest, source.size(1) + 2)]
    short = tgt_in[:, : max(1, source.size(1) - 2)]
    batches = [(source, long), (source, short)]
    batches += [(torch.tensor([src]), torch.tensor([tgt])) for src, tgt in subject.pairs()]
    deviations = [cache_checks.step_deviation(adapt_model_and_tokens(model, *batch)) for batch in batches]
    return worst([*deviations, cache_checks.long_sentence_deviation(subject.case())])


@register_cache_claim("cache.chunks", "chunks", f" of the first {MAX_TOKENS_A_SIDE}")
def chunks_are_full_pass(subject: ModelAndPairs) -> float:
    """The batch, of which long sentences are cut."""
    case = subject.case()
    return cache_checks.all_chunkings_deviation(case.with_tokens(case.tokens[:, :MAX_TOKENS_A_SIDE]))


@register_cache_claim("cache.rows", "rows")
def rows_can_be_selected(subject: ModelAndPairs) -> float:
    """Rotated, then with repeats, then with rows dropped, then one alone."""
    model, src_ids, tgt_in = subject.model, subject.src_ids, subject.tgt_in
    rows = torch.arange(max(3, len(src_ids))) % len(src_ids)
    src_ids, tgt_in = src_ids[rows], tgt_in[rows].repeat(1, 5)[:, : min(model.config.max_len, 10)]
    return cache_checks.row_selection_deviation(adapt_model_and_tokens(model, src_ids, tgt_in))


@claim(
    "cache.beams",
    f"log-probability per token of {N_BEAMS} beams for every source, against a full pass over each beam's tokens",
)
def swapped_beams_keep_scores(subject: ModelAndPairs) -> float:
    """The score that a beam collects in steps, swapping rows on the way, is the teacher-forced score of its output."""
    # Beams are kept in ascending and descending order of score alternately, so that they swap at every step.
    model, config = subject.model, subject.model.config
    n_swaps = 0
    deviations = []
    for src, tgt in subject.pairs():
        src_ids = torch.tensor([src])
        cache = model.init_cache(*model.encode(src_ids))
        cache.select_rows(torch.zeros(N_BEAMS, dtype=torch.int64))
        tokens = torch.full((N_BEAMS, 1), config.bos_id)
        scores = torch.tensor([0.0] + [-math.inf] * (N_BEAMS - 1), dtype=torch.float64)  # all beams start the same
        for t in range(min(len(tgt) + 2, config.max_len)):
            log_p = F.log_softmax(model.step(tokens[:, -1:], cache)[:, 0].double(), -1)  # (N_BEAMS, V)
            best = (scores[:, None] + log_p).flatten().topk(N_BEAMS, largest=True)
            order = torch.arange(N_BEAMS) if t % 2 else torch.arange(N_BEAMS).flip(0)
            scores, chosen = best.values[order], best.indices[order]
            parents, ids = chosen // config.vocab_size, chosen % config.vocab_size
            n_swaps += t > 0 and not torch.equal(parents, torch.arange(N_BEAMS))
            cache.select_rows(parents)
            tokens = torch.cat([tokens[parents], ids[:, None]], 1)
        forced = token_log_probs(model(src_ids.expand(N_BEAMS, -1), tokens[:, :-1]).double(), tokens[:, 1:]).sum(1)
        n = tokens.size(1) - 1
        deviations.append(deviation((scores / n).to(subject.dtype), forced / n))
    return worst(deviations) if n_swaps else math.inf


@register_cache_claim("cache.score", "score")
def stepped_log_probs_match_full(subject: ModelAndPairs) -> float:
    """Each row by itself; padding does not count."""
    padding = subject.tgt_out == subject.model.config.pad_id
    return cache_checks.score_deviation(subject.case(), subject.tgt_out.masked_fill(padding, -1))


register_cache_claim("cache.alternating", "caches.alternating")(
    lambda subject: cache_checks.full_pass_between_deviation(subject.case())
)
register_cache_claim("cache.two", "caches.two")(lambda subject: cache_checks.interleaved_deviation(subject.case()))


@claim("cache.saved", f"{MODEL_OUTPUTS}, single steps of the loaded model, against the full pass of the saved one")
def loaded_steps_are_full_pass(subject: ModelAndPairs) -> float:
    """A model that was saved and loaded gives in single steps what the original gives in a full pass."""
    model, file = subject.model, io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = type(model)(model.config).to(subject.dtype).eval()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    return cache_checks.step_deviation(replace(subject, model=loaded).case(), subject.case().full_pass())


@claim(
    "cache.training",
    f"{MODEL_OUTPUTS}, single steps in training mode, against the full pass in eval mode, and the other way round",
)
def train_eval_modes_match(subject: ModelAndPairs) -> float:
    """Training mode changes nothing but dropout: without it, steps in one mode equal the full pass in the other."""
    training = type(subject.model)(replace(subject.model.config, dropout=0.0, attention_dropout=0.0)).to(subject.dtype)
    training.load_state_dict(subject.model.state_dict())
    both = subject.case(), replace(subject, model=training).case()
    return worst([cache_checks.step_deviation(a, b.full_pass()) for a, b in (both, both[::-1])])


@claim(
    "C21",
    "sentences with a different token: decoded from the cache, without it, and read from one full pass over the output",
    tolerance=0.0,
    lower=(),
)
def greedy_follows_full_pass(subject: ModelAndPairs) -> float:
    """Greedy decoding feeds each token back and stops at EOS; the cache, no cache, and one full pass agree."""
    model, config = subject.model, subject.model.config
    n_different = 0
    for src_ids in subject.decode_batches:
        cached = [hypothesis.ids for hypothesis in greedy_decode(CachedStepper(model), src_ids)]
        uncached = [hypothesis.ids for hypothesis in greedy_decode(UncachedStepper(model), src_ids)]
        tgt_in = to_padded_tensor(id_rows(cached), config.pad_id, bos_id=config.bos_id)
        logits = model(src_ids, tgt_in[:, : config.max_len])
        chosen = torch.stack([greedy_token_ids(logits[:, t], config) for t in range(logits.size(1))], dim=1).tolist()
        for b, ids in enumerate(cached):
            limit = length_limit(int((src_ids[b] != config.pad_id).sum()), config.max_len)
            expected = ids if len(ids) == limit else [*ids, config.eos_id]
            n_different += ids != uncached[b] or chosen[b][: len(expected)] != expected or config.eos_id in ids
    return float(n_different) if subject.decode_batches else math.inf


@claim("beam.greedy", "sentences with a different token", tolerance=0.0, lower=())
def one_beam_is_greedy(subject: ModelAndPairs) -> float:
    """Beam search with one beam is greedy decoding, token for token."""
    stepper = CachedStepper(subject.model)
    n_different = 0
    for src_ids in subject.decode_batches:
        pairs = zip(beam_search(stepper, src_ids, beam=1), greedy_decode(stepper, src_ids), strict=True)
        n_different += sum([hypothesis.ids for hypothesis in row] != [greedy.ids] for row, greedy in pairs)
    return float(n_different) if subject.decode_batches else math.inf


@claim("beam.score", f"log-probability per token of {N_BEAMS} outputs for every source, against full passes over them")
def beam_scores_are_teacher_forced(subject: ModelAndPairs) -> float:
    """The score that beam search reports is the teacher-forced score of its output."""
    model, config = subject.model, subject.model.config
    deviations = []
    for src, _ in subject.pairs():
        src_ids, limit = torch.tensor([src]), length_limit(len(src), config.max_len)
        for ids, _, score, _ in beam_search(CachedStepper(model), src_ids, N_BEAMS, length_penalty=1.0)[0]:
            tgt_out = torch.tensor([ids if len(ids) == limit else [*ids, config.eos_id]])
            tgt_in = F.pad(tgt_out[:, :-1], (1, 0), value=config.bos_id)
            log_p = token_log_probs(model(src_ids, tgt_in).double(), tgt_out)
            deviations.append(deviation(torch.tensor([score], dtype=subject.dtype), log_p.mean()[None]))
    return worst(deviations)


@claim(
    "C26",
    "wrong translations of Machine learning is fun, I love you and deep learning, by a small model and by the run "
    "(only those that it has learnt)",
    tolerance=0.0,
    lower=(),
)
def running_example_is_translated(subject: ModelAndPairs) -> float:
    """The running example comes out right: a model that has learnt its three sentences translates them."""
    model, examples = overfit_running_example()
    given = subject.model
    known = [(given, *pair) for pair in subject.known_pairs if forced_loss(given, [pair]) < MAX_LEARNT_LOSS]
    n_wrong = 0
    for translator, source, target in [*((model, *pair) for pair in examples), *known]:
        src_ids = torch.tensor([[*source, translator.config.eos_id]])
        n_wrong += [hypothesis.ids for hypothesis in greedy_decode(CachedStepper(translator), src_ids)] != [target]
    return float(n_wrong)


# A model has learnt sentences when the losses of all their pieces add up to less: then each piece, after those before,
# has a probability above one half, and greedy decoding must find it.
MAX_LEARNT_LOSS = math.log(2)


def forced_loss(model: Transformer, pairs: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    """The losses of all target pieces together, in nats, with teacher forcing."""
    c = model.config
    batch = collate([src for src, _ in pairs], [tgt for _, tgt in pairs], c.pad_id, c.bos_id, c.eos_id)
    return batch_loss(model, batch.src_ids, batch.tgt_in, batch.tgt_out, smoothing=0.0)


@torch.enable_grad()
def overfit_running_example() -> tuple[Transformer, list[tuple[list[int], list[int]]]]:
    """A small model trained on the running example alone, by words and characters; and the example as ids."""
    texts = [(source.split(), list(target)) for source, target in RUNNING_EXAMPLE_PAIRS.items()]
    vocabulary = ["<pad>", "<s>", "</s>", *dict.fromkeys(word for pair in texts for side in pair for word in side)]
    examples = [([vocabulary.index(w) for w in src], [vocabulary.index(w) for w in tgt]) for src, tgt in texts]
    config = TransformerConfig(
        len(vocabulary), pad_id=0, bos_id=1, eos_id=2, d_model=16, n_heads=2, d_ff=32, n_layers=1, max_len=16, dropout=0
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = Transformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(400):  # some 30 suffice
        loss = forced_loss(model, examples)
        if loss < MAX_LEARNT_LOSS:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), examples
