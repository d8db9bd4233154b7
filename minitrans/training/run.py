"""From settings to a run folder: corpus, tokenizer, training, scores, model card."""

import contextlib
import errno
import logging
import os
import shlex
import time
import warnings
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch.distributed import DistError

from minitrans.data.corpus import load_corpus, train_tokenizer
from minitrans.data.datamodule import TranslationDataModule
from minitrans.data.process_group import all_gather
from minitrans.errors import UserError, truncate
from minitrans.files import write_file
from minitrans.model.transformer import Transformer
from minitrans.pages.chart_svg import chart_as_svg
from minitrans.pages.render import render_template, templates
from minitrans.text.lines import escape_controls
from minitrans.text.tokenizer import Tokenizer
from minitrans.training import callbacks, checkpoints
from minitrans.training.config import SETTINGS_FROM_TOKENIZER, RunConfig, check_model_memory
from minitrans.training.module import TranslationModule
from minitrans.training.plot_curve import plot_training_curve
from minitrans.training.precision import TRAINER_PRECISIONS, precision_and_reason
from minitrans.training.run_folder import BEST, CARD, CHECKPOINTS, CURVE, METRICS, TENSORBOARD, begin_run, claim_run
from minitrans.translate.backend import make_batch_loss
from minitrans.translate.bundle import (
    MAX_SMALL_FILE_BYTES,
    WORDS,
    Bundle,
    load_bundle,
    load_tokenizer,
    load_word_ranks,
    save_bundle,
)
from minitrans.translate.metrics import Scores, choose_threshold, references_by_line, score
from minitrans.translate.translator import Translator

templates.filters |= {"escape_controls": escape_controls, "quote": shlex.quote}
REPORT_GRACE_S = 10.0  # seconds that the first process of a training has to report an error and end the others


