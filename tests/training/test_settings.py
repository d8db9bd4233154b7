"""Each setting of a training does what it says: a few steps of a run against plain formulas, in float64."""

import math
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from conftest import worst_deviation
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn import functional as F
from train_helpers import read_metrics, read_sides, run_flags

from minitrans import cli
from minitrans.data.batching import Batch
from minitrans.model.transformer import Transformer
from minitrans.pages.chart_svg import chart_as_svg
from minitrans.training import callbacks, precision
from minitrans.training.callbacks import ValidationScorer
from minitrans.training.checkpoints import read_checkpoint
from minitrans.training.module import TranslationModule
from minitrans.translate.bundle import Bundle, load_bundle
from minitrans.translate.translator import Translator

Patch = pytest.MonkeyPatch
Weights = dict[str, Tensor]


class RecordedRun(NamedTuple):
    """A run, its initial weights, and the batches that it was trained on."""

    folder: Path
    initial_weights: Weights
    batches: list[Batch]

    def weights_and_average(self, step: int) -> tuple[Weights, Weights]:
        """The weights after a step, and their average."""
        checkpoint = read_checkpoint(self.folder / f"checkpoints/step-{step}.ckpt")
        states = checkpoint["current_model_state"], checkpoint["state_dict"]
        now, average = ({name.removeprefix("model."): tensor for name, tensor in state.items()} for state in states)
        return now, average

    def metrics_column(self, name: str) -> list[float]:
        """The numbers in a column of metrics.csv."""
        return [float(row[name]) for row in read_metrics(self.folder) if row[name]]


Train = Callable[..., RecordedRun]


@pytest.fixture
def train(corpus: Path, tmp_path: Path, monkeypatch: Patch) -> Train:
    """A function that trains a tiny model in float64, for six steps by default, without dropout."""
    monkeypatch.setitem(precision.TRAINER_PRECISIONS, "fp32", "64-true")
    monkeypatch.setattr("minitrans.training.run.chart_as_svg", lambda _: "")
    training_step = TranslationModule.training_step

    def train(*flags: str, name: str = "run", corpus: Path = corpus, max_steps: int = 6) -> RecordedRun:
        run = RecordedRun(tmp_path / name, {}, [])

        def watched(self: TranslationModule, batch: Batch, batch_idx: int) -> Tensor:
            if not run.batches:
                run.initial_weights.update({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            run.batches.append(batch)
            return training_step(self, batch, batch_idx)

        monkeypatch.setattr(TranslationModule, "training_step", watched)
        words = run_flags(corpus, run.folder, "--model.dropout", "0", *flags, max_steps=max_steps)
        assert cli.main(["train", *words]) == 0
        return run

    return train


# -- The optimizer --------------------------------------------------------------------------------------------------


class OptimizerSettings(NamedTuple):
    """The settings of the optimizer, under the names of their flags."""

    learning_rate: float = 0.01
    warmup_steps: int = 2
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    ema_decay: float = 0.9
    accumulate_grad_batches: int = 1
    gradient_clip_val: float = math.inf


def loss_of(model: Transformer, batch: Batch, smoothing: float = 0.0) -> Tensor:
    logits, target = model(batch.src_ids, batch.tgt_in).flatten(0, 1), batch.tgt_out.flatten()
    return F.cross_entropy(logits, target, ignore_index=model.config.pad_id, label_smoothing=smoothing)


def train_by_formula(run: RecordedRun, s: OptimizerSettings) -> tuple[Transformer, Transformer]:
    """AdamW (Loshchilov and Hutter 2019) word for word: the weights after the run's batches, and their average."""
    model, average = (Transformer(load_bundle(run.folder).model.config).double() for _ in range(2))
    model.load_state_dict(run.initial_weights)
    parameters, averages = list(model.parameters()), list(average.parameters())
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    every = max(1, round(0.01 / (1 - s.ema_decay)))  # steps between two updates of the average
    for step in range(6):
        batches = run.batches[step * s.accumulate_grad_batches :][: s.accumulate_grad_batches]
        loss = torch.stack([loss_of(model, batch, s.label_smoothing) for batch in batches]).mean()
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        progress = (step - s.warmup_steps) / (6 - s.warmup_steps)
        factor = (step + 1) / s.warmup_steps if progress < 0 else (1 + math.cos(math.pi * progress)) / 2
        rate = s.learning_rate * factor
        with torch.no_grad():
            for p, gradient, m, v, a in zip(parameters, gradients, first, second, averages, strict=True):
                g = gradient * min(1.0, s.gradient_clip_val / norm.item())
                m.copy_(0.9 * m + 0.1 * g)
                v.copy_(0.98 * v + 0.02 * g.square())
                m_hat, v_hat = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.98 ** (step + 1))
                p.copy_(p - rate * s.weight_decay * p - rate * m_hat / (v_hat.sqrt() + 1e-8))
                if step % every == 0:
                    decay = s.ema_decay**every if step else 0.0
                    a.copy_(decay * a + (1 - decay) * p)
    return model, average


def weight_deviation(weights: Weights, model: Transformer) -> float:
    parameters = dict(model.named_parameters())
    return worst_deviation([weights[name] for name in parameters], [p.detach() for p in parameters.values()])


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"learning_rate": 0.004},
        {"warmup_steps": 4},
        {"warmup_steps": 0},
        {"weight_decay": 3.0},
        {"label_smoothing": 0.3},
        {"ema_decay": 0.5},
        {"ema_decay": 0.998},
        {"accumulate_grad_batches": 3},
        {"gradient_clip_val": 0.5},
    ],
    ids=str,
)
def test_a_few_steps_follow_the_formulas(train: Train, setting: dict[str, Any]) -> None:
    settings = OptimizerSettings(**setting)
    flags = [f"--{'trainer' if 'grad' in name else 'training'}.{name}={value}"
             for name, value in settings._asdict().items() if value != math.inf]  # fmt: skip
    run = train(*flags)
    model, average = train_by_formula(run, settings)
    now, averaged = run.weights_and_average(6)
    assert weight_deviation(now, model) < 1e-7
    assert weight_deviation(averaged, average) < 1e-6  # it is kept in float32
    if setting:  # control: without it they would differ
        model, average = train_by_formula(run, OptimizerSettings())
        assert max(weight_deviation(now, model), weight_deviation(averaged, average)) > 1e-4


