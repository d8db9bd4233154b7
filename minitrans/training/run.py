"""From settings to a run folder: corpus, tokenizer, training, scores, model card."""

import contextlib
import ctypes
import errno
import logging
import shutil
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
import yaml
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from minitrans.admission import make_batch_loss
from minitrans.data.corpus import load_corpus, train_tokenizer
from minitrans.data.datamodule import TranslationDataModule
from minitrans.errors import UserError
from minitrans.files import write_file
from minitrans.model.transformer import Transformer
from minitrans.serving.bundle import TOKENIZER, Bundle, load_bundle, load_tokenizer, save_bundle
from minitrans.serving.scoring import Scores, score
from minitrans.serving.translator import Translator
from minitrans.text.lines import clean
from minitrans.text.tokenizer import Tokenizer
from minitrans.training.callbacks import TrainingProgress, ValidationTranslations
from minitrans.training.card import model_card
from minitrans.training.checkpoints import (
    BEST,
    METRICS,
    CheckpointFiles,
    Checkpoints,
    newest_checkpoint,
    read_checkpoint,
    step_of,
)
from minitrans.training.config import RunConfig
from minitrans.training.curve import training_curve
from minitrans.training.module import TranslationModule
from minitrans.training.precision import choose_precision

CONFIG, CARD, CURVE, CHECKPOINTS = "config.yaml", "README.md", "curve.svg", "checkpoints"
PATIENCE = 10.0  # seconds in which the first process of a training tells of a fault and ends the others


def train(config: RunConfig) -> dict[str, Scores]:
    """Train a model and write its run folder.

    With several devices all processes call it; the first one reads and writes the run folder.

    Returns:
        The scores of the finished model on `valid` and on each test split; nothing in the other processes.

    Raises:
        UserError: A fault in the settings, the corpus or the run folder; nothing has been written then.
        KeyboardInterrupt: Stopped by a signal; the run can be resumed.
    """
    run_dir = config.run_dir
    if _is_first_process():
        _check_run_dir(config)
    else:
        logging.getLogger("minitrans").setLevel(logging.ERROR)  # the first process warns of the same
    # A bad size fails here, not after the tokenizer has been trained; the ids are not known yet.
    config.transformer(vocab_size=config.tokenizer.vocab_size, pad_id=0, bos_id=1, eos_id=2)
    _keep_freed_memory()
    _quieten_lightning()
    seed_everything(config.seed, verbose=False)

    start = None if config.resume or config.training.init_from is None else load_bundle(Path(config.training.init_from))
    corpus = load_corpus(config.data)
    if config.resume:
        tokenizer = load_tokenizer(run_dir)
    elif start:
        tokenizer = start.tokenizer
    else:
        tokenizer = train_tokenizer(corpus["train"], config.tokenizer, config.data.cache_dir)
    sizes = config.transformer(
        vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )
    model = Transformer(sizes)
    if start:
        _copy_weights(start.model, model)
    data = TranslationDataModule(config.data, tokenizer, sizes.max_len, config.seed, corpus)
    data.setup()
    bundle = Bundle(model, tokenizer, config.data.source, config.data.target)
    batch_loss = make_batch_loss(config.compiled)
    if config.compiled == "require":  # and may not be had: better now than at the first step
        with torch.no_grad():
            one = torch.tensor([[tokenizer.eos_id]])
            batch_loss(model.eval(), one, one, one, 0.0)
            model.train()
    module = TranslationModule(bundle.model, config.training, batch_loss)

    checkpoint = newest_checkpoint(run_dir / CHECKPOINTS) if config.resume else None
    trainer = _make_trainer(config, bundle, data, checkpoint)
    if config.data.streaming and trainer.num_devices * trainer.num_nodes > 1:
        raise UserError("data.streaming works with one device only; set trainer.devices and trainer.num_nodes to 1")
    if trainer.is_global_zero and not config.resume:
        _make_run_dir(config, tokenizer)
    threads = torch.get_num_threads()
    _fit(trainer, module, data, config, checkpoint)
    if not trainer.is_global_zero:
        return {}
    torch.set_num_threads(threads)  # several processes have shared them

    best = read_checkpoint(run_dir / CHECKPOINTS / BEST)
    module.load_state_dict(best["state_dict"])
    bundle.model.to("cpu", torch.float32).eval()
    translator = Translator(bundle, config.compiled)
    scores = {}
    for split in ("valid", *data.splits):
        sources, references = data.texts(split)
        scores[split] = score(translator.translate(sources), references, bundle.target)
    write_file(run_dir / CURVE, training_curve(run_dir / METRICS, kept=best["global_step"]))
    write_file(run_dir / CARD, model_card(config, bundle, scores, step=best["global_step"]))
    save_bundle(run_dir, bundle)
    return scores


