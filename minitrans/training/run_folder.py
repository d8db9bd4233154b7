"""The folder of a run: what may be written into it, and removed from it, by one training at a time."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import yaml

from minitrans.errors import UserError
from minitrans.files import lock_file, make_folder, write_file
from minitrans.text.tokenizer import Tokenizer
from minitrans.training.config import CONFIG_FILE, RunConfig, saved_settings
from minitrans.translate.bundle import METADATA, TOKENIZER, WEIGHTS, WORDS, save_words

CARD, CURVE, METRICS = "README.md", "curve.svg", "metrics.csv"
CHECKPOINTS, BEST, TENSORBOARD = "checkpoints", "best.ckpt", "tensorboard"
MARK_FILE = ".minitrans"  # marks a folder as a run's, and is locked during training
# All other files that a training writes into it. Files with other names are not ours.
RUN_FILE_PATTERNS = [
    *(CONFIG_FILE, TOKENIZER, WEIGHTS, METADATA, WORDS, CARD, CURVE, METRICS),
    *(f"{CHECKPOINTS}/{BEST}", f"{CHECKPOINTS}/step-[0-9]*.ckpt"),
    *(f"{TENSORBOARD}/events.out.tfevents.*", f"{TENSORBOARD}/hparams.yaml"),
]


def claim_run(config: RunConfig, held: contextlib.ExitStack) -> bool:
    """Tell whether there is a run already; if so, lock it until `held` ends, and remove its unfinished files.

    Raises:
        UserError: The existing folder is not ours to touch, cannot be resumed, or is in use.
    """
    run_dir = config.run_dir
    if config.resume and config.overwrite:
        raise UserError("--resume and --overwrite exclude each other; give one")
    if config.resume:
        _check_resumed(config)
    elif not run_dir.exists() or not any(run_dir.iterdir()):
        return False
    elif not config.overwrite:
        raise UserError(f"{run_dir} is not empty; give --resume, --overwrite or another --run-dir")
    elif run_dir.is_symlink():
        raise UserError(f"{run_dir} is a link, so what it leads to is not overwritten; give that as --run-dir")
    elif not (run_dir / MARK_FILE).is_file():
        raise UserError(
            f"{run_dir} is not marked as a run folder by a file {MARK_FILE}, so it is not overwritten; remove it "
            "yourself, or give another --run-dir"
        )
    elif config.training.init_from and run_dir.resolve() == Path(config.training.init_from).resolve():
        raise UserError("training.init_from is the run folder itself; give another --run-dir")
    for path in run_dir.rglob("*"):
        if path.is_symlink():
            raise UserError(f"{path} is a link, and nothing is written through links; remove it")
    held.enter_context(lock_file(run_dir / MARK_FILE))
    _remove(run_dir, [f"{name}.[0-9]*.tmp" for name in RUN_FILE_PATTERNS])  # unfinished files of a run that was killed
    return True


def is_trained(config: RunConfig) -> bool:
    """Tell whether the run has ended already.

    Raises:
        UserError: It was trained with other settings.
    """
    if not (config.run_dir / METADATA).is_file():
        return False
    if name := _differing_setting(config):
        differs = f"{config.run_dir} was trained with other settings ({name})"
        raise UserError(f"{differs}; give the same, remove it, or give another --run-dir")
    return True


def with_resume_or_overwrite(config: RunConfig) -> RunConfig:
    """The settings that resume the training in the run folder if it has a checkpoint, and otherwise begin it anew."""
    begun = any((config.run_dir / CHECKPOINTS).glob("step-*.ckpt"))
    return replace(config, resume=begun, overwrite=not begun)


def _check_resumed(config: RunConfig) -> None:
    """Refuse to resume a run if there is nothing to resume or its settings differ."""
    run_dir = config.run_dir
    for part in (CONFIG_FILE, TOKENIZER):
        if not (run_dir / part).is_file():
            raise UserError(f"{run_dir} holds nothing to resume: {part} is missing; train without --resume")
    if name := _differing_setting(config):
        raise UserError(
            f"{run_dir / CONFIG_FILE} and the settings given differ in {name}; "
            "resume with the run's own settings, or train a new run"
        )


def _differing_setting(config: RunConfig) -> str | None:
    """The first setting that differs from the run's own, except where it trains and what it logs; None if none does."""
    both = saved_settings(config.run_dir), yaml.safe_load(config.yaml_text)
    for settings in both:
        settings["training"]["init_from"] = settings["training"].get("init_from") is not None  # it may have moved
        path = settings["data"].get("path") or ""  # it may have moved too: the text is compared, but not a stream's
        settings["data"]["path"] = str(Path(path).absolute()) if settings["data"].get("streaming") else ""
    before, now = ({**settings["trainer"], **settings} for settings in both)
    # Of the trainer's settings, those that decide which steps are taken.
    steps = ("max_steps", "max_epochs", "accumulate_grad_batches", "gradient_clip_val")
    names = ("seed", "model", "tokenizer", "data", "training", "compiled", *steps)
    return next((name for name in names if before.get(name) != now[name]), None)


def begin_run(
    config: RunConfig, is_there: bool, held: contextlib.ExitStack, tokenizer: Tokenizer, words: Iterable[str] | None
) -> None:
    """Begin the run folder, replacing any run in it; `words` are those of the run that training starts from.

    Raises:
        UserError: It cannot be written, or another training has begun in it meanwhile.
    """
    run_dir = config.run_dir
    if not is_there:
        make_folder(run_dir, "give another --run-dir")
        held.enter_context(lock_file(run_dir / MARK_FILE))
        if (run_dir / CONFIG_FILE).exists():
            raise UserError(f"{run_dir} is not empty; give --resume, --overwrite or another --run-dir")
    _remove(run_dir, RUN_FILE_PATTERNS)
    for folder in (CHECKPOINTS, TENSORBOARD):
        with contextlib.suppress(OSError):  # it is not there, or holds something that is not ours
            (run_dir / folder).rmdir()
    write_file(run_dir / CONFIG_FILE, config.yaml_text)
    write_file(run_dir / TOKENIZER, tokenizer.proto)
    if words is not None:
        save_words(run_dir, words)


def _remove(run_dir: Path, patterns: Iterable[str]) -> None:
    for path in chain.from_iterable(map(run_dir.glob, patterns)):
        path.unlink()
