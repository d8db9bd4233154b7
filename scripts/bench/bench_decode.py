#!/usr/bin/env python3
"""Benchmark of decoding on the CPU: ours beside Hugging Face's and CTranslate2's, with the same weights.

A model learns for a while from made-up sentences, as many and as long as the captions of Multi30K in pieces; that is
enough for its outputs to end. `--run` and `--source` name a trained run and a text instead. All contenders have its
weights and decode the same ids:

- minitrans: `greedy_decode` and `beam_search` on the compiled stepper, batches by tokens; "plain" is `Transformer.step`
  in PyTorch, "no cache" the full masked pass over the whole prefix at every step.
- Hugging Face: `generate` of the M2M100 classes, with our weights copied in; batches of 64 sentences of like length.
- CTranslate2: what `minitrans export` writes; one worker a thread, and batches of the size at which it is fastest.

bfloat16 is left out on a processor that does not multiply it.

What is measured:

- Batched: all sentences at once, greedy and with 5 beams. One at a time: a part of them, each alone; also percentiles
  of its time. A round is every contender once, in random order; results are medians over 3 to 5 rounds, as many as
  `--minutes` allow. Where "no cache" takes over 8 seconds, it is timed only once, when the others warm up.
- Lengths: sources of exactly so many tokens, and as many target tokens, from a random model that never ends.
- Peak memory: resident memory at its highest in a fresh process that decodes all sentences once, imports included.
- Different: outputs of greedy decoding that are not ours, token for token. In float32 there should be none but by
  rounding; above 1% of the sentences, or of the rows of all lengths, rounded up, the exit code is 1.

Ratios compare speeds, ours over the other's, both in float32: 3 says that ours is three times as fast.
"""

import contextlib
import importlib.metadata
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import cycle, islice, takewhile
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import bench_train
import numpy as np
import torch
from bench_train import BenchTrainer, NumberTokenizer, describe_machine, format_cell, make_table, own_peak_memory
from time_budget import TimeBudget, run_in_fresh_process
from torch.nn.utils.rnn import pad_sequence

from minitrans.cli.arguments import Parser
from minitrans.errors import UserError
from minitrans.model.decoding import length_limit
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.text.lines import read_lines
from minitrans.text.reading import KeptParts
from minitrans.training.module import TranslationModule
from minitrans.translate.bundle import Bundle, load_bundle
from minitrans.translate.translator import Translator

MIN_MAX_TRAINING_STEPS = 100, 300  # at least and at most
TRAINING_BATCH_TOKENS = 1024  # in a batch
MIN_MAX_TURNS = 4, 6  # at least and at most; the first warms up, the others are the rounds
RETIME_UNCACHED_BELOW_S = 8.0  # seconds; where "no cache" takes longer, it is timed once
N_BEAMS = 5
HF_BATCH_SIZE = 64  # sentences in a batch of Hugging Face
BATCH_TOKENS = 4096  # of ours, as `translate` has them
CT2_BATCH_TOKENS = 1024  # in a batch of CTranslate2: its fastest of 512, 1,024, 2,048, 4,096 and 8,192
SENTENCE_LENGTHS = (8, 16, 32, 64, 128, 256)
ROWS_PER_LENGTH = 16  # sentences of each length
MAX_DIFFERENT_SHARE = 0.01  # of the outputs in float32: rounding decides where two tokens are equally likely

IdLists = list[list[int]]
Decoder = Callable[..., IdLists]  # takes sources that end with EOS, and how many beams: 1 unless given
TimingByName = dict[str, "Timing"]


@dataclass(frozen=True)
class Settings:
    """What to measure; the names are those of the options, the texts those of --help."""

    run: Annotated[str | None, "trained run folder; without one, a model is trained on made-up sentences"] = None
    source: Annotated[str | None, "text to translate, with --run"] = None
    sentences: Annotated[int, "how many sentences to decode"] = 1000
    single: Annotated[int, "how many of them to decode one at a time, too"] = 100
    minutes: Annotated[float, "how long it may take; there are as many rounds as that allows"] = 5.0
    threads: Annotated[int, "CPU threads"] = torch.get_num_threads()