def train(config: RunConfig) -> dict[str, Scores]:
    """Train a model and write its run folder.

    With several devices all processes call it; the first one reads and writes the run folder.

    Returns:
        The scores of the finished model on `valid` and on each test split; nothing in the other processes.

    Raises:
        UserError: A fault in the settings, the corpus or the run folder; nothing has been written then, unless several
            processes differ.
        KeyboardInterrupt: Stopped by a signal; the run can be resumed.
    """
    _quieten_logs()
    with contextlib.ExitStack() as held:
        is_there = is_first_process() and claim_run(config, held)
        # A bad size fails here, not after the tokenizer has been trained; the ids are not known yet.
        sizes = config.transformer_config(vocab_size=config.tokenizer.vocab_size, pad_id=0, bos_id=1, eos_id=2)
        check_model_memory(sizes)
        checkpoint = text = n_before = None
        if config.resume:
            checkpoint, text, n_before = checkpoints.newest_intact_checkpoint(config.run_dir / CHECKPOINTS)
        trainer = _make_trainer(config, checkpoint)
        if n_before not in (None, trainer.world_size):
            raise UserError(
                f"processes when {checkpoint} was written: {n_before}; now: {trainer.world_size}; resume with the "
                "trainer.devices and trainer.num_nodes of the first run"
            )
        seed_everything(config.seed, verbose=False)

        init_from = None if config.resume else config.training.init_from
        start = None if init_from is None else load_bundle(Path(init_from))
        corpus = load_corpus(config.data)
        if config.resume:
            tokenizer = load_tokenizer(config.run_dir)
        elif start:
            tokenizer = start.tokenizer
        else:
            tokenizer = train_tokenizer(corpus["train"], config.tokenizer, config.data.cache_dir)
        model = _make_model(config, tokenizer, start)
        data = TranslationDataModule(config.data, tokenizer, model.config.max_len, config.seed, corpus)
        if checkpoint and text != data.text_checksum:
            changed = f"train or valid of {config.data.path} is not the text that {checkpoint} was trained on"
            raise UserError(f"{changed}; resume with that text, or train a new run")
        _check_validation_interval(config.trainer, -(-len(data.train_dataloader()) // trainer.world_size))
        if isinstance(share := config.trainer["limit_val_batches"], float):  # Lightning refuses less than one batch
            trainer.limit_val_batches = max(1, int(share * -(-len(data.val_dataloader()) // trainer.world_size)))
        trainer.precision_plugin.convert_module(model)  # as it will be when it is trained
        dtype = torch.bfloat16 if trainer.precision == "bf16-mixed" else model.output.weight.dtype
        batch_loss = make_batch_loss(model, config.compiled, trainer.strategy.root_device, dtype)
        module = TranslationModule(model, config.training, batch_loss)

        if trainer.is_global_zero and not config.resume:
            begin_run(config, is_there, held, tokenizer, start.source_words if start else None)
        settings = replace(  # without what may differ from machine to machine
            config,
            data=replace(config.data, path="."),
            training=replace(config.training, init_from=None),
            trainer=config.trainer | {"devices": "auto"},
        )
        facts = settings.yaml_text, checkpoint and checkpoint.name, tokenizer.digest, data.text_checksum
        trainer.callbacks.append(LambdaCallback(setup=lambda *_, **__: _check_alike(facts)))  # type: ignore[attr-defined]
        _fit(trainer, module, data, config, checkpoint)
        if not trainer.is_global_zero:
            return {}

        best = checkpoints.read_checkpoint(config.run_dir / CHECKPOINTS / BEST)
        module.load_state_dict(best["state_dict"])
        model.to("cpu", torch.float32).eval()
        bundle = Bundle(model, tokenizer, config.data.source, config.data.target, _rank_training_words(config, data))
        bundle, scores = _score_bundle(config, bundle, data)
        curve = chart_as_svg(partial(plot_training_curve, config.run_dir / METRICS, kept=best["global_step"]))
        write_file(config.run_dir / CURVE, curve)
        numbers = {"step": best["global_step"], "n_parameters": sum(p.numel() for p in model.parameters())}
        card = render_template("run_card.md", config=config, bundle=bundle, scores=scores, **numbers)
        write_file(config.run_dir / CARD, card)
        save_bundle(config.run_dir, bundle)
        return scores


def is_first_process() -> bool:
    """Whether this is the process that reads and writes the run folder, as far as can be told without a Trainer."""
    rank: int = rank_zero_only.rank  # type: ignore[attr-defined]
    return rank == 0 and LightningEnvironment().node_rank() == 0


def _make_model(config: RunConfig, tokenizer: Tokenizer, start: Bundle | None) -> Transformer:
    """A new model, with the weights of `start` if that is given; the two may differ only in dropout and `max_len`."""
    sizes = config.transformer_config(**{name: getattr(tokenizer, name) for name in SETTINGS_FROM_TOKENIZER})
    model = Transformer(sizes)
    if start:
        for name, now in asdict(sizes).items():
            was = getattr(start.model.config, name)
            if was != now and name not in ("dropout", "attention_dropout", "max_len"):
                raise UserError(f"model.{name} is {now}, and {was} in the run of training.init_from; give it the same")
        model.load_state_dict(start.model.state_dict())
    return model


def _rank_training_words(config: RunConfig, data: TranslationDataModule) -> dict[str, int] | None:
    """The rank of each word seen in training, also in that of the run it started from; None if not all are known.

    The run folder has a copy of the other run's words, because that run may be gone by now.
    """
    words = data.source_words()
    if words is None:
        return None
    if config.training.init_from is not None:
        if not (config.run_dir / WORDS).is_file():
            return None
        words += load_word_ranks(config.run_dir)
    ranks = {word: i for i, word in enumerate(dict.fromkeys(words))}
    if (size := sum(len(word.encode()) + 1 for word in ranks)) > MAX_SMALL_FILE_BYTES:
        logging.getLogger("minitrans").warning("the run keeps no words: those of its data take %d bytes", size)
        return None
    return ranks


def _score_bundle(config: RunConfig, bundle: Bundle, data: TranslationDataModule) -> tuple[Bundle, dict[str, Scores]]:
    """Score a model on `valid` and on each test split; the model is returned with the threshold chosen on `valid`."""
    translator = Translator(bundle, config.compiled)
    scores = {}
    for split in ("valid", *data.test_splits):
        sources, references = data.texts(split)
        translations = translator.translations(sources)
        scores[split] = score([t.text for t in translations], references, bundle.target)
        if split == "valid":
            bundle = replace(bundle, threshold=choose_threshold(translations, references_by_line(references)))
    return bundle, scores


def _make_trainer(config: RunConfig, checkpoint: Path | None) -> Trainer:
    """Lightning's Trainer with our loggers and callbacks; `CheckpointWriter` is called last, wherever it is listed."""
    _check_devices(config.trainer)
    run_dir = config.run_dir
    precision, reason = precision_and_reason(config.training.precision, config.trainer["accelerator"])
    translations = callbacks.ValidationScorer(config.compiled)
    early = EarlyStopping("val_bleu", 0.0, config.training.patience, mode="max", check_on_train_epoch_end=False)
    own: list[Callback] = [
        translations,  # before the averaging, see `ValidationScorer`
        callbacks.WeightMovingAverage(config.training.ema_decay),
        early,
        callbacks.TrainingProgress(translations, f"precision: {precision} ({reason})"),
        callbacks.StopIfNotFinite(run_dir / CHECKPOINTS),
        callbacks.LossAndRateLogger(run_dir / METRICS, every=config.trainer["log_every_n_steps"]),
        checkpoints.CheckpointWriter(run_dir / CHECKPOINTS, config.training, early),
    ]
    purge_step = checkpoints.ckpt_step(checkpoint) if checkpoint else None  # TensorBoard is to show no step twice
    tensorboard = TensorBoardLogger(run_dir, name="", version=TENSORBOARD, purge_step=purge_step)
    try:
        trainer = Trainer(
            **config.trainer | {"log_every_n_steps": 0},  # `LossAndRateLogger` does it
            precision=TRAINER_PRECISIONS[precision],
            logger=[CSVLogger(run_dir, name="", version=""), tensorboard],
            callbacks=own,
            plugins=[checkpoints.SafeCheckpointIO()],
            default_root_dir=run_dir,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_model_summary=False,
        )
    except Exception as error:  # of any type: a missing device, or settings that exclude each other
        raise UserError(f"trainer: {' '.join(str(error).split())}") from error
    if trainer.world_size == 1 and not is_first_process():
        raise UserError(
            "RANK, SLURM_PROCID or NODE_RANK in the environment says that this is not the first process of a training, "
            "but there is only one; unset it, or set trainer.devices or trainer.num_nodes"
        )
    if trainer.world_size != (n := trainer.num_devices * trainer.num_nodes):
        raise UserError(
            f"torchrun or Slurm has started {trainer.world_size} processes, but trainer.devices and trainer.num_nodes "
            f"ask for {n}; give the same number"
        )
    alone = isinstance(getattr(trainer.strategy, "cluster_environment", None), LightningEnvironment)
    if trainer.num_nodes > 1 and alone and "MASTER_ADDR" not in os.environ:  # they would wait for each other for ever
        raise UserError(
            f"trainer.num_nodes is {trainer.num_nodes}, but no MASTER_ADDR in the environment says where they meet; "
            "set MASTER_ADDR, MASTER_PORT and NODE_RANK on each"
        )
    if isinstance(trainer.strategy, DDPStrategy):
        # Otherwise DDP sums up gradients in another order after the first step of a process, resumed or not.
        trainer.strategy._ddp_kwargs["find_unused_parameters"] = True
    return trainer


def _check_devices(settings: dict[str, Any]) -> None:
    """Refuse more devices than there are."""
    devices = settings["devices"]  # nine digits of a number are too many already
    n_devices = len(devices) if isinstance(devices, list) else int(str(devices)[:9]) if str(devices).isdecimal() else 1
    gpus = 0 if settings["accelerator"] == "cpu" else torch.cuda.device_count()
    most, kind = (gpus, "accelerators") if gpus else (os.cpu_count() or 1, "cores")
    if n_devices > most:
        raise UserError(f"trainer.devices is {truncate(devices)}; this machine has {most} {kind}")


def _check_validation_interval(settings: dict[str, Any], n_batches: int) -> None:
    """Refuse to validate after more batches than a process takes in an epoch, where each epoch counts anew."""
    every = settings["val_check_interval"]
    if isinstance(every, int) and every > n_batches and settings["check_val_every_n_epoch"] is not None:
        raise UserError(
            f"trainer.val_check_interval is {every}, and an epoch has only {n_batches} batches; make it smaller, or "
            "set trainer.check_val_every_n_epoch to null, to count across epochs"
        )


def _check_alike(facts: tuple[object, ...]) -> None:
    """Refuse to train with processes that differ in settings, checkpoint, tokenizer or text."""
    for name, *values in zip(("settings", "checkpoint", "tokenizer", "text"), *all_gather(facts), strict=True):
        if len({*values}) > 1:
            raise UserError(
                f"the processes do not have the same {name}; give each the same command, run folder and text"
            )


def _fit(
    trainer: Trainer, module: TranslationModule, data: TranslationDataModule, config: RunConfig, checkpoint: Path | None
) -> None:
    """Train; Lightning turns a KeyboardInterrupt into an exit with code 1, and we turn it back.

    If the first process fails, it ends those that it has started, so that none waits for it, and an error that they
    share is reported once.
    """
    threads = torch.get_num_threads()
    try:
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
    except SystemExit as error:
        _end_child_processes(trainer)
        if trainer.is_global_zero:
            written = checkpoints.step_checkpoints_newest_first(config.run_dir / CHECKPOINTS)
            after = "; the same command with --resume continues"
            before = ", before the first checkpoint; train again with --overwrite"
            raise KeyboardInterrupt(f"stopped at step {trainer.global_step}{after if written else before}") from error
    except Exception as error:
        if trainer.local_rank > 0:
            # The first process reports the error and ends this one, unless only this one has failed.
            time.sleep(REPORT_GRACE_S)
        broken = isinstance(error, RuntimeError)  # perhaps a lost connection to a process that is about to end
        if codes := _end_child_processes(trainer, REPORT_GRACE_S / 2 if broken else 0):
            raise UserError(f"a training process ended with code {codes[0]}; see its messages above") from error
        if isinstance(error, DistError) or "gloo" in str(error):
            raise UserError(
                "a process of this training has ended, or the network between them is down; see the others' messages, "
                "then the same commands with --resume continue"
            ) from error
        unwritable = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ESTALE, errno.ENOENT)
        if isinstance(error, OSError) and error.errno in unwritable:  # of a logger
            raise UserError(
                f"cannot write {config.run_dir}: {error.strerror}; correct that, then --resume continues from the last "
                "checkpoint"
            ) from error
        raise
    torch.set_num_threads(threads)  # several processes have divided the cores among themselves


def _end_child_processes(trainer: Trainer, patience: float = 0) -> list[int]:
    """End the processes that this one has started, and return the exit codes of those that ended by themselves."""
    launcher = trainer.strategy.launcher
    if not isinstance(launcher, _SubprocessScriptLauncher):
        return []
    processes = [*launcher.procs]
    launcher.procs.clear()  # or the thread that watches them kills this process as well
    deadline = time.monotonic() + patience  # for the first of them to end
    while processes and all(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    codes = [process.returncode for process in processes if process.returncode is not None]
    for process in processes:
        process.kill()
    return codes


def _quieten_logs() -> None:
    """Hide Lightning's hints, which our progress and our errors make superfluous."""
    if not is_first_process():
        logging.getLogger("minitrans").setLevel(logging.ERROR)  # the first process gives the same warnings
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (".*Experiment logs directory .* exists", ".*LeafSpec.*is deprecated", "The `srun` command is"):
        warnings.filterwarnings("ignore", message)
