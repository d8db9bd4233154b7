#!/usr/bin/env python3
"""Benchmark of training on the CPU: our step beside those of others, at the same sizes, on the same batches.

Peers get what a careful user would give them. All contenders have tied embeddings without output bias, fused AdamW
with one constant learning rate, gradients clipped at norm 1, label smoothing 0.1, and `torch.autocast` where the
arithmetic is bf16, which is left out on a processor that does not multiply bfloat16:

- minitrans: `TranslationModule.training_step` in a bare loop.
- nn.Transformer: as in translation tutorials, with its own defaults (post-norm), embeddings scaled by sqrt(d_model),
  sinusoidal positions, a causal mask and padding masks. It has one dropout probability for everything, so it drops
  attention weights with `--dropout`, not with `--attention-dropout`.
- M2M100: the Hugging Face classes with a configuration of these sizes, without layer drop, and without the cache that
  training has no use for. Attention is tried as "sdpa" and as "eager", and the faster one is kept. It does not drop
  elements of the hidden layers of its feed-forward networks, as ours and nn.Transformer do.

What is measured:

- Time: every contender makes a step on a batch, in random order, then all go to the next batch. A round is 3 to 10
  batches, the same in every round; the result is the median over 3 to 5 rounds, as many as `--minutes` allow. glibc
  keeps freed memory, as it does under `minitrans train`: all contenders share the process and so gain from it.
- Peak memory: resident memory at its highest in a fresh process that makes three steps, all imports included. Here
  only ours has glibc keep freed memory.
- Lightning: the Trainer of `minitrans train`, with its loggers, averaged weights, progress, checkpoints and loader,
  makes every step in turn with a bare loop on the same batch. All time spent outside the bare loop counts as the
  Trainer's; that includes fetching the batches, which the bare loop is given. Validation is left out. Checkpoints are
  included, one in each of 3 rounds of 5 to 200 steps; by default `minitrans train` makes one for every 500.
- Losses: the same weights, batches and random seed, trained by our step and by the plain formulas (all logits,
  `F.cross_entropy`, AdamW as a loop over the parameters), for 10 to 50 steps.

Ratios compare times, the other's over ours in its faster arithmetic: 3 says that ours is three times as fast. Without
`--data` the sentences are made up: as many and as long as the captions of Multi30K in pieces, of ids that follow Zipf's
law.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import math
import platform
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from instruction_sets import INSTRUCTION_SETS, restart_with_instruction_set, usable_matmul_flags
from lightning.pytorch import Callback, LightningModule, Trainer
from time_budget import TimeBudget, run_in_fresh_process
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.cli.arguments import Parser, bounded_number, positive_int
from minitrans.cli.process_setup import keep_freed_memory
from minitrans.data.batching import Batch
from minitrans.data.corpus import load_corpus
from minitrans.data.datamodule import TranslationDataModule
from minitrans.data.settings import DataConfig
from minitrans.errors import UserError
from minitrans.model.layers import sinusoidal_positions
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig
from minitrans.training import run
from minitrans.training.config import TrainingConfig, parse_config
from minitrans.training.module import TranslationModule
from minitrans.translate.backend import make_batch_loss

SEED = 1
LEARNING_RATE = 5e-4
LABEL_SMOOTHING = 0.1
CLIP_NORM = 1.0
UNTIMED_STEPS = 3  # steps that are not measured
MEMORY_STEPS = 3
MIN_MAX_STEPS = 3, 10  # of each contender in a round, at least and at most
MIN_MAX_ROUNDS = 3, 5  # whose median is taken
MIN_MAX_LIGHTNING_STEPS = 5, 200
SHOWN_LOSS_STEPS = (1, 10, 25, 50)  # optimizer steps whose losses are shown

OURS, NN_TRANSFORMER, PLAIN_FORMULAS = "minitrans", "nn.Transformer", "plain formulas"
M2M100_NAMES = ("M2M100 sdpa", "M2M100 eager")
PRECISIONS = ("fp32", "bf16")

BF16_CPU_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What to measure; the names are those of the options, the texts those of --help."""

    data: Annotated[str | None, "folder of a parallel corpus; without one, sentences are made up"] = None
    source: Annotated[str | None, "language translated from, with --data"] = None
    target: Annotated[str | None, "language translated to, with --data"] = None
    pairs: Annotated[int, "sentence pairs to make up"] = 29_000
    mean_length: Annotated[float, "mean length of the targets made up, in pieces"] = 15.5
    batch_tokens: Annotated[int, "rows x longest sentence of a batch, at most"] = 4096
    vocab_size: Annotated[int, "pieces for both languages together"] = 8000
    n_layers: Annotated[int, "layers in the encoder, and again in the decoder"] = 4
    d_model: Annotated[int, "size of the vectors between layers"] = 128
    d_ff: Annotated[int, "hidden size of the feed-forward networks"] = 256
    n_heads: Annotated[int, "attention heads"] = 4
    dropout: Annotated[float, "of embeddings, sub-layer outputs and hidden layers"] = 0.3
    attention_dropout: Annotated[float, "of attention weights"] = 0.1
    minutes: Annotated[
        float, "how long it may take, with --sweep each size; there are as many rounds and steps as that allows"
    ] = 5.0
    threads: Annotated[int, "CPU threads"] = torch.get_num_threads()


