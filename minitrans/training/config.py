"""The settings of a run: YAML files and flags, checked against the signatures that use them."""

import inspect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Trainer

from minitrans.admission import Mode
from minitrans.arguments import add_compiled, make_parser, parse
from minitrans.data.settings import DataConfig
from minitrans.errors import UserError
from minitrans.model.transformer import TransformerConfig
from minitrans.serving.bundle import POSITIONS
from minitrans.settings import check_range, check_ranges, memory, read_settings
from minitrans.text.tokenizer import TokenizerConfig
from minitrans.training.precision import Setting

# What of Lightning's Trainer a run may set, beside its accelerator and its strategy. The rest is set by `minitrans`, or
# serves no purpose here.
TRAINER_SETTINGS = {
    "devices",
    "num_nodes",
    "max_epochs",
    "max_steps",
    "limit_val_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "log_every_n_steps",
    "accumulate_grad_batches",
    "gradient_clip_val",
}
CONFIG = "config.yaml"
# For each parameter: itself, its gradient, two moments and its average, float32; and most of that in a checkpoint.
BYTES = 4 * (5 + 4)
FROM_TOKENIZER = {"vocab_size", "pad_id", "bos_id", "eos_id"}


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
        keep_checkpoints: How many of them are kept, in addition to the best weights.
        precision: Arithmetic: bf16, fp32, fp16, or auto for what the device is fast at.
        init_from: Run folder whose weights and tokenizer training starts from; without one, both are new.
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
        """Check the values."""
        check_ranges("training", vars(self))


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run, and where it goes.

    Attributes:
        seed: Decides the initial weights, the order of the data and the dropout.
        compiled: Whether compiled code computes.
        model: Settings of `TransformerConfig`, without what the tokenizer decides.
        tokenizer: How to train the tokenizer.
        data: The corpus and its batches.
        training: The optimizer and its schedule.
        trainer: Settings of Lightning's Trainer.
        run_dir: The run folder.
        resume: Resume the run in the folder.
        overwrite: Replace the run in the folder.
    """

    seed: int
    compiled: Mode
    model: dict[str, Any]
    tokenizer: TokenizerConfig
    data: DataConfig
    training: TrainingConfig
    trainer: dict[str, Any]
    run_dir: Path
    resume: bool = False
    overwrite: bool = False

    @property
    def text(self) -> str:
        """The settings as YAML, for the run folder, without what says where files go on this machine."""
        saved = {name: value for name, value in asdict(self).items() if name not in ("run_dir", "resume", "overwrite")}
        del saved["data"]["cache_dir"]
        return yaml.safe_dump(saved, sort_keys=False)

    def __post_init__(self) -> None:
        """Check what `model`, `trainer` and the seed say; the other sections check themselves."""
        check_range("seed", self.seed)
        check_ranges("model", self.model)
        check_ranges("trainer", self.trainer)

    def transformer(self, vocab_size: int, pad_id: int, bos_id: int, eos_id: int) -> TransformerConfig:
        """The model's sizes, given those of a tokenizer.

        Raises:
            UserError: They do not fit together.
        """
        try:
            return TransformerConfig(vocab_size, pad_id, bos_id, eos_id, **self.model)
        except ValueError as error:
            raise UserError(str(error)) from error


def check_memory(sizes: TransformerConfig) -> None:
    """Compare what a model and its optimizer will take with what this machine has, before any of it is taken.

    Raises:
        UserError: It is not enough, or the table of positions is larger than what a run folder may ask for.
    """
    c = sizes
    layer = 4 * c.d_model * (3 * c.n_heads * c.head_size + c.d_ff)  # one of the encoder and one of the decoder
    n_parameters = c.n_layers * layer + c.vocab_size * c.d_model * (1 if c.tie_embeddings else 3)
    needed = BYTES * n_parameters + 4 * c.max_len * c.d_model
    if needed > memory():
        raise UserError(
            f"{n_parameters:.1e} parameters take {needed / 1e9:.3g} GB with their optimizer, and this machine has "
            f"{memory() / 1e9:.3g} GB; make model.d_model, d_ff or n_layers or tokenizer.vocab_size smaller"
        )
    if c.max_len * c.d_model > POSITIONS:
        raise UserError(
            f"model.max_len is {c.max_len}, and model.d_model {c.d_model}; their product must be at most {POSITIONS}"
        )


def add_settings(parser: ArgumentParser) -> None:
    """Add the settings of a run: their schema is the signatures of what they go to."""
    parser.add_argument("--config", action="config", help="YAML file with settings; flags after it override it")
    parser.add_argument(
        "--run-dir", type=str | None, help="run folder; without it, runs/ and the name of the YAML file"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--seed", type=int, default=1, help="decides initial weights, order of data, and dropout")
    add_compiled(parser)
    parser.add_class_arguments(TransformerConfig, "model", skip=FROM_TOKENIZER)
    parser.add_class_arguments(TokenizerConfig, "tokenizer")
    parser.add_class_arguments(DataConfig, "data")
    parser.add_class_arguments(TrainingConfig, "training")
    parser.add_class_arguments(Trainer, "trainer", skip={*inspect.signature(Trainer).parameters} - TRAINER_SETTINGS)
    # By their names alone: Trainer's own types would also import any class that a settings file names.
    parser.add_argument("--trainer.accelerator", type=str, default="auto", help="cpu, gpu, mps, or auto")
    parser.add_argument(
        "--trainer.strategy", type=Literal["auto", "ddp"], default="auto", help="ddp where several processes train"
    )


def add_train_flags(parser: ArgumentParser) -> None:
    """Add the settings, and what to do with a run that is there."""
    add_settings(parser)
    parser.add_argument("--resume", action="store_true", help="resume the run in the run folder")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in the run folder")


def parse_config(argv: Sequence[str]) -> RunConfig:
    """Merge YAML and flags: those of `minitrans train`.

    Raises:
        UserError: An unknown key (the nearest known one is named), a wrong type, a value that makes no sense.
        SystemExit: After --help or --print-config, with code 0.
    """
    parser = make_parser("minitrans train", "")
    add_train_flags(parser)
    return run_config(parse(parser, argv))


def run_config(settings: Namespace) -> RunConfig:
    """What has been parsed, checked as a whole.

    Raises:
        UserError: A value that makes no sense, or two that do not go together.
    """
    run_dir = settings.run_dir
    if run_dir is None:
        if not settings.config:
            raise UserError("neither --config nor --run-dir is given; give one of them")
        run_dir = f"runs/{Path(str(settings.config[0])).stem}"
    if settings.trainer.max_steps == 0 or (settings.trainer.max_steps < 0 and settings.trainer.max_epochs is None):
        raise UserError("neither trainer.max_steps nor trainer.max_epochs says how long to train; set one")
    if settings.data.streaming:
        if settings.trainer.max_steps < 1 or settings.trainer.max_epochs is not None:
            raise UserError(
                "with data.streaming, an epoch has no end: set trainer.max_steps, and not trainer.max_epochs"
            )
        if isinstance(settings.trainer.val_check_interval, float | None):
            raise UserError("with data.streaming, set trainer.val_check_interval to a number of steps, such as 500")
    sections = settings.as_dict()
    return RunConfig(
        seed=settings.seed,
        compiled=settings.compiled,
        model=sections["model"],
        tokenizer=TokenizerConfig(**sections["tokenizer"]),
        data=DataConfig(**sections["data"]),
        training=TrainingConfig(**sections["training"]),
        trainer=sections["trainer"],
        run_dir=Path(run_dir),
        resume=settings.get("resume", False),
        overwrite=settings.get("overwrite", False),
    )


def saved_settings(run: Path) -> dict[str, Any]:
    """The settings in a run folder, as they come out of `RunConfig.text`.

    Raises:
        UserError: They cannot be read, or say where files are to go, as a stranger might.
    """
    path = run / CONFIG
    try:
        settings = read_settings(path)
        where = settings["data"].pop("cache_dir", None)
        settings["data"].pop("workers", None)  # a run from before has it
    except (UserError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}); train again with --overwrite") from error
    if where is not None:
        raise UserError(f"{path} names data.cache_dir; remove that line, and give it as a flag if it is to be so")
    return {"compiled": "auto"} | settings
