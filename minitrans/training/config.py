"""The settings of a run: YAML files and flags, checked against the signatures that use them."""

import argparse
import json
import os
import resource
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace, get_loader

from minitrans.data.setting_types import INT32, Count, CountFromZero, NotNegative, Positive, Seed, Share, read_safe_yaml
from minitrans.data.settings import DataConfig
from minitrans.errors import UserError, nearest_name_error, truncate, unknown_argument_error
from minitrans.model.transformer import TransformerConfig
from minitrans.text.tokenizer import TokenizerConfig
from minitrans.training.precision import PrecisionSetting
from minitrans.translate.backend import CompiledMode
from minitrans.translate.bundle import MAX_POSITIONS_NUMEL, count_parameters

CONFIG_FILE = "config.yaml"
# In float32: each parameter, its gradient, two moments and its average; and all but the gradient in a checkpoint.
TRAINING_BYTES_PER_PARAMETER = 4 * (5 + 4)
SETTINGS_FROM_TOKENIZER = {"vocab_size", "pad_id", "bos_id", "eos_id"}


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Attributes:
        learning_rate: Peak learning rate of AdamW, reached at the end of the warm-up.
        warmup_steps: Optimizer steps over which the learning rate grows linearly; it then falls to 0 along a cosine.
        weight_decay: AdamW's weight decay.
        label_smoothing: Share of the target probability that is spread over the whole vocabulary.
        ema_decay: Decay, per optimizer step, of the averaged weights that are validated and kept.
        patience: Validations without a better BLEU after which training stops.
        checkpoint_every: Optimizer steps after which a checkpoint to resume from is written.
        checkpoint_minutes: Minutes after which a checkpoint is written in any case.
        keep_checkpoints: Number of checkpoints kept, in addition to the best weights.
        precision: Arithmetic: bf16, fp32, fp16, or auto for what the device is fast at.
        init_from: Run folder whose weights and tokenizer training starts from; without one, both are new.
    """

    learning_rate: Positive = 2e-3
    warmup_steps: CountFromZero = 500
    weight_decay: NotNegative = 0.0
    label_smoothing: Share = 0.1
    ema_decay: Share = 0.998
    patience: Count = 10
    checkpoint_every: Count = 500
    checkpoint_minutes: Positive = 10.0
    keep_checkpoints: Count = 2
    precision: PrecisionSetting = "auto"
    init_from: str | None = None


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of Lightning's Trainer that a run may change. The others are set by `minitrans`, or have no use here.

    Attributes:
        accelerator: Where to train: cpu, gpu, mps, or auto for the best one available.
        strategy: ddp where several processes train.
        devices: How many processes or accelerators, or which; auto: one process, or all accelerators.
        num_nodes: Machines that train together.
        max_epochs: Passes over the training pairs after which training ends; null: as many as max_steps allows.
        max_steps: Optimizer steps after which training ends; -1: as many as max_epochs allows.
        limit_val_batches: Compute the validation loss on this many batches (a whole number), or on this share of them,
            at least one, those of the longest sentences; null: on all. BLEU is always that of the whole split.
        val_check_interval: Validate after this many batches (a whole number), or after this share of an epoch; null:
            after each epoch.
        check_val_every_n_epoch: Validate only at every n-th epoch; null: val_check_interval counts across epochs.
        log_every_n_steps: Optimizer steps after which the loss is logged; 0: it is not logged.
        accumulate_grad_batches: Batches whose gradients make one step.
        gradient_clip_val: Largest norm of the gradient; a gradient with a larger one is scaled down to it.
    """

    accelerator: str = "auto"
    strategy: Literal["auto", "ddp"] = "auto"
    devices: list[int] | str | int = "auto"
    num_nodes: Count = 1
    max_epochs: Count | None = None
    max_steps: int = -1
    limit_val_batches: int | float | None = None
    val_check_interval: int | float | None = None
    check_val_every_n_epoch: Count | None = 1
    log_every_n_steps: CountFromZero = 50
    accumulate_grad_batches: Count = 1
    gradient_clip_val: Positive | None = None