def test_the_logged_learning_rate_is_that_of_the_step(train: Train) -> None:
    run = train("--training.warmup_steps", "2", "--trainer.log_every_n_steps", "1")
    shares = [0.5, 1, 1, *((1 + math.cos(math.pi * k / 4)) / 2 for k in (1, 2, 3))]
    assert run.metrics_column("lr-AdamW") == pytest.approx([0.01 * factor for factor in shares])
    assert run.metrics_column("step")[:6] == [0, 1, 2, 3, 4, 5]
    never = train("--trainer.log_every_n_steps", "0", name="never", max_steps=50)
    assert "lr-AdamW" not in (never.folder / "metrics.csv").read_text()


def test_validation_uses_averaged_weights_and_the_plain_loss(train: Train, corpus: Path, monkeypatch: Patch) -> None:
    translated_with: list[Tensor] = []

    def translator(bundle: Bundle, *arguments: Any) -> Translator:
        translated_with.append(bundle.model.decoder.norm.weight.detach().clone())
        return Translator(bundle, *arguments)

    monkeypatch.setattr(callbacks, "Translator", translator)
    run = train("--training.label_smoothing", "0.3", "--training.warmup_steps", "2", "--data.batch_tokens", "60")
    bundle, (now, average) = load_bundle(run.folder), run.weights_and_average(6)
    assert worst_deviation(translated_with, [average["decoder.norm.weight"]]) < 1e-6
    assert worst_deviation(translated_with, [now["decoder.norm.weight"]]) > 1e-4
    model, tokenizer = bundle.model.double(), bundle.tokenizer
    model.load_state_dict(average)
    total, n_tokens = 0.0, 0
    for source, target in zip(*tokenizer.reader.preprocess_pairs(*read_sides(corpus, "valid")), strict=True):
        src, tgt = tokenizer.encode(source), tokenizer.encode(target)
        rows = [*src, tokenizer.eos_id], [tokenizer.bos_id, *tgt], [*tgt, tokenizer.eos_id]
        with torch.no_grad():
            total += len(rows[2]) * loss_of(model, Batch(*(torch.tensor([row]) for row in rows))).item()
        n_tokens += len(rows[2])
    assert run.metrics_column("val_loss") == [pytest.approx(total / n_tokens)]


def test_the_average_is_kept_on_the_device_that_trains() -> None:
    """Lightning calls `setup` before it moves the model to the device."""
    average, module = callbacks.WeightMovingAverage(0.9), LightningModule()
    module.model = torch.nn.Linear(2, 2)
    average.setup(Mock(strategy=Mock(root_device=torch.device("meta"))), module, "fit")
    assert average._average_model is not None
    assert {tensor.device.type for tensor in average._average_model.state_dict().values()} == {"meta"}
    assert module.model.weight.device.type == "cpu"


# -- The seed -------------------------------------------------------------------------------------------------------


def test_the_seed_decides_the_initial_weights_and_the_order_of_the_data(train: Train) -> None:
    one, same, other = (
        train("--seed", seed, name=name, max_steps=4) for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    )
    assert worst_deviation([*one.initial_weights.values()], [*same.initial_weights.values()]) == 0.0
    for name, tensor in one.initial_weights.items():
        if tensor.dim() == 2:
            assert (tensor != other.initial_weights[name]).all(), name
    sources, again, others = ([batch.src_ids.tolist() for batch in run.batches] for run in (one, same, other))
    assert sources == again != others
    assert sorted(map(len, sources)) != [*map(len, sources)]