# One setting at a time, the others as given; d_ff is kept at twice d_model.
SWEEP_VALUES: dict[str, Sequence[int]] = {
    "batch_tokens": (1024, 2048, 4096, 8192),
    "vocab_size": (8000, 16_000, 32_000, 64_000),
    "d_model": (64, 128, 256, 512),
    "mean_length": (8, 16, 32, 64, 128),
}


class NumberTokenizer(Tokenizer):
    """Reads made-up sentences, whose words are the ids themselves; `proto` is the number of ids, in ASCII digits."""

    def __init__(self, proto: bytes) -> None:
        self.proto = proto
        self.digest = f"numbers below {int(proto)}"
        self.vocab_size = int(proto)
        self.pieces = [str(id_) for id_ in range(self.vocab_size)]
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = range(4)
        self.reader = self.make_reader(None)

    def encode_batch(self, lines: Iterable[str]) -> list[list[int]]:
        """Return the ids of each line."""
        return [[int(word) for word in line.split()] for line in lines]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the line that the ids make."""
        return " ".join(map(str, ids))


def made_up_pair_lengths(n_pairs: int, mean: float, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], ...]:
    """Lengths in pieces of source and target sentences, log-normal and correlated as those of Multi30K's captions.

    `mean` is that of the targets; sources are a little shorter.
    """
    spreads, correlation = np.array([0.32, 0.36]), 0.84  # English and German in 8,000 pieces; of the logarithms
    deviations = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], n_pairs) * spreads
    means = np.log([0.96 * mean, mean]) - spreads**2 / 2
    source, target = np.maximum(1, np.exp(means + deviations).round().astype(np.int64)).T
    return source, target


def write_made_up_corpus(folder: Path, settings: Settings) -> None:
    """Write `train` and a tiny `valid` of sentences for `NumberTokenizer`, the same for the same settings."""
    rng = np.random.default_rng(SEED)
    n_special = 4
    frequencies = 1 / np.arange(1, settings.vocab_size - n_special + 1)  # Zipf's law
    for language, lengths in zip("ab", made_up_pair_lengths(settings.pairs, settings.mean_length, rng), strict=True):
        ids = n_special + rng.choice(len(frequencies), lengths.sum(), p=frequencies / frequencies.sum())
        lines = [" ".join(map(str, row)) for row in np.split(ids, np.cumsum(lengths)[:-1])]
        for split, part in (("train", lines), ("valid", lines[:1])):
            (folder / f"{split}.{language}").write_text("\n".join(part) + "\n", encoding="utf-8")


class Workload(NamedTuple):
    """What all contenders train on: the sizes of the model, and batches that are used again and again."""

    config: TransformerConfig
    data: TranslationDataModule
    batches: list[Batch]


def make_workload(settings: Settings, folder: Path) -> Workload:
    """Make up or load the corpus, and cut batches from it, which need the folder's files as long as they are in use."""
    if settings.data is None:
        write_made_up_corpus(folder, settings)
        data_config = DataConfig(str(folder), "a", "b", settings.batch_tokens, cache_dir=str(folder / "cache"))
        tokenizer: Tokenizer = NumberTokenizer(str(settings.vocab_size).encode())
    else:
        languages = settings.source or "", settings.target or ""
        data_config = DataConfig(settings.data, *languages, settings.batch_tokens, cache_dir=str(folder / "cache"))
        text = load_corpus(data_config)["train"]
        tokenizer = Tokenizer.train([*text["source"], *text["target"]], TokenizerConfig(settings.vocab_size))
    try:
        config = TransformerConfig(
            vocab_size=tokenizer.vocab_size,
            pad_id=tokenizer.pad_id,
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
            d_model=settings.d_model,
            n_heads=settings.n_heads,
            d_ff=settings.d_ff,
            n_layers=settings.n_layers,
            max_len=max(256, round(5 * settings.mean_length)),  # no sentence made up is so long
            dropout=settings.dropout,
            attention_dropout=settings.attention_dropout,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    data = TranslationDataModule(data_config, tokenizer, config.max_len, SEED)
    return Workload(config, data, list(islice(cycle(data.train_dataloader()), MIN_MAX_STEPS[1])))


LossFunction = Callable[[Batch], Tensor]


def our_model_and_loss(config: TransformerConfig) -> tuple[nn.Module, LossFunction]:
    """Our module, and its training step as far as the loss, in the arithmetic of the autocast around it."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    training, model = TrainingConfig(LEARNING_RATE, label_smoothing=LABEL_SMOOTHING), Transformer(config)
    module = TranslationModule(model, training, make_batch_loss(model, "require", torch.device("cpu"), dtype))
    return module, lambda batch: module.training_step(batch, 0)


def pair_with_cross_entropy(model: nn.Module, config: TransformerConfig) -> tuple[nn.Module, LossFunction]:
    """A model that gives logits, with the textbook loss."""
    return model, lambda batch: cross_entropy(model(batch.src_ids, batch.tgt_in), batch, config.pad_id)


def cross_entropy(logits: Tensor, batch: Batch, pad_id: int) -> Tensor:
    """Label-smoothed cross entropy from all logits (B, T, V), the mean over the real target tokens."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(), batch.tgt_out.flatten(), ignore_index=pad_id, label_smoothing=LABEL_SMOOTHING
    )