# The classes that hold the settings of each section; their annotations say what a value must be.
SECTIONS = {
    "model": TransformerConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "trainer": TrainerConfig,
}
TOP_LEVEL_TYPES = {"seed": Seed, "compiled": CompiledMode, "run_dir": str | None}  # the others are switches
TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a mapping of texts",
    dict[str, Share]: "a mapping of numbers from 0 to below 1",
    list: "a list",
    NoneType: "null",
}


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run, and its folder; `model` leaves out what the tokenizer decides."""

    seed: int
    compiled: CompiledMode
    model: dict[str, Any]
    tokenizer: TokenizerConfig
    data: DataConfig
    training: TrainingConfig
    trainer: dict[str, Any]
    run_dir: Path
    resume: bool = False
    overwrite: bool = False

    @property
    def yaml_text(self) -> str:
        """The settings as YAML, for the run folder, without those that say where this machine keeps files."""
        saved = {name: value for name, value in asdict(self).items() if name not in ("run_dir", "resume", "overwrite")}
        del saved["data"]["cache_dir"]
        return yaml.safe_dump(saved, sort_keys=False)

    def transformer_config(self, vocab_size: int, pad_id: int, bos_id: int, eos_id: int) -> TransformerConfig:
        """The model's sizes, given those of a tokenizer.

        Raises:
            UserError: They do not fit together.
        """
        try:
            return TransformerConfig(vocab_size, pad_id, bos_id, eos_id, **self.model)
        except ValueError as error:
            raise UserError(str(error)) from error


def check_model_memory(c: TransformerConfig) -> None:
    """Compare the memory that a model and its optimizer need with this machine's, before any is allocated.

    Raises:
        UserError: This machine has too little, or the table of positions is larger than a run folder may ask for.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    with suppress(OSError, ValueError):  # the file exists in a container that has a limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    memory = min(limit for limit in limits if limit > 0)
    n_parameters = count_parameters(c)
    needed = TRAINING_BYTES_PER_PARAMETER * n_parameters + 4 * c.max_len * c.d_model
    if needed > memory:
        raise UserError(
            f"{n_parameters:.1e} parameters take {needed / 1e9:.3g} GB with their optimizer, and this machine has "
            f"{memory / 1e9:.3g} GB; make model.d_model, d_ff or n_layers or tokenizer.vocab_size smaller"
        )
    if c.max_len * c.d_model > MAX_POSITIONS_NUMEL:
        raise UserError(
            f"model.max_len is {c.max_len}, and model.d_model {c.d_model}; their product "
            f"must be at most {MAX_POSITIONS_NUMEL}"
        )


def parse_config(argv: Sequence[str], command: str = "train", description: str = "") -> RunConfig:
    """Merge YAML files and the flags of `train` or `distill`, later ones overriding earlier ones; check the result.

    Raises:
        UserError: An unknown key (the nearest known one is named), a wrong type, a value that makes no sense, or two
            that do not go together.
        SystemExit: After --help or --print-config, with code 0.
    """
    prog, helping = f"minitrans {command}", not {"-h", "--help"}.isdisjoint(argv)
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [--config FILE] [--SECTION.SETTING VALUE ...] [...]",
        description=description,
        epilog=f"Settings are in the file, or are flags such as --model.d_model 256. `{prog} --help SECTION` lists "
        f"those of a section: {', '.join(SECTIONS)}.",
        print_config="--print-config",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="YAML file with settings; flags after it override it")
    parser.add_argument("--run-dir", type=str | None, help="run folder; without it, runs/ and the YAML file's name")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--seed", type=Seed, default=1, help="decides initial weights, order of data, noise, dropout")
    compiled = "use compiled code: auto, if it gives the model's own numbers; off, never; require, always, or stop"
    parser.add_argument("--compiled", type=CompiledMode, default="auto", help=compiled)
    if command == "train":
        parser.add_argument("--resume", action="store_true", help="resume the run in the run folder")
        parser.add_argument("--overwrite", action="store_true", help="replace the run in the run folder")
    for section, kind in SECTIONS.items():
        if section in argv or not helping:  # all of them would fill many screens
            parser.add_class_arguments(kind, section, skip=SETTINGS_FROM_TOKENIZER if section == "model" else set())
    if helping:
        parser.parse_args(["--help"])
    for file in _flag_values(argv, "--config"):
        _check_settings(parser, file)
    for section in SECTIONS:
        for file in filter(os.path.isfile, _flag_values(argv, f"--{section}")):
            _check_settings(parser, file, section)
    try:
        settings = parser.parse_args(argv)
    except (ArgumentError, TypeError, ValueError, OverflowError, yaml.YAMLError) as error:
        raise _reword_parser_error(parser, argv, " ".join(str(error).split())) from error
    return _build_run_config(settings.clone(with_meta=False))  # without the names of files that hold a section


