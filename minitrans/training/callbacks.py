"""Callbacks of training: scores on `valid`, averaged weights, logs, progress, and a stop if a number is not finite."""

import csv
import io
import logging
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, WeightAveraging
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from minitrans.data.batching import Batch
from minitrans.data.datamodule import TranslationDataModule
from minitrans.data.process_group import all_gather, own_slice
from minitrans.errors import UserError
from minitrans.text.lines import escape_controls
from minitrans.training.checkpoints import step_checkpoints_newest_first
from minitrans.training.module import TranslationModule
from minitrans.translate.backend import CompiledMode
from minitrans.translate.bundle import Bundle
from minitrans.translate.metrics import score
from minitrans.translate.translator import Translator

logger = logging.getLogger("minitrans")
N_SAMPLE_TRANSLATIONS = 3
SECONDS_TO_FIRST_LINE, SECONDS_BETWEEN_LINES = 10.0, 60.0  # where there is no terminal to show a bar


class ValidationScorer(Callback):
    """Translates the validation split as a user would, and logs its BLEU and chrF.

    It has to come before the callback that averages weights, which swaps the averaged weights in for the validation
    and swaps them out again when the validation ends.

    Attributes:
        samples: A few (source, translation) pairs of the last validation.
    """

    def __init__(self, compiled: CompiledMode) -> None:
        self.compiled = compiled
        self.samples: list[tuple[str, str]] = []

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Translate `valid`, each process its share; score the translations, and log the scores."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TranslationDataModule)
        assert isinstance(pl_module, TranslationModule)
        bundle = Bundle(pl_module.model, data.tokenizer, data.config.source, data.config.target)
        translator = Translator(bundle, self.compiled)
        sources, references = data.texts("valid")
        own = own_slice(len(sources))
        level = logger.level
        if self.samples:  # the first validation has already warned of lines that are cut
            logger.setLevel(logging.ERROR)
        try:
            translated = translator.translate(sources[own], first_line=own.start + 1)
        finally:
            logger.setLevel(level)
        translations = list(chain.from_iterable(all_gather(translated)))
        scores = score(translations, references, bundle.target)
        metrics = {"val_bleu": scores.bleu, "val_chrf": scores.chrf, "val_exact_match": scores.exact_match}
        pl_module.log_dict(metrics, sync_dist=True)  # the same numbers in all processes
        stride = max(1, len(translations) // N_SAMPLE_TRANSLATIONS)
        shown = map(escape_controls, sources[::stride])
        self.samples = list(zip(shown, translations[::stride], strict=True))[:N_SAMPLE_TRANSLATIONS]
        for board in trainer.loggers:
            if isinstance(board, TensorBoardLogger):
                text = "\n\n".join(f"{source}\n\n> {translation}" for source, translation in self.samples)
                board.experiment.add_text("samples", text, trainer.global_step - 1)


class WeightMovingAverage(WeightAveraging):
    """Keeps a moving average of the weights, which is validated and becomes the model.

    Its `decay` is per optimizer step, but it is updated every few steps, by about a hundredth or more, which is enough,
    and for all parameters at once: Lightning's EMAWeightAveraging updates one after another, which takes longer.
    """

    def __init__(self, decay: float) -> None:
        self.every = max(1, round(0.01 / (1 - decay)))  # steps
        super().__init__(use_buffers=False, multi_avg_fn=get_ema_multi_avg_fn(decay**self.every))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep the average on the device to which Lightning will move the model only later."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether to update the average now; Lightning asks after each step and each epoch."""
        return step_idx is not None and step_idx % self.every == 0


class StopIfNotFinite(Callback):
    """Stops a run whose loss or weights are no longer finite, so that no checkpoint ever holds such weights.

    The loss is checked one step late; otherwise the CPU would wait for the accelerator twice in every step.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: tuple[int, Tensor, Batch] | None = None  # step, loss, batch

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the loss of the previous step, and keep that of this one."""
        assert isinstance(pl_module, TranslationModule)
        self._check_finite(trainer, weights=[])
        self.last = trainer.global_step, pl_module.step_loss, batch

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Check the loss of the last step, and the weights."""
        self._check_finite(trainer, weights=pl_module.parameters())

    def _check_finite(self, trainer: Trainer, weights: Iterable[Tensor]) -> None:
        if self.last is None:
            return
        step, loss, batch = self.last
        if not all(bool(numbers.isfinite().all()) for numbers in (loss, *weights)):
            data, good = trainer.datamodule, step_checkpoints_newest_first(self.folder)  # type: ignore[attr-defined]
            assert isinstance(data, TranslationDataModule)
            logger.warning("step %d: the loss or a weight is not finite; looking for the pairs of its batch", step)
            try:
                found = data.find_line_numbers(batch)
            except UserError:  # the corpus has gone
                found = []
            lines = ", ".join(map(str, sorted({*chain.from_iterable(all_gather(found))}))) or "unknown"
            raise UserError(
                f"training failed at step {step}: the loss is {loss.item():g}, or a weight is not finite after it; "
                f"pairs of the training data in the batch: {lines}; last good checkpoint: "
                f"{good[0] if good else 'none'}; check these pairs, or train again with a lower training.learning_rate"
            )


class LossAndRateLogger(Callback):
    """Logs loss and learning rate every `every` steps (0: never); Lightning would do so only after the checkpoint.

    A checkpoint holds the rows of metrics.csv up to it, and a resumed run begins with them.
    """

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every = path, every

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Log the step."""
        step = trainer.global_step
        if self.every and (step + 1) % self.every == 0:
            assert isinstance(pl_module, TranslationModule)
            loss, rate = pl_module.step_loss.item(), optimizer.param_groups[0]["lr"]
            for log in trainer.loggers:
                log.log_metrics({"train_loss": loss, "lr-AdamW": rate, "epoch": trainer.current_epoch}, step)
                log.save()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the rows of metrics.csv so far to the checkpoint."""
        checkpoint["metrics"] = self.path.read_text() if self.path.is_file() else ""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore metrics.csv to its rows up to this checkpoint."""
        for log in trainer.loggers:
            if isinstance(log, CSVLogger) and trainer.is_global_zero:
                rows = csv.DictReader(io.StringIO(checkpoint["metrics"]))
                log.experiment.metrics.extend({name: value for name, value in row.items() if value} for row in rows)
                log.save()


class TrainingConsole(Console):
    """A console on standard error; if that can no longer be written to, the training goes on without it."""

    def _write_buffer(self) -> None:
        try:
            super()._write_buffer()
        except OSError:  # its reader or its terminal is gone, or its disk is full
            self.quiet = True


class TrainingProgress(ProgressBar):
    """Prints a line at the start and a paragraph at each validation; in between, a bar on a terminal, lines elsewhere.

    Bar and lines show the loss, the speed and the time left. The first line comes after ten seconds, then one a minute.
    """

    def __init__(self, translations: ValidationScorer, first_line: str) -> None:
        super().__init__()
        self.translations, self.first_line = translations, first_line
        self.console = TrainingConsole(stderr=True, highlight=False, emoji=False)
        self.bar = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal or self.console.is_dumb_terminal,
            transient=True,
            refresh_per_second=4,
        )
        self.task = self.bar.add_task("training", total=1, loss=float("nan"), speed=0.0)
        self.seconds = self.token_rate = 0.0  # of training, and target tokens per second of it
        self.began_at: tuple[float, int] | None = None  # when the first step ended, and which step that was
        self.next_line_at = 0.0  # when the next line is due

    def disable(self) -> None:
        """Print nothing: Lightning calls this in every process but the first."""
        self.bar.disable = True
        self.console.quiet = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the first line, warn of pairs that stay reversed, and show the bar."""
        self.console.print(self.first_line, markup=False, soft_wrap=True)
        data = trainer.datamodule.config  # type: ignore[attr-defined]
        epoch_steps = -(-trainer.num_training_batches // trainer.accumulate_grad_batches)
        n_epochs = trainer.estimated_stepping_batches / epoch_steps
        if not data.streaming and n_epochs <= data.reversed_epochs:  # a stream's epochs have no end
            words = "data.reversed_epochs is %d, of %.1f epochs: half of the pairs stay reversed to the end; give fewer"
            logger.warning(words, data.reversed_epochs, n_epochs)
        self.bar.reset(self.task, total=trainer.estimated_stepping_batches, completed=trainer.global_step)
        self.bar.start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Start the clock: speed is that of the training steps, without validation."""
        self.step_began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Move the bar, or print a line if one is due."""
        assert isinstance(pl_module, TranslationModule)
        self.seconds += time.perf_counter() - self.step_began
        self.token_rate = pl_module.tgt_tokens / self.seconds
        now, step = time.monotonic(), trainer.global_step
        if not self.bar.disable:
            self.bar.update(self.task, completed=step, loss=pl_module.step_loss, speed=self.token_rate)
        elif self.began_at is None:  # the first step also prepares memory: its time is not typical
            self.began_at, self.next_line_at = (now, step), now + SECONDS_TO_FIRST_LINE
        elif now >= self.next_line_at and step > self.began_at[1]:
            self.next_line_at = now + SECONDS_BETWEEN_LINES
            began, first_step = self.began_at
            n_steps = trainer.estimated_stepping_batches
            minutes_left = (now - began) / (step - first_step) * (n_steps - step) / 60
            self.console.print(
                f"step {step}/{n_steps}  loss {pl_module.step_loss.item():.3f}  "
                f"{self.token_rate:,.0f} tokens/s  {minutes_left:.0f} min left",
                soft_wrap=True,
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the scores and a few translations."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.console.print(
            f"step {trainer.global_step}  epoch {trainer.current_epoch}  val loss {metrics['val_loss']:.3f}  "
            f"BLEU {metrics['val_bleu']:.2f}  chrF {metrics['val_chrf']:.2f}  "
            f"exact {metrics['val_exact_match']:.1f}%  {self.token_rate:,.0f} tokens/s  {self.seconds / 60:.1f} min",
            markup=False,
            soft_wrap=True,
        )
        for source, translation in self.translations.samples:
            self.console.print(f"    {source}\n    -> {translation}", markup=False, soft_wrap=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Take the bar away."""
        self.bar.stop()

    on_exception = on_train_end  # type: ignore[assignment]  # in Lightning, the third argument has a name