class TorchTransformer(nn.Module):
    """`nn.Transformer` between an embedding and an output projection."""

    positions: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        """Make the parts."""
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.register_buffer("positions", sinusoidal_positions(c.max_len, c.d_model).float(), persistent=False)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = nn.Transformer(
            c.d_model, c.n_heads, c.n_layers, c.n_layers, c.d_ff, dropout=c.dropout, batch_first=True
        )
        self.output = nn.Linear(c.d_model, c.vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        nn.init.xavier_uniform_(self.embedding.weight)

    def forward(self, src_ids: Tensor, tgt_in: Tensor) -> Tensor:
        """(B, S) and (B, T) -> logits (B, T, V)."""
        src_padding, tgt_padding = (ids == self.config.pad_id for ids in (src_ids, tgt_in))
        future = torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool).triu(1)
        hidden = self.layers(
            self._embed(src_ids),
            self._embed(tgt_in),
            tgt_mask=future,
            src_key_padding_mask=src_padding,
            tgt_key_padding_mask=tgt_padding,
            memory_key_padding_mask=src_padding,
        )
        return self.output(hidden)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * math.sqrt(self.config.d_model)
        return self.dropout(x + self.positions[: ids.size(1)])


def m2m100_model_and_loss(config: TransformerConfig, attention: str) -> tuple[nn.Module, LossFunction]:
    """M2M100 at the same sizes, and its loss; `attention` is sdpa or eager."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    c = config
    model = M2M100ForConditionalGeneration(
        M2M100Config(
            vocab_size=c.vocab_size,
            max_position_embeddings=c.max_len,
            d_model=c.d_model,
            encoder_layers=c.n_layers,
            decoder_layers=c.n_layers,
            encoder_ffn_dim=c.d_ff,
            decoder_ffn_dim=c.d_ff,
            encoder_attention_heads=c.n_heads,
            decoder_attention_heads=c.n_heads,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            dropout=c.dropout,
            attention_dropout=c.attention_dropout,
            activation_dropout=0.0,
            use_cache=False,
            pad_token_id=c.pad_id,
            bos_token_id=c.bos_id,
            eos_token_id=c.eos_id,
            decoder_start_token_id=c.bos_id,
            attn_implementation=attention,
        )
    )

    def loss(batch: Batch) -> Tensor:
        src_mask = (batch.src_ids != c.pad_id).long()
        output = model(input_ids=batch.src_ids, attention_mask=src_mask, decoder_input_ids=batch.tgt_in)
        return cross_entropy(output.logits, batch, c.pad_id)

    return model, loss


MODEL_BUILDERS: dict[str, Callable[[TransformerConfig], tuple[nn.Module, LossFunction]]] = {
    OURS: our_model_and_loss,
    PLAIN_FORMULAS: lambda config: pair_with_cross_entropy(Transformer(config), config),
    NN_TRANSFORMER: lambda config: pair_with_cross_entropy(TorchTransformer(config), config),
    M2M100_NAMES[0]: lambda config: m2m100_model_and_loss(config, "sdpa"),
    M2M100_NAMES[1]: lambda config: m2m100_model_and_loss(config, "eager"),
}


class Contender(NamedTuple):
    """A model and its arithmetic."""

    name: str
    precision: str

    def __str__(self) -> str:
        return f"{self.name} {self.precision}"


class BenchTrainer:
    """A contender with weights and an optimizer, ready to make steps."""

    def __init__(self, contender: Contender, config: TransformerConfig) -> None:
        """Make the model, from the same seed for all contenders."""
        self.contender = contender
        torch.manual_seed(SEED)
        with self._autocast():
            self.module, self._loss_function = MODEL_BUILDERS[contender.name](config)
        self.module.train()
        kind = {"foreach": False, "fused": False} if contender.name == PLAIN_FORMULAS else {"fused": True}
        self._optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0, **kind
        )
        self.n_parameters = sum(parameter.numel() for parameter in self.module.parameters())

    def step(self, batch: Batch) -> float:
        """Train on a batch, and return the loss before the step."""
        self._optimizer.zero_grad()
        with self._autocast():
            loss = self._loss_function(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), CLIP_NORM)
        self._optimizer.step()
        return loss.item()

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.contender.precision == "bf16")


def time_steps(
    benches: Sequence[BenchTrainer], batches: Sequence[Batch], rounds: Iterable[int]
) -> Iterator[dict[Contender, float]]:
    """Have all contenders make a step on a batch, in random order, then on the next.

    Yields:
        After every round, the seconds a step of each: the mean over a round's batches, the median over the rounds.
    """
    shuffled = random.Random(SEED)
    seconds: dict[Contender, list[float]] = {bench.contender: [] for bench in benches}
    for _ in rounds:
        spent = dict.fromkeys(seconds, 0.0)
        for batch in batches:
            for bench in shuffled.sample(benches, len(benches)):
                began = time.perf_counter()
                bench.step(batch)
                spent[bench.contender] += time.perf_counter() - began
        for contender, total in spent.items():
            seconds[contender].append(total / len(batches))
        yield {contender: statistics.median(times) for contender, times in seconds.items()}


def pick_fastest(contenders: Sequence[Contender], workload: Workload, budget: TimeBudget) -> BenchTrainer:
    """Warm the contenders up, and return the one that is the fastest in a short trial."""
    benches = [BenchTrainer(contender, workload.config) for contender in contenders]
    times: dict[Contender, float] = {}
    for turn in budget.repeat(f"choosing between {' and '.join(map(str, contenders))}", 0.1, 2, 10):
        (seconds,) = time_steps(benches, workload.batches[:1], [turn])
        if turn > 1:  # the first prepares memory and the matrix products of these shapes
            times = {who: min(spent, times.get(who, spent)) for who, spent in seconds.items()}
    return min(benches, key=lambda bench: times[bench.contender])


def peak_memory(contender: Contender, workload: Workload) -> float:
    """Peak resident memory of a process that makes a few steps, in MB."""
    arrays = [[ids.numpy() for ids in batch] for batch in workload.batches[:MEMORY_STEPS]]
    return run_in_fresh_process(_peak_memory, contender, workload.config, arrays, torch.get_num_threads())


def _peak_memory(
    contender: Contender, config: TransformerConfig, arrays: list[list[npt.NDArray[np.int64]]], threads: int
) -> float:
    torch.set_num_threads(threads)
    run._quieten_logs()
    if contender.name == OURS:
        keep_freed_memory()
    bench = BenchTrainer(contender, config)
    for batch in arrays:
        bench.step(Batch(*map(torch.from_numpy, batch)))
    return own_peak_memory()


def own_peak_memory() -> float:
    """Peak resident memory of this process so far, in MB."""
    status = Path("/proc/self/status")
    if status.is_file():  # what the system call reports begins with the peak of the parent
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


class AllStepsMeasuredError(Exception):
    """All steps asked for have been measured."""


class BareLoopTimer(Callback):
    """Repeats each step of the Trainer in a bare loop, and keeps the times of the two apart.

    The bare loop goes first on one batch and second on the next: whichever goes second is faster, because it finds the
    memory and the matrix products of this shape prepared.
    """

    def __init__(self, bench: BenchTrainer, steps: int) -> None:
        """Take the contender that makes the bare steps, and how many to make."""
        self.bench, self.steps = bench, steps
        self.bare: list[float] = []  # seconds of each bare step
        self.trainer: list[float] = []  # and of each step of the Trainer: all time but that of the bare steps
        self._left = 0.0
        self._waiting: list[Batch] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Stop the Trainer's clock, and let the bare loop catch up."""
        if self._left:
            self.trainer.append(time.perf_counter() - self._left)
        done = len(self.trainer)
        if done < self.steps:
            self._waiting.append(batch)
        if done % 2 == 0 or done == self.steps:
            for waiting in self._waiting:
                began = time.perf_counter()
                self.bench.step(waiting)
                self.bare.append(time.perf_counter() - began)
            self._waiting.clear()
        if done == self.steps:
            raise AllStepsMeasuredError
        self._left = time.perf_counter()


