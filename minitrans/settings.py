"""What settings may be: the range of every number, with its reason, and the YAML files that hold them."""

import os
import resource
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from minitrans.errors import UserError

CORES = os.cpu_count() or 1
_LARGEST, _DEEPEST = 1 << 16, 20  # bytes of a YAML file of settings, and how deep it may nest: ours nest three deep


class Range(NamedTuple):
    """The smallest and the largest value, why not more, and, where that is not plain, why not less."""

    least: float
    most: float
    why: str
    why_least: str = ""


_COUNT = Range(1, 10**9, "nobody waits for more")
_SIZE = Range(1, 2**16, "no model is as wide")
_SHARE = Range(0, 0.99, "of what is left nothing is learnt")
_TOKENS = Range(1, 2**16, "attention takes time and memory by the square of it")
_PROCESSES = Range(1, CORES, f"this machine has {CORES} cores")

# By the name of the setting or, without a dot, of the flag. A value may be None where the setting says so.
RANGES = {
    "seed": Range(0, 2**32 - 1, "NumPy takes 32 bits"),
    "model.d_model": _SIZE,
    "model.n_heads": _SIZE,
    "model.d_head": _SIZE,
    "model.d_ff": Range(1, 2**20, "no model is as wide"),
    "model.n_layers": Range(1, 1000, "no deeper one has been trained"),
    "model.max_len": _TOKENS,
    "model.dropout": _SHARE,
    "model.attention_dropout": _SHARE,
    "tokenizer.vocab_size": Range(261, 10**6, "no text has more words", "4 special ids and 256 bytes come first"),
    "tokenizer.character_coverage": Range(0.98, 1, "it is a share", "of less, too much is spelled in bytes"),
    "data.batch_tokens": Range(1, 10**6, "a batch of more takes tens of gigabytes"),
    "data.min_length": _TOKENS,
    "data.max_length": _TOKENS,
    "data.max_length_ratio": Range(1, 2**16, "no pair is as uneven"),
    "data.shuffle_buffer": Range(1, 10**8, "all of them are in memory"),
    "training.learning_rate": Range(1e-38, 10, "float32 holds no less, and no model learns with more"),
    "training.warmup_steps": _COUNT._replace(least=0),
    "training.weight_decay": Range(0, 1000, "more leaves nothing of the weights"),
    "training.label_smoothing": _SHARE,
    "training.ema_decay": Range(0, 0.999999, "an average over more steps never catches up"),
    "training.patience": _COUNT,
    "training.checkpoint_every": _COUNT,
    "training.checkpoint_minutes": Range(1e-9, 10**9, "it is a time, and nobody waits longer"),
    "training.keep_checkpoints": _COUNT,
    "trainer.num_nodes": Range(1, 10_000, "no cluster has more machines"),
    "trainer.max_epochs": _COUNT,
    "trainer.max_steps": _COUNT._replace(least=-1),  # -1 is no limit
    "trainer.limit_val_batches": _COUNT._replace(least=1e-9),  # a whole number, or a share
    "trainer.val_check_interval": _COUNT._replace(least=1e-9),
    "trainer.check_val_every_n_epoch": _COUNT,
    "trainer.log_every_n_steps": _COUNT._replace(least=0),
    "trainer.accumulate_grad_batches": _COUNT,
    "trainer.gradient_clip_val": Range(1e-9, 10**9, "no gradient is left of less, and none is as large"),
    "threads": _PROCESSES,
    "processes": _PROCESSES,
    "beam": Range(1, 200, "it takes time by the square of it, and finds nothing better"),
    "n_best": _COUNT,
    "sample": _COUNT,
    "length_penalty": Range(-10, 10, "beyond, rounding decides"),
    "batch_tokens": _COUNT,
}


def check_range(setting: str, value: Any, name: str | None = None) -> None:
    """Check one value; what is no number, or has no range, is not looked at.

    Args:
        setting: Its name in `RANGES`.
        value: What it is.
        name: What the user calls it, if that is something else.

    Raises:
        UserError: It is out of its range.
    """
    if setting not in RANGES or not isinstance(value, int | float):
        return
    least, most, why, why_least = RANGES[setting]
    if not least <= value <= most:
        bound, reason = (f"at most {most}", why) if value > most else (f"at least {least}", why_least)
        raise UserError(f"{name or setting} is {brief(value)}; it must be {bound}{f' ({reason})' * bool(reason)}")


def check_ranges(section: str, values: Mapping[str, Any]) -> None:
    """Check all values of a section, such as `model`; raises as `check_range` does."""
    for name, value in values.items():
        check_range(f"{section}.{name}", value)


def brief(value: Any) -> str:
    """A value for a message, in no more than 80 characters."""
    try:
        text = str(value)
    except ValueError:  # a number of thousands of digits, which Python does not print
        return "far too large"
    return text if len(text) <= 80 else f"{text[:77]}..."


def memory() -> int:
    """Bytes of memory that this process can have, as far as the system tells."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    with suppress(OSError, ValueError):  # it is there in a container that has a limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limit for limit in limits if limit > 0)


def read_settings(path: str | Path, load: Callable[[str], Any] = yaml.safe_load) -> Any:
    """Read a YAML file, which may be a stranger's: nothing large is made of it, and nothing in it can run code.

    Args:
        path: The file.
        load: Makes plain data of its text.

    Returns:
        Plain data: mappings, lists, texts, numbers, truth values and null.

    Raises:
        UserError: It cannot be read, is no YAML, or is larger than settings are: in bytes, in depth, or by aliases,
            a few of which may stand for billions of items.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a YAML file") from error
    if len(content) > _LARGEST:
        raise UserError(f"{path} has more than {_LARGEST} bytes; these are no settings")
    try:
        text = content.decode()
        _check_events(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        return load(text)
    except Exception as error:  # whatever YAML makes of a damaged file
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}; correct it") from error


def _check_events(events: Iterable[yaml.Event]) -> None:
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"it nests more than {_DEEPEST} deep")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"settings have no aliases, such as *{event.anchor}")