def _copy_weights(start: Transformer, model: Transformer) -> None:
    """Let a model begin with the weights of another, which may differ in its dropout and its longest sequence alone."""
    free = {name: getattr(model.config, name) for name in ("dropout", "attention_dropout", "max_len")}
    before, now = asdict(start.config) | free, asdict(model.config)
    other = [name for name in now if before[name] != now[name]]
    if other:
        name = other[0]
        raise UserError(
            f"model.{name} is {now[name]}, and {before[name]} in the run of training.init_from; give it the same"
        )
    model.load_state_dict(start.state_dict())


def _is_first_process() -> bool:
    """Whether this is the one that reads and writes the run folder, as far as can be told without a Trainer."""
    rank: int = rank_zero_only.rank  # type: ignore[attr-defined]
    return rank == 0 and LightningEnvironment().node_rank() == 0


def _check_run_dir(config: RunConfig) -> None:
    """Refuse to touch what is not ours to touch, and to resume what cannot be."""
    run_dir = config.run_dir
    if config.resume and config.overwrite:
        raise UserError("--resume and --overwrite exclude each other; give one")
    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(f"{run_dir} is a file; give another --run-dir")
    if config.resume:
        _check_resumed(config)
    elif run_dir.exists() and any(path.suffix != ".tmp" for path in run_dir.iterdir()):
        if not config.overwrite:
            raise UserError(f"{run_dir} is not empty; give --resume, --overwrite or another --run-dir")
        if not (run_dir / CONFIG).is_file():
            raise UserError(f"{run_dir} is not a run folder, so it is not overwritten; give another --run-dir")


def _check_resumed(config: RunConfig) -> None:
    """Refuse to resume what cannot be; remove what a run that was killed has not written to its end."""
    run_dir, now = config.run_dir, yaml.safe_load(config.text)
    for part in (CONFIG, TOKENIZER):
        if not (run_dir / part).is_file():
            raise UserError(f"{run_dir} holds nothing to resume: {part} is missing; train without --resume")
    try:
        before = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))
        other = [name for name in ("seed", "model", "tokenizer", "data", "training") if before[name] != now[name]]
        other += ["compiled"] * (before.get("compiled", "auto") != now["compiled"])
    except Exception as error:  # whatever YAML makes of a damaged file
        raise UserError(f"{run_dir / CONFIG} is damaged ({clean(str(error))}); train again with --overwrite") from error
    if other:
        raise UserError(
            f"{run_dir / CONFIG} and the settings given differ in {other[0]}; "
            "resume with the run's own settings, or train a new run"
        )
    for unfinished in run_dir.rglob("*.[0-9]*.tmp"):
        unfinished.unlink()


def _make_run_dir(config: RunConfig, tokenizer: Tokenizer) -> None:
    """Begin the run folder, in place of the one that is there if that is to be overwritten."""
    if config.overwrite and config.run_dir.exists():
        shutil.rmtree(config.run_dir)
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        write_file(config.run_dir / CONFIG, config.text)
        tokenizer.save(config.run_dir / TOKENIZER)
    except OSError as error:
        raise UserError(f"cannot write {config.run_dir}: {error.strerror}; give another --run-dir") from error