def lightning_efficiency(precision: str, workload: Workload, steps: int, folder: Path) -> dict[str, Any]:
    """Compare the Trainer of `minitrans train` with a bare loop; each round is `steps` steps and a checkpoint.

    Returns:
        Milliseconds a step of both, and the speed of the Trainer over that of the bare loop; medians over the rounds.
    """
    rounds = MIN_MAX_ROUNDS[0]
    n_steps = UNTIMED_STEPS + rounds * steps
    settings = {
        "run-dir": folder / "run",
        "data.path": folder,
        "data.source": "a",
        "data.target": "b",
        "training.checkpoint_every": steps,
        "trainer.max_steps": n_steps + 1,
        "trainer.val_check_interval": n_steps + 1,
        "trainer.check_val_every_n_epoch": "null",
        "trainer.gradient_clip_val": CLIP_NORM,
        "training.precision": precision,
        "trainer.accelerator": "cpu",
    }
    config = parse_config([word for name, value in settings.items() for word in (f"--{name}", str(value))])
    config.run_dir.mkdir()
    trainer = run._make_trainer(config, None)
    bare_loop, trained = (BenchTrainer(Contender(OURS, precision), workload.config) for _ in range(2))
    in_turn = BareLoopTimer(bare_loop, n_steps)
    trainer.callbacks.insert(0, in_turn)  # type: ignore[attr-defined]
    with contextlib.suppress(AllStepsMeasuredError):
        run._fit(trainer, cast(TranslationModule, trained.module), workload.data, config, None)

    bare, whole = (np.reshape(t[UNTIMED_STEPS:], (rounds, steps)).mean(1) for t in (in_turn.bare, in_turn.trainer))
    return {
        "precision": precision,
        "rounds": rounds,
        "steps": steps,
        "bare_ms": 1000 * float(np.median(bare)),
        "trainer_ms": 1000 * float(np.median(whole)),
        "efficiency": float(np.median(bare / whole)),
    }


