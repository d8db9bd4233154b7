"""What jsonargparse leaves to do: flags between the other words, and one line that says what is wrong with them.

A flag, a setting of a YAML file or a value that is wrong is found by comparing what is given with what the parser
knows, one by one, before the parser sees it.
"""

import difflib
from argparse import Action
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace, get_loader
from jsonargparse.typing import PositiveInt

from minitrans.errors import UserError
from minitrans.settings import RANGES, brief, check_range, read_settings

PRINT_CONFIG = "--print-config"  # the only flag whose value, after "=", may be left out


def make_parser(prog: str, description: str) -> ArgumentParser:
    """A parser as all of ours are."""
    return ArgumentParser(
        prog=prog, description=description, print_config=PRINT_CONFIG, exit_on_error=False, allow_abbrev=False
    )


def add_compiled(parser: ArgumentParser) -> None:
    """Add the switch between plain and compiled code: `minitrans.admission.Mode`, without importing torch for it."""
    parser.add_argument(
        "--compiled",
        type=Literal["auto", "off", "require"],
        default="auto",
        help="whether to use compiled code: auto, if it proves to give the model's own numbers; off, never; "
        "require, always, or stop with an error",
    )


def parse(parser: ArgumentParser, argv: Sequence[str], commands: ArgumentParser | None = None) -> Namespace:
    """Parse the words that follow a command; flags may stand between the others.

    Args:
        parser: What the command takes.
        argv: Its words.
        commands: The parser to which `parser` was added as a subcommand, if it was.

    Raises:
        UserError: A flag or a setting that is unknown (the nearest known one is named), wrong, or missing.
        SystemExit: After --help or --print-config, with code 0.
    """
    flags, others = _sort(parser, argv)
    places = [action for action in parser._actions if not action.option_strings]
    if len(others) > len(places) and not any(action.nargs in ("*", "+") for action in places):
        raise UserError(f"{others[len(places)]} is one argument too many; see {parser.prog} --help")
    given = {action.dest for action, _ in zip(places, others, strict=False)}
    for flag, value in flags:
        action = parser._option_string_actions.get(flag)
        if action is None or value is None:
            continue
        settings = _read(parser, value) if action.dest == "config" else {action.dest: value}
        for key, setting in settings.items():
            _check(parser, key, setting, f"{value}: {key}" if action.dest == "config" else flag)
        given |= {*settings}
    words = [flag if value is None else f"{flag}={value}" for flag, value in flags]
    words += ["--", *others] if others else []
    try:
        if commands is None:
            return parser.parse_args(words)
        name = parser.prog.split()[-1]
        return commands.parse_args([name, *words])[name]
    except ArgumentError as error:
        missing = [action for action in parser._actions if action.required and action.dest not in given]
        names = ", ".join(
            str(action.option_strings[-1] if action.option_strings else action.metavar) for action in missing
        )
        message = f"{names} must be given" if missing else " ".join(str(error).split())
        raise UserError(f"{message}; see {parser.prog} --help") from error


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """Say that there is nothing of this name, and what is nearest."""
    (nearest,) = difflib.get_close_matches(name, [*known], n=1, cutoff=0)
    return UserError(f"{what}; the nearest is {nearest}")


def _sort(parser: ArgumentParser, argv: Sequence[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """The flags, each with its value if it takes one, and all other words."""
    flags: list[tuple[str, str | None]] = []
    others: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            others += words
        elif not _is_flag(word):
            others.append(word)
        else:
            flag, equals, value = word.partition("=")
            known = parser._option_string_actions
            if word[:2] in known and not equals and len(word) > 2:  # -oFOLDER
                flag, equals, value = word[:2], "=", word[2:]
            if flag not in known and not _is_part(parser, flag):
                raise unknown(f"there is no flag {flag} (see {parser.prog} --help)", flag, known)
            if equals:
                flags.append((flag, value))
            elif flag == PRINT_CONFIG or (flag in known and known[flag].nargs == 0):
                flags.append((flag, None))
            else:
                following = next(words, "--")
                if _is_flag(following):
                    raise UserError(f"{flag} must be given a value; see {parser.prog} --help")
                flags.append((flag, following))
    return flags, others


def _is_flag(word: str) -> bool:
    """As argparse sees it: not a dash alone, a negative number, or a sentence that begins with a dash."""
    if not word.startswith("-") or word == "-" or " " in word.partition("=")[0]:
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _is_part(parser: ArgumentParser, flag: str) -> bool:
    """Whether a flag sets a part of a setting that is a mapping, such as --data.splits.train."""
    parents = [flag[:end] for end, sign in enumerate(flag) if sign == "."]
    actions = [parser._option_string_actions[name] for name in parents if name in parser._option_string_actions]
    return any(get_origin(kind) is dict for action in actions for kind in _kinds(action))


def _read(parser: ArgumentParser, file: str) -> dict[str, Any]:
    """The settings of a YAML file, by their dotted names.

    Raises:
        UserError: It cannot be read, or has one that the parser does not know.
    """
    tree = read_settings(file, get_loader("yaml"))
    if not isinstance(tree, dict):
        raise UserError(f"{file} holds no settings; write them as `name: value`")
    known = [*parser.get_defaults().keys()]
    found = dict(_flatten(tree, known))
    for key, value in found.items():
        inner = next((name for name in known if name.startswith(f"{key}.")), None)
        if inner:
            raise UserError(f"{file}: {key} is {brief(value)}; it must hold settings, such as {inner}")
        if key not in known:
            raise unknown(f"{file}: there is no setting {key}", key, known)
    return found


def _flatten(tree: Mapping[Any, Any], known: Sequence[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and key not in known:
            yield from _flatten(value, known, f"{key}.")
        else:
            yield key, value


def _check(parser: ArgumentParser, key: str, value: Any, name: str) -> None:
    """Have a value checked by itself.

    Raises:
        UserError: It is not of the type that the setting `key`, which the user calls `name`, has, or out of its range.
    """
    kinds = next((_kinds(action) for action in parser._actions if action.dest == key), [])
    if not kinds:
        return
    try:
        number = get_loader("yaml")(value) if key in RANGES and isinstance(value, str) else value
        parser.validate(Namespace({key: value}), skip_unset=False, skip_required=True)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError, OverflowError, yaml.YAMLError, ArgumentError) as error:
        quotes = (
            "; YAML takes on, off, yes and no for truth values, put them in quotes" if isinstance(value, bool) else ""
        )
        raise UserError(f"{name} is {brief(value)}; it must be {_in_words(kinds)}{quotes}") from error
    check_range(key, number, name)


def _kinds(action: Action) -> list[Any]:
    """The types of which a value may be; none where it is any text."""
    hint = getattr(action, "_typehint", None)
    return [*get_args(hint)] if get_origin(hint) in (Union, UnionType) else [] if hint is None else [hint]


def _in_words(kinds: Sequence[Any]) -> str:
    if kinds == [PositiveInt]:
        return "a whole number above 0"
    words: list[str] = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            words += map(str, get_args(kind))
        else:
            words.append("null" if kind is NoneType else str(kind) if get_origin(kind) else kind.__name__)
    return f"of type {words[0]}" if len(words) == 1 else f"one of {', '.join(words)}"
