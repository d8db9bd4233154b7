"""The command line: flags and printing only. Each command has its own file, and imports what it needs when it runs.

Results go to standard output, everything else to standard error. Exit codes: 0 done; 1 a check failed, or a bug;
2 bad input or usage, or a lack of disk or memory; 130 interrupted.
"""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from itertools import takewhile
from typing import Any

import minitrans
from minitrans.cli.arguments import Parser
from minitrans.cli.evaluate import add_evaluate_flags, evaluate_command
from minitrans.cli.explain import add_explain_flags, explain_command
from minitrans.cli.export import add_export_flags, export_command
from minitrans.cli.process_setup import interrupted_by_signals, set_gc_and_env, setup_training_process, start_log
from minitrans.cli.serve import add_serve_flags, serve_command
from minitrans.cli.train import distill_command, train_command
from minitrans.cli.translate import add_translate_flags, translate_command
from minitrans.cli.verify import add_verify_flags, verify_command
from minitrans.errors import UserError, nearest_name_error, unknown_argument_error
from minitrans.text.lines import escape_controls

# For each command, the function that adds its flags (None: its flags are a run's settings) and the one that runs it,
# whose docstring is the help.
COMMANDS: dict[str, tuple[Callable[[Parser], None] | None, Callable[[Any], int]]] = {
    "train": (None, train_command),
    "distill": (None, distill_command),
    "translate": (add_translate_flags, translate_command),
    "evaluate": (add_evaluate_flags, evaluate_command),
    "verify": (add_verify_flags, verify_command),
    "explain": (add_explain_flags, explain_command),
    "export": (add_export_flags, export_command),
    "serve": (add_serve_flags, serve_command),
}


def parse_command(argv: Sequence[str]) -> tuple[str, Any]:
    """The command's name, and its parsed flags."""
    about = {name: " ".join((run.__doc__ or "").split()) for name, (_, run) in COMMANDS.items()}
    name = argv[0] if argv else ""
    if name in COMMANDS:
        add_flags, _ = COMMANDS[name]
        if add_flags is None:
            from minitrans.training.config import parse_config  # it takes a second

            return name, parse_config(argv[1:], name, about[name])
        parser = Parser(f"minitrans {name}", about[name])
        add_flags(parser)
        return name, parser.parse(argv[1:])
    if name and not name.startswith("-"):
        raise nearest_name_error(f"there is no command {name} (see minitrans --help)", name, COMMANDS)
    parser = Parser("minitrans", "A translation Transformer which proves its own attention.")
    parser.add_argument("--version", action="version", version=f"minitrans {minitrans.__version__}")
    if name and name.partition("=")[0] not in parser._option_string_actions:
        raise unknown_argument_error(parser.prog, [name], parser._option_string_actions)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for name, help in about.items():
        commands.add_parser(name, help=help, prog=f"minitrans {name}", description=help)
    return name, parser.parse_args(argv)


def parse_and_run(argv: Sequence[str]) -> int:
    """Parse a command and run it."""
    if argv and argv[0] in ("train", "distill"):
        setup_training_process()
    name, args = parse_command(argv)
    if threads := getattr(args, "threads", None):
        import torch

        torch.set_num_threads(threads)
    if sys.stdout is None:
        if not getattr(args, "output", True):
            raise UserError("standard output is closed; give --output")
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    _, run = COMMANDS[name]
    return run(args)


def error_message(error: Exception) -> str | None:
    """The message for the user that an exception carries; None if the exception is unexpected."""
    if isinstance(error, UserError):
        text = " ".join(line.strip() for line in str(error).splitlines())
        return text if len(text) < 900 else f"{text[:400]} ... {text[-400:]}"  # names in it may have any length
    no_memory = re.search("not enough memory|[Cc]an.{1,2}t allocate|out of memory", str(error))
    if no_memory or isinstance(error, MemoryError):
        return "there is not enough memory; process less at once, with a lower --batch-tokens or data.batch_tokens"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EMFILE):
        discard_stdout()
        return f"cannot write {error.filename or 'the output'}: {error.strerror}; make room, or write elsewhere"
    if isinstance(error, PermissionError) and error.filename:
        return f"cannot use {error.filename}: {error.strerror}; ask its owner for access, or name another place"
    return None


def print_to_stderr(text: str) -> None:
    """Report how a command ended; whoever reads it may be gone, such as `tee` after Ctrl-C."""
    with contextlib.suppress(OSError):
        print(f"minitrans: {text}", file=sys.stderr)


def discard_stdout() -> None:
    """Keep Python, as it exits, from trying again to write output that cannot be written."""
    with contextlib.suppress(AttributeError, OSError):  # there is no standard output, or it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 (a daemon's may be closed)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: a terminal may lack characters
    debug = "--debug" in takewhile("--".__ne__, argv)  # what follows are texts
    start_log(debug)
    set_gc_and_env()
    try:
        with interrupted_by_signals():
            try:
                code = parse_and_run(argv)
            except SystemExit:  # after --help
                if sys.stdout:
                    sys.stdout.flush()
                raise
            sys.stdout.flush()  # here, where an error can still be reported
            return code
    except BrokenPipeError:  # whoever read our output has gone: not an error, and nobody to tell
        discard_stdout()
        return 0
    except (UserError, MemoryError, OSError, RuntimeError) as error:
        if debug or (text := error_message(error)) is None:
            raise
        print_to_stderr(f"error: {escape_controls(text)}")
        return 2
    except KeyboardInterrupt as error:
        print_to_stderr(f"interrupted{f': {error}' if error.args else ''}")
        discard_stdout()  # whoever reads it may have stopped reading
        return 130