def compare_losses_with_plain(workload: Workload, steps: Iterable[int]) -> Iterator[dict[str, float]]:
    """Train the plain formulas and ours side by side.

    Yields:
        For some steps the loss of each, before the step is taken.
    """
    benches = {
        "plain": BenchTrainer(Contender(PLAIN_FORMULAS, "fp32"), workload.config),
        **{precision: BenchTrainer(Contender(OURS, precision), workload.config) for precision in usable_precisions()},
    }
    for step, batch in zip(steps, cycle(workload.batches), strict=False):
        row: dict[str, float] = {"step": step}
        for name, bench in benches.items():
            torch.manual_seed(SEED + step)  # the same dropout for all
            row[name] = bench.step(batch)
        if step in SHOWN_LOSS_STEPS:
            yield row


def usable_precisions() -> list[str]:
    """The arithmetic that this processor has; without instructions for it, bfloat16 takes many times as long."""
    return [p for p in PRECISIONS if p != "bf16" or any(f in BF16_CPU_FLAGS for f in describe_machine()["flags"])]


def left_out_bf16_contenders(bf16_names: Iterable[str]) -> list[dict[str, str]]:
    """Those of the contenders in bfloat16 that cannot be measured, and why."""
    why = f"the processor does not multiply bfloat16: no {', '.join(BF16_CPU_FLAGS)}"
    return [{"name": name, "why": why} for name in bf16_names if "bf16" not in usable_precisions()]