def minitrans_decoder(model: Transformer, mode: str) -> Decoder:
    """Our translator from ids to ids: compiled, "plain" or with "no cache"."""
    tokenizer = NumberTokenizer(str(model.config.vocab_size).encode())
    translator = Translator(Bundle(model, tokenizer, "a", "b"), "require" if mode == "compiled" else "off")

    def decode(sources: IdLists, beam: int = 1) -> IdLists:
        read = [[(ids, KeptParts({}))] for ids in sources]
        hypotheses = translator._search(read, beam, 1.0, BATCH_TOKENS, mode != "no cache")
        return [best.ids for ((best, *_),) in hypotheses]

    return decode


def hugging_face_decoder(model: Transformer) -> Decoder:
    """`generate` of M2M100 with our weights."""
    c = model.config
    m2m100 = convert_to_m2m100(model)

    @torch.inference_mode()
    def decode(sources: IdLists, beam: int = 1) -> IdLists:
        outputs: IdLists = [[]] * len(sources)
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        for first in range(0, len(order), HF_BATCH_SIZE):
            rows = order[first : first + HF_BATCH_SIZE]
            src_ids = pad_sequence([torch.tensor(sources[i]) for i in rows], True, c.pad_id)  # (B, S)
            generated = m2m100.generate(
                input_ids=src_ids,
                attention_mask=(src_ids != c.pad_id).long(),
                num_beams=beam,
                do_sample=False,
                max_new_tokens=length_limit(src_ids.size(1), c.max_len),
            )
            for i, ids in zip(rows, generated[:, 1:].tolist(), strict=True):
                outputs[i] = truncate_output(ids, len(sources[i]), c)
        return outputs

    return decode