def test_the_seed_decides_what_dropout_drops(train: Train, tiny_run: Path, tmp_path: Path) -> None:
    """With one training pair and the weights of another run, only dropout can make a difference."""
    for path in tiny_run.parent.glob("*.*"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / path.name).write_text("".join(lines[: 1 if path.stem == "train" else None]), encoding="utf-8")
    still = ("--training.init_from", str(tiny_run))
    for kind, p in (("dropout", "0.3"), ("attention_dropout", "0.3"), ("dropout", "0")):
        runs = [
            train(*still, f"--model.{kind}", p, "--seed", seed, name=f"{kind}-{p}-{seed}", corpus=tmp_path, max_steps=1)
            for seed in ("1", "2")
        ]
        one, other = (run.weights_and_average(1)[0]["encoder.norm.weight"] for run in runs)
        assert torch.equal(one, other) == (p == "0")


# -- The model and the data -----------------------------------------------------------------------------------------


def test_model_sizes_are_those_of_the_flags(train: Train) -> None:
    sizes = {
        "d_model": 24, "n_heads": 3, "d_head": 5, "d_ff": 17, "n_layers": 2, "max_len": 50, "dropout": 0.2,
        "attention_dropout": 0.3, "tie_embeddings": False,
    }  # fmt: skip
    run = train(*(f"--model.{name}={str(value).lower()}" for name, value in sizes.items()), max_steps=1)
    bundle = load_bundle(run.folder)
    config = vars(bundle.model.config)
    assert {name: config[name] for name in sizes} == sizes
    assert "3 heads of 5" in (run.folder / "README.md").read_text(encoding="utf-8")
    for name in ("vocab_size", "pad_id", "bos_id", "eos_id"):
        assert config[name] == getattr(bundle.tokenizer, name)


# -- When it ends, and what is kept ---------------------------------------------------------------------------------


def script_validation_scores(patch: Patch, bleus: Sequence[float]) -> None:
    """Replace the BLEU of each validation by these scores, in order."""
    left = iter(bleus)

    def log(self: ValidationScorer, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log_dict({"val_bleu": next(left), "val_chrf": 0.0, "val_exact_match": 0.0})

    patch.setattr(ValidationScorer, "on_validation_epoch_end", log)


EVERY_2 = ("--trainer.val_check_interval", "2", "--training.checkpoint_every", "2", "--training.keep_checkpoints", "9")


def assert_best_weights(run: RecordedRun, step: int) -> None:
    """The best weights, in the checkpoint, the model and the card, are the averaged ones of a step."""
    best = read_checkpoint(run.folder / "checkpoints/best.ckpt")
    assert best["global_step"] == step
    now, average = run.weights_and_average(step)
    finished = load_bundle(run.folder).model.double()
    for name, tensor in finished.state_dict().items():
        assert torch.equal(best["state_dict"][f"model.{name}"], average[name]), name
        assert torch.equal(tensor, average[name].float().double()), name
        assert not torch.equal(average[name], now[name]), name
    assert f"averaged weights at step {step}, " in (run.folder / "README.md").read_text(encoding="utf-8")
    assert f"step {step}," in (run.folder / "curve.svg").read_text(encoding="utf-8")


def test_the_weights_of_the_first_best_validation_are_kept(train: Train, monkeypatch: Patch) -> None:
    """Also in a run that is resumed."""
    monkeypatch.setattr("minitrans.training.run.chart_as_svg", chart_as_svg)
    script_validation_scores(monkeypatch, [1.0, 30.0, 30.0, 20.0, 30.0, 20.0])
    run = train(*EVERY_2, max_steps=8)
    assert_best_weights(run, 4)
    for step in (6, 8):
        (run.folder / f"checkpoints/step-{step}.ckpt").unlink()
    assert_best_weights(train(*EVERY_2, "--resume", max_steps=8), 4)


@pytest.mark.parametrize(("patience", "steps"), [(1, 6), (3, 14)])
def test_training_ends_when_patience_runs_out(train: Train, monkeypatch: Patch, patience: int, steps: int) -> None:
    script_validation_scores(monkeypatch, [5.0, 6.0, 6.0, 7.0, 6.9, 0.0, 6.0, 8.0])
    run = train(*EVERY_2, "--training.patience", str(patience), max_steps=20)
    assert len(run.batches) == steps


@pytest.mark.parametrize(
    ("every", "minutes", "kept", "steps"),
    [
        (1, "10", 3, [5, 6, 7]),
        (3, "10", 9, [3, 6, 7]),
        (99, "10", 9, [7]),
        (99, "1", 9, [3, 6, 7]),
        (99, "1.01", 9, [4, 7]),
        (99, "1e-9", 4, [4, 5, 6, 7]),
    ],
)
def test_checkpoints_are_as_frequent_and_as_many_as_set(
    train: Train, every: int, minutes: str, kept: int, steps: list[int], monkeypatch: Patch
) -> None:
    seconds = count(0, 20).__next__  # a step takes 20, and so does a checkpoint
    monkeypatch.setattr("minitrans.training.checkpoints.time", SimpleNamespace(monotonic=seconds))
    flags = ["--training.checkpoint_every", str(every), "--training.keep_checkpoints", str(kept)]
    flags += ["--training.checkpoint_minutes", minutes]
    names = {path.stem for path in (train(*flags, max_steps=7).folder / "checkpoints").iterdir()}
    assert names == {"best", *(f"step-{step}" for step in steps)}
