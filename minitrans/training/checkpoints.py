"""Checkpoints: what a run resumes from, whatever stopped it, and its best weights."""

import contextlib
import errno
import io
import logging
import pickle
import signal
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.plugins import TorchCheckpointIO

from minitrans.data.process_group import sum_over_processes
from minitrans.errors import UserError
from minitrans.files import write_file
from minitrans.training.config import TrainingConfig
from minitrans.training.run_folder import BEST

logger = logging.getLogger("minitrans")


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints whole or not at all, and reads them as data that cannot run code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint under a temporary name, then rename it.

        Raises:
            UserError: It cannot be written, say because the disk is full.
        """
        content = io.BytesIO()
        torch.save(checkpoint, content)
        Path(path).parent.mkdir(exist_ok=True)
        try:
            write_file(path, content.getvalue())
        except UserError as error:
            raise UserError(
                f"{error}; correct that, then use --resume to continue from the previous checkpoint"
            ) from error

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """See `read_checkpoint`."""
        return read_checkpoint(Path(path))


class DamagedCheckpointError(UserError):
    """A checkpoint is missing, or is not what was written."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint into CPU memory, which takes no more than the file's size. Nothing in it can run code.

    Raises:
        DamagedCheckpointError: It is missing or damaged, or is not a checkpoint.
        UserError: It cannot be read from the disk, or it holds something that might run code.
    """
    try:
        with zipfile.ZipFile(path) as file:  # torch writes checksums, but never checks them, and would unpack any size
            if file.testzip() is not None or any(entry.compress_type for entry in file.infolist()):
                raise zipfile.BadZipFile
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        names = {"state_dict", "global_step", "rng_states", "metrics", "TranslationDataModule"}
        if checkpoint.keys() >= names and "text" in checkpoint["TranslationDataModule"]:
            return checkpoint
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} holds more than numbers and text, and might run code: it is not read") from error
    except Exception as error:  # a damaged file may cause any error but the two kinds handled first
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.EINVAL):
            raise UserError(f"cannot read {path}: {error.strerror}; correct that, then resume") from error
        raise DamagedCheckpointError(f"{path} is missing or damaged; train again with --overwrite") from error
    raise DamagedCheckpointError(f"{path} is no checkpoint of this version of minitrans; train again with --overwrite")


def newest_intact_checkpoint(folder: Path) -> tuple[Path, int, int]:
    """Find the newest checkpoint that is not damaged, its `text_checksum`, and how many processes wrote it.

    It warns of newer ones that are damaged.

    Raises:
        UserError: There is none, the best weights so far are gone, or a file is refused by `read_checkpoint`.
    """
    for path in step_checkpoints_newest_first(folder):
        try:
            checkpoint = read_checkpoint(path)
        except DamagedCheckpointError:
            logger.warning("%s is damaged or of another version; the checkpoint before it is used instead", path)
        else:
            if "val_bleu" in checkpoint["metrics"]:  # perhaps no later weights will be better
                read_checkpoint(folder / BEST)
            return path, checkpoint["TranslationDataModule"]["text"], len(checkpoint["rng_states"])
    raise UserError(f"{folder} holds no checkpoint to resume from; train again with --overwrite")


def step_checkpoints_newest_first(folder: Path) -> list[Path]:
    """The checkpoints to resume from, the newest first."""
    paths = [path for path in folder.glob("step-*.ckpt") if path.stem[5:].isdecimal()]
    return sorted(paths, key=ckpt_step, reverse=True)


def ckpt_step(path: Path) -> int:
    """The number in the name of a checkpoint: how many steps had been taken when it was written."""
    return int(path.stem.removeprefix("step-"))


class CheckpointWriter(Checkpoint):
    """Writes `best.ckpt` and `step-N.ckpt`, and keeps the last few of the latter.

    A checkpoint is written between two steps: after a step's row of metrics and, if one is due, its validation, so that
    a resumed run repeats nothing and leaves nothing out.

    After SIGTERM, Ctrl-C, SIGHUP or SIGUSR1 (the last three unless ignored before) it finishes the step, writes a
    checkpoint and stops. A second signal (but SIGHUP) stops at once, and loses what came after the last checkpoint.
    With several processes, the first one on each machine listens for signals, and all stop together.
    """

    def __init__(self, folder: Path, config: TrainingConfig, early: EarlyStopping) -> None:
        self.folder, self.config, self.early = folder, config, early
        self.due = self.stop = self.heard = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Correct what Lightning gets wrong in a run that is resumed."""
        # Unless it counts steps, it loses its place where an epoch ends.
        trainer.fit_loop.epoch_loop.max_steps = int(trainer.estimated_stepping_batches)
        # It forgets that a run has stopped early.
        trainer.should_stop = self.early.wait_count >= self.early.patience

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Correct the count of epochs, start the clock, and listen for signals, until the training ends."""
        epochs = trainer.fit_loop.epoch_progress.current
        if epochs.ready == epochs.completed:  # resumed where an epoch ended: Lightning would not count the next one
            trainer.fit_loop.reset_restart_stage()
        self.step, self.saved_at = trainer.global_step, time.monotonic()
        in_main_thread = threading.current_thread() is threading.main_thread()  # only there may handlers be set
        # At Slurm's SIGUSR1, Lightning would write a file in mid-step, from which later trainings there would begin.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1) if in_main_thread else ():
            if signal.getsignal(number) is not signal.SIG_IGN:  # by `nohup`, or a script's & (Ctrl-C)
                signal.signal(number, self._handle_signal if trainer.local_rank == 0 else signal.SIG_IGN)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.heard and number != signal.SIGHUP:  # of which a closed terminal sends two: its shell's and its own
            raise KeyboardInterrupt
        self.heard = True
        with contextlib.suppress(OSError, RuntimeError):  # Ctrl-C ends `tee` too; or it came in the middle of a line
            print("stopping after this step; interrupt again to stop at once", file=sys.stderr)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Write a checkpoint if one is due, unless a validation comes first."""
        if trainer.global_step == self.step:  # gradients are still being summed up, and no checkpoint holds them
            return
        self.step = trainer.global_step
        if self.step == trainer.estimated_stepping_batches:
            # Lightning validates when it stops, if this epoch is to be validated: so the last step is validated too.
            trainer.should_stop, trainer.check_val_every_n_epoch = True, 1
        late = time.monotonic() - self.saved_at >= 60 * self.config.checkpoint_minutes
        self.stop, late = map(bool, sum_over_processes([self.heard, late], pl_module.device))
        self.due |= self.stop or late or self.step % self.config.checkpoint_every == 0
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        if not trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher):
            self._save_if_due(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the weights if none were better; write a checkpoint if one is due."""
        if self.early.wait_count == 0:  # the number of validations since the best one
            trainer.save_checkpoint(self.folder / BEST)
        self._save_if_due(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop if a signal came in the last validation."""
        if any(sum_over_processes([self.heard], pl_module.device)):
            raise SystemExit

    def _save_if_due(self, trainer: Trainer) -> None:
        if self.due or trainer.should_stop:
            self.due = False
            trainer.save_checkpoint(self.folder / f"step-{self.step}.ckpt")
            self.saved_at = time.monotonic()
            if trainer.is_global_zero:
                written = step_checkpoints_newest_first(self.folder)
                kept = [path for path in written if ckpt_step(path) <= self.step][: self.config.keep_checkpoints]
                for path in {*written} - {*kept}:  # later ones must be damaged: this run did not start from them
                    path.unlink()
        if self.stop:
            raise SystemExit  # on a KeyboardInterrupt, Lightning would kill the other processes, which are stopping too