def describe_machine() -> dict[str, Any]:
    """The processor, the flags that matter, threads and versions."""
    info: dict[str, str] = {}
    if (cpuinfo := Path("/proc/cpuinfo")).is_file():
        lines = [line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines()]
        info = {name.strip(): value.strip() for name, _, value in lines}
    known = (info.get("flags") or info.get("Features") or "").split()
    return {
        "processor": info.get("model name") or platform.processor() or platform.machine(),
        "flags": usable_matmul_flags(known) or [torch.backends.cpu.get_cpu_capability()],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
    }


def warm_up(benches: Sequence[BenchTrainer], workload: Workload, budget: TimeBudget) -> list[Batch]:
    """Have all make steps, as oneDNN compiles every new shape; return the batches for which there was time."""
    for steps in budget.repeat(f"warming {len(benches)} contenders up", 0.2, *MIN_MAX_STEPS):
        for bench in benches:
            bench.step(workload.batches[steps - 1])
    return workload.batches[:steps]


def mean_target_tokens(batches: Sequence[Batch], config: TransformerConfig) -> float:
    """Mean number of real target tokens in a batch."""
    return statistics.fmean(int((batch.tgt_out != config.pad_id).sum()) for batch in batches)


def compare_contenders(settings: Settings, folder: Path, result: dict[str, Any], budget: TimeBudget) -> None:
    """Measure everything at one size; `result` gets what `--json` prints, as soon as it is measured."""
    result["left_out"] = left_out_bf16_contenders(f"{name} bf16" for name in (OURS, NN_TRANSFORMER, "M2M100"))
    result["contenders"] = []
    workload = make_workload(settings, folder)
    m2m100 = [pick_fastest([Contender(n, p) for n in M2M100_NAMES], workload, budget) for p in usable_precisions()]
    benches = [
        *(BenchTrainer(Contender(n, p), workload.config) for n in (OURS, NN_TRANSFORMER) for p in usable_precisions()),
        *m2m100,
    ]
    batches = warm_up(benches, workload, budget)
    tokens = mean_target_tokens(batches, workload.config)
    for rounds, seconds in enumerate(
        time_steps(benches, batches, budget.repeat("timing steps", 0.4, *MIN_MAX_ROUNDS)), 1
    ):
        best = min(usable_precisions(), key=lambda precision: seconds[Contender(OURS, precision)])
        own = seconds[Contender(OURS, best)]
        result["rounds"], result["steps"] = rounds, len(batches)
        result["contenders"] = [
            {
                "name": bench.contender.name,
                "precision": bench.contender.precision,
                "parameters": bench.n_parameters,
                "ms": 1000 * seconds[bench.contender],
                "tokens_per_second": tokens / seconds[bench.contender],
                "ratio": seconds[bench.contender] / own,
                "peak_mb": None,
            }
            for bench in benches
        ]
        result["ratio_to_best_peer"] = min(s for contender, s in seconds.items() if contender.name != OURS) / own
        result["ratio_to_nn_transformer_fp32"] = seconds[Contender(NN_TRANSFORMER, "fp32")] / own
    for bench, row in zip(benches, result["contenders"], strict=True):
        budget.announce(f"measuring the memory of {bench.contender}")
        row["peak_mb"] = peak_memory(bench.contender, workload)
    budget.announce("timing Lightning")
    in_time = 0.5 * budget.seconds_left() / (2 * own) - UNTIMED_STEPS
    n_steps = min(max(int(in_time / MIN_MAX_ROUNDS[0]), MIN_MAX_LIGHTNING_STEPS[0]), MIN_MAX_LIGHTNING_STEPS[1])
    result["lightning"] = lightning_efficiency(best, workload, n_steps, folder)
    result["losses"] = []
    turns = budget.repeat("training by the plain formulas", 1.0, SHOWN_LOSS_STEPS[1], SHOWN_LOSS_STEPS[-1])
    for losses in compare_losses_with_plain(workload, turns):
        result["losses"].append(losses)


