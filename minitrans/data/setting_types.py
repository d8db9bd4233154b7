"""What settings may be: kinds of numbers for their annotations, and the YAML files that hold them.

The name of a kind is what messages and --help call it. A type checker sees the plain number.
"""

import os
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse.typing import restricted_number_type

from minitrans.errors import UserError

INT32 = 2**31 - 1  # larger numbers overflow where 32 bits are used

if TYPE_CHECKING:
    Count = int
    CountFromZero = int
    Seed = int
    Positive = float
    NotNegative = float
    Share = float
    Ratio = float
else:
    Count = restricted_number_type(f"a whole number from 1 to {INT32}", int, [(">=", 1), ("<=", INT32)])
    CountFromZero = restricted_number_type(f"a whole number from 0 to {INT32}", int, [(">=", 0), ("<=", INT32)])
    Seed = restricted_number_type(f"a whole number from 0 to {2**32 - 1}", int, [(">=", 0), ("<", 2**32)])  # as NumPy's
    Positive = restricted_number_type("a finite number above 0", float, [(">", 0), ("<", inf)])
    NotNegative = restricted_number_type("a finite number from 0", float, [(">=", 0), ("<", inf)])
    Share = restricted_number_type("a number from 0 to below 1", float, [(">=", 0), ("<", 1)])
    Ratio = restricted_number_type("a finite number from 1", float, [(">=", 1), ("<", inf)])

_MAX_BYTES, _MAX_DEPTH = 1 << 16, 20  # bytes of a YAML file of settings, and how deep it may nest: ours nest three deep


def read_safe_yaml(path: str | Path, load: Callable[[str], Any] = yaml.safe_load) -> Any:
    """Read a YAML file, which may be a stranger's: nothing large is made of it, and nothing in it can run code.

    Returns:
        Plain data: mappings, lists, texts, numbers, truth values and null.

    Raises:
        UserError: It cannot be read, is not YAML, or is larger than settings are: in bytes, in depth, or by aliases,
            a few of which may stand for billions of items.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe could be read only once, or would never end
        raise UserError(f"cannot read {path}: it is not a regular file; give the path of a YAML file")
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a YAML file") from error
    if len(content) > _MAX_BYTES:
        raise UserError(f"{path} has more than {_MAX_BYTES} bytes, too many for settings")
    try:
        text, loader = content.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _check_depth_and_aliases(yaml.parse(text, loader))
        _check_keys(yaml.compose(text, loader))
        return load(text)
    except Exception as error:  # a damaged file may cause any error
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}; correct it") from error


def _check_depth_and_aliases(events: Iterable[yaml.Event]) -> None:
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {_MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"settings have no aliases, such as *{event.anchor}")


def _check_keys(node: yaml.Node | None) -> None:
    """Refuse a key that is given twice in one mapping: its first value would be lost silently."""
    seen = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value in seen:
            raise yaml.YAMLError(f"{key.value} is given twice")
        seen.add(key.value)
        _check_keys(value)