def ctranslate2_decoder(model: Transformer, folder: Path, compute_type: str) -> Decoder:
    """The exported model."""
    from minitrans.export.ctranslate2 import load_engine, save_engine

    c = model.config
    pieces = [str(i) for i in range(c.vocab_size)]
    if not folder.exists():
        folder.mkdir()
        save_engine(folder, model, pieces, c.eos_id)
    engine = load_engine(folder, compute_type, threads=torch.get_num_threads())

    def decode(sources: IdLists, beam: int = 1) -> IdLists:
        lengths = [len(source) for source in sources]
        tokens_per_thread = -(-sum(lengths) // torch.get_num_threads())
        results = engine.translate_batch(
            [[pieces[i] for i in source[:-1]] for source in sources],  # it appends EOS itself
            beam_size=beam,
            min_decoding_length=0,
            max_decoding_length=length_limit(max(lengths), c.max_len),
            max_input_length=0,
            max_batch_size=min(tokens_per_thread, max(CT2_BATCH_TOKENS, 8 * max(lengths))),
            batch_type="tokens",
        )
        hypotheses = ([int(piece) for piece in result.hypotheses[0]] for result in results)
        return [truncate_output(ids, len(source), c) for ids, source in zip(hypotheses, sources, strict=True)]

    return decode


def truncate_output(ids: list[int], src_len: int, config: TransformerConfig) -> list[int]:
    """Cut an output off at its end, or at the limit that ours has."""
    before_end = takewhile(lambda id_: id_ not in (config.eos_id, config.pad_id), ids)
    return list(islice(before_end, length_limit(src_len, config.max_len)))


def convert_to_m2m100(model: Transformer) -> Any:
    """M2M100 that computes what our model does; its weights have the names that they have in Blenderbot."""
    from minitrans.export.transformers import blenderbot_state_dict

    c = model.config
    m2m100: Any = bench_train.m2m100_model_and_loss(c, "sdpa")[0]
    state = blenderbot_state_dict(model)
    del state["final_logits_bias"]  # M2M100 has none
    for side in ("encoder", "decoder"):
        positions = state.pop(f"model.{side}.embed_positions.weight")
        getattr(m2m100.model, side).embed_positions.weights[c.pad_id + 1 :][: c.max_len] = positions
    m2m100.load_state_dict(state)
    for settings in (m2m100.config, m2m100.generation_config):
        settings.use_cache = True
    return m2m100.eval()


OURS, HF, CT2 = "minitrans, float32", "Hugging Face, float32", "CTranslate2, float32"
OURS_BF16, OURS_NO_CACHE, CT2_INT8 = "minitrans, bfloat16", "minitrans, no cache", "CTranslate2, int8"
# By name, the function that makes each decoder from a model, with files in a folder.
DECODER_BUILDERS: dict[str, Callable[[Transformer, Path], Decoder]] = {
    OURS: lambda model, _: minitrans_decoder(model, "compiled"),
    OURS_BF16: lambda model, _: minitrans_decoder(deepcopy(model).to(torch.bfloat16), "compiled"),
    "minitrans, plain": lambda model, _: minitrans_decoder(model, "plain"),
    OURS_NO_CACHE: lambda model, _: minitrans_decoder(model, "no cache"),
    HF: lambda model, _: hugging_face_decoder(model),
    CT2: lambda model, folder: ctranslate2_decoder(model, folder / "ctranslate2", "float32"),
    CT2_INT8: lambda model, folder: ctranslate2_decoder(model, folder / "ctranslate2", "int8"),
}
PEER_KEYS = (("hf", HF), ("ct2", CT2))
BEAM_CONTENDERS = (OURS, HF, CT2)
LESS_EXACT = (OURS_BF16, CT2_INT8)
LENGTH_CONTENDERS = (OURS, "minitrans, plain", OURS_NO_CACHE, HF, CT2)


def make_model_and_sources(folder: Path, budget: TimeBudget) -> tuple[Transformer, IdLists]:
    """A model that was trained briefly, and its training sources, with EOS."""
    workload = bench_train.make_workload(bench_train.Settings(batch_tokens=TRAINING_BATCH_TOKENS), folder)
    bench = BenchTrainer(bench_train.Contender(bench_train.OURS, bench_train.usable_precisions()[-1]), workload.config)
    steps = budget.repeat("training", 0.2, *MIN_MAX_TRAINING_STEPS)
    for _, batch in zip(steps, cycle(workload.data.train_dataloader()), strict=False):
        bench.step(batch)
    model = cast(TranslationModule, bench.module).model
    lines = read_lines(str(folder / "train.a"))
    return model.eval(), [[*ids, workload.config.eos_id] for ids in workload.data.tokenizer.encode_batch(lines)]


class Timing(NamedTuple):
    """How fast a contender is, and its outputs."""

    median_batch_seconds: list[float]  # of each batch, over the rounds
    outputs: IdLists

    def n_different_outputs(self, other: "Timing") -> int:
        """How many outputs are not the same."""
        return sum(a != b for a, b in zip(self.outputs, other.outputs, strict=True))


def time_decoders(
    decoders: dict[str, Decoder], batches: Sequence[IdLists], turns: Iterable[int], beam: int = 1
) -> Iterator[TimingByName]:
    """Have all decode the same batches, in random order; after every round, yield the timings so far, by name."""
    shuffled = random.Random(bench_train.SEED)
    rounds = iter(turns)
    next(rounds)  # prepares memory and the matrix products of these shapes as well
    first = {name: [time_batch(decode, batch, beam) for batch in batches] for name, decode in decoders.items()}
    outputs = {name: [ids for _, rows in passes for ids in rows] for name, passes in first.items()}
    seconds = {name: [[spent for spent, _ in passes]] for name, passes in first.items()}
    quick = [name for name in decoders if name != OURS_NO_CACHE or sum(seconds[name][0]) < RETIME_UNCACHED_BELOW_S]
    for name in quick:
        seconds[name].clear()
    for _ in rounds:
        for name in shuffled.sample(quick, len(quick)):
            seconds[name].append([time_batch(decoders[name], batch, beam)[0] for batch in batches])
        yield {
            name: Timing([statistics.median(column) for column in zip(*seconds[name], strict=True)], outputs[name])
            for name in decoders
        }


def time_batch(decode: Decoder, batch: IdLists, beam: int) -> tuple[float, IdLists]:
    """Decode a batch; return the seconds that this takes, and the outputs."""
    began = time.perf_counter()
    outputs = decode(batch, beam)
    return time.perf_counter() - began, outputs


def peak_memory(name: str, model: Transformer, sources: IdLists, folder: Path) -> float:
    """Peak resident memory of a process that decodes all sources, in MB."""
    torch.save(model.state_dict(), folder / "weights.pt")
    return run_in_fresh_process(_peak_memory, name, model.config, sources, folder, torch.get_num_threads())


def _peak_memory(name: str, config: TransformerConfig, sources: IdLists, folder: Path, threads: int) -> float:
    torch.set_num_threads(threads)
    model = Transformer(config).eval()
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    DECODER_BUILDERS[name](model, folder)(sources)
    return own_peak_memory()


def compare_contenders(settings: Settings, folder: Path, result: dict[str, Any], budget: TimeBudget) -> None:
    """Measure everything; `result` gets what `--json` prints, as soon as it is measured."""
    result["left_out"] = bench_train.left_out_bf16_contenders([OURS_BF16])
    if settings.run is None:
        model, sources = make_model_and_sources(folder, budget)
    else:
        bundle = load_bundle(Path(settings.run))
        model = bundle.model
        encoded = bundle.tokenizer.encode_batch(read_lines(settings.source or ""))
        sources = [[*ids[: model.config.max_len - 1], model.config.eos_id] for ids in encoded if ids]
        if not sources:
            raise UserError(f"{settings.source} has no sentences; give a file of sentences with --source")
    sources = sources[: settings.sentences]
    missing = {one["name"] for one in result["left_out"]}
    decoders = {name: make(model, folder) for name, make in DECODER_BUILDERS.items() if name not in missing}
    result["sentences"], result["parameters"] = len(sources), sum(p.numel() for p in model.parameters())
    result["rounds"], result["lengths"] = {}, []

    def add_ratios(kind: str, timings: TimingByName) -> None:
        result["rounds"][kind] = result["rounds"].get(kind, 0) + 1
        seconds = {name: sum(timing.median_batch_seconds) for name, timing in timings.items()}
        result.update({f"ratio_to_{key}_{kind}": seconds[peer] / seconds[OURS] for key, peer in PEER_KEYS})

    for batched in time_decoders(decoders, [sources], budget.repeat("batched", 0.15, *MIN_MAX_TURNS)):
        add_ratios("batched", batched)
        result["contenders"] = [
            {
                "name": name,
                "sentences_per_second": len(sources) / sum(seconds),
                "tokens_per_second": sum(map(len, outputs)) / sum(seconds),
                "beam_sentences_per_second": None,
                "single_sentences_per_second": None,
                "latency_ms": dict.fromkeys(("p50", "p95", "p99")),
                "different": batched[name].n_different_outputs(batched[OURS]),
                "peak_mb": None,
            }
            for name, (seconds, outputs) in batched.items()
        ]
    rows = {row["name"]: row for row in result["contenders"]}
    lengths = map(len, sources), map(len, batched[OURS].outputs)
    result["mean_length"] = dict(zip(("source", "target"), map(statistics.fmean, lengths), strict=True))
    by_beams = {name: decoders[name] for name in BEAM_CONTENDERS}
    for beams in time_decoders(by_beams, [sources], budget.repeat(f"{N_BEAMS} beams", 0.15, *MIN_MAX_TURNS), N_BEAMS):
        add_ratios("beams", beams)
        for name in BEAM_CONTENDERS:
            rows[name]["beam_sentences_per_second"] = len(sources) / sum(beams[name].median_batch_seconds)
    one_by_one = [[source] for source in sources[: settings.single]]
    for single in time_decoders(decoders, one_by_one, budget.repeat("one at a time", 0.2, *MIN_MAX_TURNS)):
        add_ratios("single", single)
        for name, (seconds, _) in single.items():
            rows[name]["single_sentences_per_second"] = len(seconds) / sum(seconds)
            rows[name]["latency_ms"] = {f"p{p}": 1000 * float(np.percentile(seconds, p)) for p in (50, 95, 99)}
    for name in rows:
        budget.announce(f"memory of {name}")
        rows[name]["peak_mb"] = peak_memory(name, model, sources, folder)
    for length in SENTENCE_LENGTHS:
        result["lengths"].append(compare_at_length(length, model.config, folder, budget))


def compare_at_length(length: int, config: TransformerConfig, folder: Path, budget: TimeBudget) -> dict[str, Any]:
    """Speeds for sources and targets of one length, and how many outputs are not ours."""
    torch.manual_seed(length)
    model = Transformer(TransformerConfig(**asdict(config) | {"max_len": length})).eval()
    with torch.no_grad():
        model.output.weight[[config.pad_id, config.bos_id, config.eos_id]] = 0.0  # some other logit is above 0
    ids = torch.randint(4, config.vocab_size, (ROWS_PER_LENGTH, length))
    ids[:, -1] = config.eos_id
    here = folder / f"length-{length}"
    here.mkdir()
    decoders = {name: DECODER_BUILDERS[name](model, here) for name in LENGTH_CONTENDERS}
    turns = budget.repeat(f"length {length}", 0.1, *MIN_MAX_TURNS)
    rounds, timings = list(enumerate(time_decoders(decoders, [ids.tolist()], turns), 1))[-1]
    return {
        "length": length,
        "rounds": rounds,
        "tokens_per_second": {
            name: ROWS_PER_LENGTH * length / timings[name].median_batch_seconds[0] for name in LENGTH_CONTENDERS
        },
        "different": {name: timings[name].n_different_outputs(timings[OURS]) for name in LENGTH_CONTENDERS},
    }


def differing_contenders(result: dict[str, Any]) -> list[str]:
    """The contenders in float32 whose outputs, of sentences or at lengths, differ from ours by more than rounding."""
    exact = [row for row in result["contenders"] if row["name"] not in LESS_EXACT]
    different = [(row["name"], row["different"], result["sentences"]) for row in exact]
    for name in LENGTH_CONTENDERS:
        counts = [row["different"].get(name, 0) for row in result["lengths"]]
        different.append((name, sum(counts), ROWS_PER_LENGTH * len(counts)))
    return [*dict.fromkeys(name for name, n, of in different if n > math.ceil(MAX_DIFFERENT_SHARE * of))]


def print_comparison(result: dict[str, Any]) -> None:
    """Print what `compare_contenders` measured, as far as it got."""
    m, mean = result["machine"], result.get("mean_length")
    print(
        f"{m['processor']} ({' '.join(m['flags'])}), {m['threads']} threads, torch {m['torch']}, transformers "
        f"{m['transformers']}, ctranslate2 {m['ctranslate2']}"
    )
    print(
        f"{result['parameters']:,} parameters, {result['sentences']:,} sentences"
        + (f" of {mean['source']:.1f} tokens, outputs of {mean['target']:.1f}\n" if mean else "\n")
    )
    bench_train.print_left_out(result)
    rows = [
        [
            row["name"],
            f"{row['sentences_per_second']:,.0f}",
            f"{row['tokens_per_second']:,.0f}",
            format_cell(row["beam_sentences_per_second"]),
            format_cell(row["single_sentences_per_second"]),
            *(format_cell(ms, ".1f") for ms in row["latency_ms"].values()),
            format_cell(row["peak_mb"]),
            str(row["different"]),
        ]
        for row in result["contenders"]
    ]
    header = ["decoder", "sentences/s", "tokens/s", f"beam {N_BEAMS}", "one at a time", "ms: median", "95%", "99%"]
    print(make_table([*header, "peak MB", "different"], rows))
    print("rounds:", ", ".join(f"{n} {kind}" for kind, n in result["rounds"].items()), end="\n\n")
    if result["lengths"]:
        rows = [
            [
                str(row["length"]),
                *(f"{row['tokens_per_second'][name]:,.0f}" for name in LENGTH_CONTENDERS),
                str(row["rounds"]),
            ]
            for row in result["lengths"]
        ]
        print(make_table(["tokens/s at length", *LENGTH_CONTENDERS, "rounds"], rows), end="\n\n")
    for key, peer in PEER_KEYS:
        ratios = (f"{kind} {result[f'ratio_to_{key}_{kind}']:.2f}" for kind in result["rounds"])
        print(f"speed over {peer.split(',')[0]}'s in float32: {', '.join(ratios)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = Parser("bench_decode.py", (__doc__ or "").split("\n", 1)[0])
    try:
        args, settings = bench_train.parse_and_prepare(parser, argv, Settings, ["transformers", "ctranslate2"])
        if (settings.run is None) != (settings.source is None):
            raise UserError("--run and --source go together: a model and a text for it")
        machine = describe_machine() | {"ctranslate2": importlib.metadata.version("ctranslate2")}
        result: dict[str, Any] = {"machine": machine, "settings": asdict(settings), "interrupted": True}
        with contextlib.suppress(KeyboardInterrupt):
            with TimeBudget("bench_decode", settings.minutes) as budget, tempfile.TemporaryDirectory() as folder:
                compare_contenders(settings, Path(folder), result, budget)
            result["interrupted"] = False
    except UserError as error:
        print(f"bench_decode.py: error: {error}", file=sys.stderr)
        return 2
    code = bench_train.print_and_get_exit_code(result, args.json, print_comparison)
    different = [] if result["interrupted"] else differing_contenders(result)
    for name in different:
        print(f"bench_decode: {name} does not decode what {OURS} does: do not compare the speeds", file=sys.stderr)
    return code or bool(different)


if __name__ == "__main__":
    sys.exit(main())