def _flag_values(argv: Sequence[str], flag: str) -> list[str]:
    """The values that the command line gives to one flag."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(flag, action="append", dest="values")
    try:
        return parser.parse_known_args(argv)[0].values or []
    except ArgumentError:  # the flag has no value: parsing all flags will report that
        return []


def _check_settings(parser: ArgumentParser, file: str, section: str = "") -> None:
    """Check each setting of a YAML file by itself: jsonargparse names neither the file nor the nearest setting.

    The file holds all settings, or those of one section.
    """
    tree = read_safe_yaml(file, get_loader("yaml"))
    if not isinstance(tree, dict):
        raise UserError(f"{file} holds no settings; write them as `name: value`")
    tree = {section: tree} if section else tree
    known = {*parser.get_defaults().keys()} - {"config"}
    for key, value in _flatten_settings(tree, known):
        if key in SECTIONS:
            raise _setting_type_error(f"{file}: {key}", key, value)
        if key not in known:
            raise nearest_name_error(f"{file}: there is no setting {key}", key, known)
        try:
            parser.validate(Namespace({key: value}), skip_unset=False, skip_required=True)  # type: ignore[no-untyped-call]
        except (TypeError, ValueError, OverflowError) as error:
            raise _setting_type_error(f"{file}: {key}", key, value) from error


def _flatten_settings(tree: Mapping[Any, Any], leaves: Container[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a tree, by their dotted names."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and key not in leaves:
            yield from _flatten_settings(value, leaves, f"{key}.")
        else:
            yield key, value


def _reword_parser_error(parser: ArgumentParser, argv: Sequence[str], message: str) -> UserError:
    """Say what jsonargparse means in the terms of the command line."""
    flags = {key: f"--{key if '.' in key else key.replace('_', '-')}" for key in parser.get_defaults().keys()}  # noqa: SIM118
    if words := message.partition("unrecognized arguments: ")[2].split():
        return unknown_argument_error(parser.prog, words, [*flags.values(), "--help", "--print-config"])
    if missing := message.partition("the following arguments are required: ")[2]:
        names = ", ".join(f"--{key}" for key in missing.split(", "))
        return UserError(f"{names} must be given; see {parser.prog} --help")
    key = message.partition('Parser key "')[2].partition('"')[0]
    flag = flags.get(key, f"--{key}")
    parts = [word for word in argv if word.startswith(f"{flag}.")]
    if parts and key not in {"data.splits", "data.noise", *SECTIONS}:
        return unknown_argument_error(parser.prog, parts, flags.values())  # a part of a setting that has no parts
    if values := _flag_values(argv, flag):
        return _setting_type_error(flag, key, values[-1])
    if parts:
        given = {name: _flag_values(argv, name) for name in (word.partition("=")[0] for word in parts)}
        return _setting_type_error(flag, key, {name.removeprefix(f"{flag}."): v[-1] for name, v in given.items() if v})
    return UserError(f"{message}; see {parser.prog} --help")


def _setting_type_error(name: str, key: str, value: Any) -> UserError:
    """Say what a setting must be; `name` is what the user calls it."""
    if key in SECTIONS:
        return UserError(
            f"{name} is {truncate(value)}; it must hold settings, such as {key}.{[*get_type_hints(SECTIONS[key])][-1]}"
        )
    section, _, field = key.rpartition(".")
    hint = get_type_hints(SECTIONS[section])[field] if section else TOP_LEVEL_TYPES.get(key, bool)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType, Literal) else [hint]
    described = [TYPE_NAMES.get(kind) or TYPE_NAMES.get(get_origin(kind) or kind) for kind in kinds]
    names = [word or getattr(kind, "__name__", str(kind)) for word, kind in zip(described, kinds, strict=True)]
    quotes = "; YAML takes on, off, yes and no for truth values; put them in quotes" if isinstance(value, bool) else ""
    return UserError(f"{name} is {truncate(value)}; it must be {' or '.join(names)}{quotes}")


def _build_run_config(settings: Namespace) -> RunConfig:
    """Check the parsed settings as a whole, and return them."""
    for name in ("run_dir", "data.path", "data.cache_dir", "training.init_from"):
        if settings[name] == "":
            raise UserError(f"{name} is empty; give a path")
        if settings[name] is not None:
            settings[name] = os.path.expandvars(os.path.expanduser(settings[name]))  # no shell does it in a file
            if settings[name].encode(errors="ignore").decode() != settings[name]:  # config.yaml could not be read again
                raise UserError(f"{name} is {truncate(settings[name])}, which is not UTF-8; rename it")
    run_dir = settings.run_dir
    if run_dir is None:
        if not settings.config:
            raise UserError("neither --config nor --run-dir is given; give one of them")
        run_dir = f"runs/{Path(str(settings.config[0])).stem}"
    if "://" in run_dir or "::" in run_dir:  # fsspec, which Lightning asks, takes these for another machine's
        raise UserError(f"run_dir is {run_dir}; give a folder on this machine, without :: in its name")
    try:
        with suppress(FileNotFoundError):
            os.listdir(run_dir.encode())
    except (OSError, ValueError) as error:  # the latter from a null, or a --config that is not UTF-8
        raise UserError(f"cannot use {run_dir}: {getattr(error, 'strerror', error)}; give another --run-dir") from error
    if settings.trainer.max_steps == 0 or (settings.trainer.max_steps < 0 and settings.trainer.max_epochs is None):
        raise UserError("neither trainer.max_steps nor trainer.max_epochs says how long to train; set one")
    for name in ("limit_val_batches", "val_check_interval"):
        limit = settings.trainer[name]
        if limit is not None and (not limit > 0 or (limit > 1 and limit % 1)):
            raise UserError(f"trainer.{name} is {limit}; it must be a share up to 1 or a whole number, above 0")
        if limit is not None and limit > 1:
            settings.trainer[name] = int(limit)  # YAML reads 1e3 as a float
    for section in SECTIONS:
        for name, value in settings[section].items():
            if isinstance(value, int) and abs(value) > INT32:
                raise UserError(f"{section}.{name} is {truncate(value)}; it must fit into 32 bits")
    if settings.data.streaming:
        if settings.trainer.max_steps < 1 or settings.trainer.max_epochs is not None:
            raise UserError(
                "with data.streaming, an epoch has no end: set trainer.max_steps, and not trainer.max_epochs"
            )
        if settings.trainer.check_val_every_n_epoch not in (1, None):
            raise UserError("with data.streaming, an epoch has no end: set trainer.check_val_every_n_epoch to null")
        if isinstance(settings.trainer.val_check_interval, float | None):
            raise UserError("with data.streaming, set trainer.val_check_interval to a number of batches, such as 500")
    sections = json.loads(json.dumps({name: settings[name].as_dict() for name in SECTIONS}))  # plain numbers, for YAML
    return RunConfig(
        seed=int(settings.seed),
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
    """The settings in a run folder, as `RunConfig.yaml_text` gives them: without `data.cache_dir`.

    Raises:
        UserError: They cannot be read.
    """
    path = run / CONFIG_FILE
    try:
        settings = read_safe_yaml(path)
        if missing := [name for name in SECTIONS if not isinstance(settings.get(name), dict)]:
            raise UserError(f"it has no section {missing[0]}")
    except (UserError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}); train again with --overwrite") from error
    settings["data"].pop("cache_dir", None)
    return settings