def sweep_sizes(settings: Settings, result: dict[str, Any]) -> None:
    """Measure ours and M2M100, each in its faster arithmetic, with one setting at a time as `SWEEP_VALUES` has it."""
    result["left_out"] = left_out_bf16_contenders(f"{name} bf16" for name in (OURS, "M2M100"))
    result["sweep"] = []
    for name, values in SWEEP_VALUES.items():
        for value in values:
            varied = replace(settings, **{name: value})  # type: ignore[arg-type]
            if name == "d_model":
                varied = replace(varied, d_ff=2 * value)
            budget = TimeBudget(f"bench_train: {name} {value}", settings.minutes)
            with budget, tempfile.TemporaryDirectory() as folder:
                result["sweep"].append(
                    {"setting": name, "value": value} | compare_with_m2m100(varied, Path(folder), budget)
                )


def compare_with_m2m100(settings: Settings, folder: Path, budget: TimeBudget) -> dict[str, Any]:
    """Measure ours and M2M100, each in its faster arithmetic, at one size."""
    workload = make_workload(settings, folder)
    own = pick_fastest([Contender(OURS, p) for p in usable_precisions()], workload, budget)
    peer = pick_fastest([Contender(name, p) for name in M2M100_NAMES for p in usable_precisions()], workload, budget)
    batches = warm_up([own, peer], workload, budget)
    *_, seconds = time_steps([own, peer], batches, budget.repeat("timing steps", 0.8, *MIN_MAX_ROUNDS))
    tokens = mean_target_tokens(batches, workload.config)
    row: dict[str, Any] = {"ratio": seconds[peer.contender] / seconds[own.contender]}
    for name, bench in (("ours", own), ("m2m100", peer)):
        spent = seconds[bench.contender]
        row[name] = {
            "contender": str(bench.contender),
            "ms": 1000 * spent,
            "tokens_per_second": tokens / spent,
            "peak_mb": peak_memory(bench.contender, workload),
        }
    return row


def format_cell(value: float | None, form: str = ",.0f") -> str:
    """A cell of a table, empty where nothing was measured."""
    return "" if value is None else format(value, form)


