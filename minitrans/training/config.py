"""The settings of a run: YAML files and flags, checked against the signatures that use them."""

import difflib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import Trainer

from minitrans.data.corpus import DataConfig
from minitrans.errors import UserError
from minitrans.model.transformer import TransformerConfig
from minitrans.text.tokenizer import TokenizerConfig
from minitrans.training.precision import Setting

# What of Lightning's Trainer a run may set. The rest is set by `minitrans`, or serves no purpose here.
TRAINER_SETTINGS = {
    "accelerator",
    "strategy",
    "devices",
    "num_nodes",
    "max_epochs",
    "max_steps",
    "max_time",
    "limit_train_batches",
    "limit_val_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "log_every_n_steps",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "deterministic",
    "detect_anomaly",
}
FROM_TOKENIZER = {"vocab_size", "pad_id", "bos_id", "eos_id"}
NOT_SAVED = {"config", "run_dir", "resume", "overwrite", "debug"}  # about this command, not about the run


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Attributes:
        learning_rate: Peak learning rate of AdamW, reached at the end of the warm-up.
        warmup_steps: Optimizer steps over which the learning rate grows from 0; it then falls to 0 along a cosine.
        weight_decay: AdamW's weight decay.
        label_smoothing: Share of the target probability that is spread over the whole vocabulary.
        ema_decay: Decay, per optimizer step, of the averaged weights that are validated and kept.
        patience: Validations without a better BLEU after which training stops.
        checkpoint_every: Optimizer steps after which a checkpoint to resume from is written.
        checkpoint_minutes: Minutes after which one is written in any case.
        keep_checkpoints: How many of them are kept, besides the best weights.
        precision: Arithmetic: bf16, fp32, fp16, or auto for what the device is quick at.
        init_from: Run folder whose weights and tokenizer training begins with; without one, both are made anew.
    """

    learning_rate: float = 2e-3
    warmup_steps: int = 500
    weight_decay: float = 0.0
    label_smoothing: float = 0.1
    ema_decay: float = 0.998
    patience: int = 10
    checkpoint_every: int = 500
    checkpoint_minutes: float = 10.0
    keep_checkpoints: int = 2
    precision: Setting = "auto"
    init_from: str | None = None

    def __post_init__(self) -> None:
        """Check every value once, here."""
        for name in ("learning_rate", "checkpoint_minutes"):
            if not getattr(self, name) > 0:
                raise UserError(f"training.{name} must be above 0, got {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay"):
            if getattr(self, name) < 0:
                raise UserError(f"training.{name} must not be below 0, got {getattr(self, name)}")
        for name in ("label_smoothing", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"training.{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("patience", "checkpoint_every", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise UserError(f"training.{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run, and where it goes.

    Attributes:
        seed: Decides the initial weights, the order of the data and the dropout.
        model: Settings of `TransformerConfig`, without what the tokenizer decides.
        tokenizer: How to train the tokenizer.
        data: The corpus and its batches.
        training: The optimizer and its schedule.
        trainer: Settings of Lightning's Trainer.
        text: The merged settings as YAML, for the run folder.
        run_dir: The run folder.
        resume: Go on with the run in the folder.
        overwrite: Replace the run in the folder.
    """

    seed: int
    model: dict[str, Any]
    tokenizer: TokenizerConfig
    data: DataConfig
    training: TrainingConfig
    trainer: dict[str, Any]
    text: str
    run_dir: Path
    resume: bool
    overwrite: bool

    def transformer(self, vocab_size: int, pad_id: int, bos_id: int, eos_id: int) -> TransformerConfig:
        """The model's sizes, given those of a tokenizer.

        Raises:
            UserError: They do not fit together.
        """
        try:
            return TransformerConfig(vocab_size, pad_id, bos_id, eos_id, **self.model)
        except ValueError as error:
            raise UserError(str(error)) from error