def _make_trainer(
    config: RunConfig, bundle: Bundle, data: TranslationDataModule, checkpoint: Path | None = None
) -> Trainer:
    """Lightning's Trainer with our loggers and callbacks; `Checkpoints` are called last, wherever they stand."""
    run_dir, log_every = config.run_dir, config.trainer["log_every_n_steps"]
    if config.trainer["strategy"] not in ("auto", "ddp"):
        raise UserError(f"trainer.strategy is {config.trainer['strategy']}; choose auto or ddp")
    precision = choose_precision(config.training.precision, config.trainer["accelerator"])
    decay = config.training.ema_decay
    every = max(
        1, round(0.01 / (1 - decay))
    )  # steps in which the weights move the average by a hundredth: often enough
    translations = ValidationTranslations(bundle, *data.texts("valid"), config.compiled)
    callbacks: list[Callback] = [
        translations,  # before the averaging, see there
        EMAWeightAveraging(use_buffers=False, decay=decay**every, update_every_n_steps=every),
        EarlyStopping("val_bleu", mode="max", patience=config.training.patience, check_on_train_epoch_end=False),
        TrainingProgress(translations, str(precision)),
        Checkpoints(run_dir / CHECKPOINTS, config.training, 50 if log_every is None else log_every),
    ]
    tensorboard = TensorBoardLogger(  # it shows no step twice
        run_dir, name="", version="tensorboard", purge_step=step_of(checkpoint) if checkpoint else None
    )
    try:
        return Trainer(
            **config.trainer | {"log_every_n_steps": 0},  # we do it, before the checkpoint
            precision=precision.of_trainer,
            logger=[CSVLogger(run_dir, name="", version=""), tensorboard],
            callbacks=callbacks,
            plugins=[CheckpointFiles()],
            default_root_dir=run_dir,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
    except (MisconfigurationException, ValueError) as error:  # a device that is not there, settings that exclude others
        raise UserError(f"trainer: {' '.join(str(error).split())}") from error


def _fit(
    trainer: Trainer,
    module: TranslationModule,
    data: TranslationDataModule,
    config: RunConfig,
    checkpoint: Path | None = None,
) -> None:
    """Train; Lightning turns a KeyboardInterrupt into an exit with code 1, and we turn it back.

    The first process ends those that it has started if it fails, so that no one waits for it, and what all fail of is
    told once.
    """
    try:
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as error:
        _end_processes(trainer)
        if trainer.is_global_zero:
            raise KeyboardInterrupt(
                f"stopped at step {trainer.global_step}; the same command with --resume continues"
            ) from error
    except Exception as error:
        if trainer.local_rank > 0:
            time.sleep(PATIENCE)  # unless it alone has failed, the first process tells of it, and ends this one
        broken = isinstance(error, RuntimeError)  # perhaps the connection, by one that is about to end
        if codes := _end_processes(trainer, PATIENCE / 2 if broken else 0):
            raise UserError(f"a training process ended with code {codes[0]}; see its messages above") from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):  # of a logger
            raise UserError(
                f"cannot write {config.run_dir}: {error.strerror}; make room, then --resume continues from the last "
                "checkpoint"
            ) from error
        raise


def _end_processes(trainer: Trainer, patience: float = 0) -> list[int]:
    """End the processes that this one has started.

    Returns:
        The exit codes of those that ended by themselves; for the first of them it waits `patience` seconds at most.
    """
    launcher = trainer.strategy.launcher
    if not isinstance(launcher, _SubprocessScriptLauncher):
        return []
    processes = [*launcher.procs]
    launcher.procs.clear()  # or the thread that watches them kills this process as well
    deadline = time.monotonic() + patience
    while not (codes := [code for process in processes if (code := process.poll()) is not None]):
        if not processes or time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    for process in processes:
        process.kill()
    return codes


def _keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks: else each step's temporaries are returned, and faulted in at the next.

    It makes a step on a CPU a seventh shorter. Other C libraries have no such setting, and are left alone.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # glibc's malloc.h
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for setting, size in ((mmap_threshold, 1 << 30), (trim_threshold, (1 << 31) - 1), (top_pad, 1 << 28)):
            mallopt(setting, size)


def _quieten_lightning() -> None:
    """Keep Lightning's hints, which our progress and our errors make superfluous, off the screen."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # batches are cut from arrays in memory: no worker would help
        ".*Experiment logs directory .* exists and is not empty.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*LeafSpec.*is deprecated.*",
        ".*is smaller than the logging interval.*",
    ):
        warnings.filterwarnings("ignore", message)