def make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table that reads well as plain text: names in the first column, numbers in the others."""
    lines = [header, *rows]
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    padded = [
        [line[0].ljust(first), *(cell.rjust(width) for cell, width in zip(line[1:], widths, strict=True))]
        for line in lines
    ]
    rule = ["-" * first, *("-" * (width - 1) + ":" for width in widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))


def machine_and_sizes_text(result: dict[str, Any]) -> str:
    """The machine and the sizes, in two lines."""
    m, s = result["machine"], result["settings"]
    return (
        f"{m['processor']} ({' '.join(m['flags'])}), {m['threads']} threads, torch {m['torch']}, "
        f"transformers {m['transformers']}\n"
        f"{s['n_layers']}+{s['n_layers']} layers, d_model {s['d_model']}, d_ff {s['d_ff']}, {s['n_heads']} heads, "
        f"vocabulary {s['vocab_size']:,}, {s['batch_tokens']:,} tokens a batch, "
        f"{s['data'] or f'''made-up sentences of {s['mean_length']:g} pieces'''}\n"
    )


def print_comparison(result: dict[str, Any]) -> None:
    """Print what `compare_contenders` measured, as far as it got."""
    print(machine_and_sizes_text(result))
    print_left_out(result)
    rows = [
        [
            f"{row['name']} {row['precision']}",
            f"{row['parameters']:,}",
            f"{row['ms']:.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            format_cell(row["peak_mb"]),
        ]
        for row in result["contenders"]
    ]
    print(make_table(["step of", "parameters", "ms", "target tokens/s", "this / best of ours", "peak MB"], rows))
    print(f"{result['rounds']} rounds of {result['steps']} steps each", end="\n\n")
    if result.get("losses"):
        names = [name for name in PRECISIONS if name in result["losses"][0]]
        losses = [[str(row["step"]), *(f"{row[name]:.6f}" for name in ("plain", *names))] for row in result["losses"]]
        print(make_table(["loss at step", PLAIN_FORMULAS, *(f"{OURS} {name}" for name in names)], losses), end="\n\n")
    print(f"time of a step, the best peer over ours: {result['ratio_to_best_peer']:.2f}")
    print(f"time of a step, nn.Transformer in fp32 over ours: {result['ratio_to_nn_transformer_fp32']:.2f}")
    if lightning := result.get("lightning"):
        print(
            f"speed of minitrans train over the bare loop: {lightning['efficiency']:.1%} "
            f"({lightning['trainer_ms']:.1f} ms and {lightning['bare_ms']:.1f} ms a step, {lightning['precision']}, "
            f"{lightning['rounds']} rounds of {lightning['steps']} steps)"
        )


def print_left_out(result: dict[str, Any]) -> None:
    """Name in one line the contenders that this processor cannot run fast, if any."""
    if result["left_out"]:
        print(f"left out: {', '.join(one['name'] for one in result['left_out'])} ({result['left_out'][0]['why']})\n")


def print_sweep(result: dict[str, Any]) -> None:
    """Print what `sweep_sizes` measured, as far as it got."""
    print(machine_and_sizes_text(result))
    print_left_out(result)
    rows = []
    for row in result["sweep"]:
        cells = [f"{row['setting'].replace('_', ' ')} {row['value']:,}"]
        for one in (row["ours"], row["m2m100"]):
            precision = one["contender"].split(maxsplit=1)[1]
            cells += [f"{one['ms']:.1f}", f"{one['tokens_per_second']:,.0f}", f"{one['peak_mb']:,.0f}", precision]
        rows.append([*cells, f"{row['ratio']:.2f}"])
    each = ["ms", "tokens/s", "peak MB", "as"]
    print(make_table(["", *(f"{who} {what}" for who in ("ours:", "M2M100:") for what in each), "M2M100 / ours"], rows))


def parse_and_prepare(
    parser: Parser, argv: Sequence[str] | None, settings: type[T], peers: Iterable[str]
) -> tuple[argparse.Namespace, T]:
    """Parse a flag for each field of a dataclass of settings, and a few others; apply them to this process.

    Raises:
        UserError: A flag is wrong, or one of the `peers`, libraries, is not installed.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--isa", choices=INSTRUCTION_SETS, help="the highest instruction set that contenders may use")
    hints = get_type_hints(settings, include_extras=True)
    for name, default in vars(settings()).items():
        kind = {int: positive_int, float: bounded_number(float, 0)}.get(type(default), str)
        help_text = hints[name].__metadata__[0]
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=help_text)
    args = parser.parse(sys.argv[1:] if argv is None else argv)
    if args.isa:
        restart_with_instruction_set(args.isa)
    for library in peers:
        if importlib.util.find_spec(library) is None:
            raise UserError(f"{library} is not installed; pip install -e '.[bench]'")
    torch.set_num_threads(args.threads)
    run._quieten_logs()
    return args, settings(**{name: getattr(args, name) for name in hints})


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 0, or 2 after bad input or without transformers, or 130 after Ctrl-C."""
    parser = Parser("bench_train.py", (__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--sweep", action="store_true", help="vary batch tokens, vocabulary, d_model and length")
    try:
        args, settings = parse_and_prepare(parser, argv, Settings, ["transformers"])
        if args.sweep and settings.data:
            raise UserError("--sweep varies the length of made-up sentences; give it without --data")
        if settings.mean_length < 1:
            raise UserError(f"--mean-length must be at least 1, got {settings.mean_length:g}")
        keep_freed_memory()
        result: dict[str, Any] = {"machine": describe_machine(), "settings": asdict(settings), "interrupted": True}
        with contextlib.suppress(KeyboardInterrupt):
            if args.sweep:
                sweep_sizes(settings, result)
            else:
                with TimeBudget("bench_train", settings.minutes) as budget, tempfile.TemporaryDirectory() as folder:
                    compare_contenders(settings, Path(folder), result, budget)
            result["interrupted"] = False
    except UserError as error:
        print(f"bench_train: error: {error}", file=sys.stderr)
        return 2
    return print_and_get_exit_code(result, args.json, print_sweep if args.sweep else print_comparison)


def print_and_get_exit_code(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> int:
    """Print what was measured, however little; return the exit code."""
    if as_json:
        print(json.dumps(result))
    elif result.get("contenders") or result.get("sweep"):
        show(result)
    else:
        print("interrupted before anything was measured")
    return 130 if result["interrupted"] else 0


if __name__ == "__main__":
    sys.exit(main())