def make_parser() -> ArgumentParser:
    """The command line of `minitrans train`: its schema is the signatures of what the settings go to."""
    parser = ArgumentParser(
        prog="minitrans train",
        description="Train a tokenizer and a model on a parallel corpus, evaluate it, and write a run folder.",
        print_config="--print-%s",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="YAML file with settings; flags after it override it")
    parser.add_argument("--run-dir", type=str | None, help="run folder (default: runs/ and the name of the YAML file)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the run folder")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in the run folder")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--seed", type=int, default=1, help="decides initial weights, order of data, and dropout")
    parser.add_class_arguments(TransformerConfig, "model", skip=FROM_TOKENIZER)
    parser.add_class_arguments(TokenizerConfig, "tokenizer")
    parser.add_class_arguments(DataConfig, "data")
    parser.add_class_arguments(TrainingConfig, "training")
    parser.add_class_arguments(Trainer, "trainer", skip={*inspect.signature(Trainer).parameters} - TRAINER_SETTINGS)
    return parser


def parse_config(argv: Sequence[str]) -> RunConfig:
    """Merge YAML and flags.

    Raises:
        UserError: An unknown key (the nearest known one is named), a wrong type, a value that makes no sense.
        SystemExit: After --help or --print-config, with code 0.
    """
    parser = make_parser()
    try:
        settings = parser.parse_args(list(argv))
    except ArgumentError as error:
        raise UserError(_explain(str(error), list(parser.get_defaults().keys()))) from error
    run_dir = settings.run_dir
    if run_dir is None:
        if not settings.config:
            raise UserError("neither --config nor --run-dir is given; say which run to make")
        run_dir = f"runs/{Path(str(settings.config[0])).stem}"
    sections = settings.as_dict()
    if settings.trainer.max_steps < 1 and settings.trainer.max_epochs is None:
        raise UserError("neither trainer.max_steps nor trainer.max_epochs says how long to train; set one")
    if settings.data.streaming:
        if settings.trainer.max_steps < 1 or settings.trainer.max_epochs is not None:
            raise UserError(
                "with data.streaming, an epoch has no end: set trainer.max_steps, and not trainer.max_epochs"
            )
        if isinstance(settings.trainer.val_check_interval, float | None):
            raise UserError("with data.streaming, set trainer.val_check_interval to a number of steps, such as 500")
    return RunConfig(
        seed=settings.seed,
        model=sections["model"],
        tokenizer=TokenizerConfig(**sections["tokenizer"]),
        data=DataConfig(**sections["data"]),
        training=TrainingConfig(**sections["training"]),
        trainer=sections["trainer"],
        text=yaml.safe_dump({k: v for k, v in sections.items() if k not in NOT_SAVED}, sort_keys=False),
        run_dir=Path(run_dir),
        resume=settings.resume,
        overwrite=settings.overwrite,
    )


def _explain(message: str, known: list[str]) -> str:
    """Put the parser's message on one line, with the nearest known key where it complains of an unknown one."""
    unknown = re.search(r"Group '(\S+)' does not accept option '(\S+)'", message)
    key = ".".join(unknown.groups()) if unknown else None
    if unknown := re.search(r"Option '(\S+)' is not accepted|unrecognized arguments: -*([^\s=]+)", message):
        key = unknown[1] or unknown[2]
    if key is not None:
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0)
        return f"there is no setting {key}; the nearest is {nearest[0]}"
    if wrong := re.search(r'Parser key "(\S+)":.*Subtypes: \[(.*?)\]\n.*Given value: (.*)', message, re.DOTALL):
        types = re.sub(r"<class '(\w+)'>", r"\1", wrong[2]).replace("typing.", "").replace("NoneType", "null")
        return f"{wrong[1]} is {wrong[3]}; it must be one of {types}"
    if wrong := re.search(r'Parser key "(\S+)":\s*Expected an? (.*?)\. Got value: (.*)', message, re.DOTALL):
        if choices := re.fullmatch(r"typing\.Literal\[(.*)\]", wrong[2].replace("'", "")):
            return f"{wrong[1]} is {wrong[3]}; it must be one of {choices[1]}"
        types = re.sub(r"<class '(\w+)'>", r"\1", wrong[2])
        return f"{wrong[1]} is {wrong[3]}; it must be of type {types}"
    return " ".join(message.split())
