"""The command line: flags and printing only, a file for each command, which imports what it needs when it runs.

Results go to standard output, everything else to standard error. Exit codes: 0 done; 1 a check failed; 2 bad input or
usage; 130 interrupted.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from jsonargparse import ArgumentParser, Namespace

import minitrans
from minitrans.arguments import make_parser, parse, unknown
from minitrans.cli.evaluate import evaluate_command, evaluate_flags
from minitrans.cli.explain import explain_command, explain_flags
from minitrans.cli.export import export_command, export_flags
from minitrans.cli.log import start_log
from minitrans.cli.train import distill_command, distill_flags, train_command, train_flags
from minitrans.cli.translate import translate_command, translate_flags
from minitrans.cli.verify import verify_command, verify_flags
from minitrans.errors import UserError
from minitrans.text.lines import visible

# What adds a command's flags, and what runs it; the latter's docstring tells what it does.
COMMANDS: dict[str, tuple[Callable[[ArgumentParser], None], Callable[[Namespace], int]]] = {
    "train": (train_flags, train_command),
    "distill": (distill_flags, distill_command),
    "translate": (translate_flags, translate_command),
    "evaluate": (evaluate_flags, evaluate_command),
    "verify": (verify_flags, verify_command),
    "explain": (explain_flags, explain_command),
    "export": (export_flags, export_command),
}


def parse_command(argv: Sequence[str]) -> tuple[str, Namespace]:
    """The command and its flags. Only its own parser is filled: that of `train` takes seconds."""
    parser = make_parser("minitrans", "A translation Transformer which proves its own attention.")
    parser.add_argument("--version", action="version", version=f"minitrans {minitrans.__version__}")
    commands = parser.add_subcommands(dest="command", metavar="COMMAND", title="commands")
    parsers = {name: make_parser("", " ".join((run.__doc__ or "").split())) for name, (_, run) in COMMANDS.items()}
    for name, of_command in parsers.items():
        commands.add_subcommand(name, of_command, help=of_command.description)
        of_command.prog = f"minitrans {name}"
    name = argv[0] if argv else ""
    if name in COMMANDS:
        add_flags, _ = COMMANDS[name]
        add_flags(parsers[name])
        return name, parse(parsers[name], argv[1:], parser)
    if name and not name.startswith("-"):
        raise unknown(f"there is no command {name} (see minitrans --help)", name, COMMANDS)
    return name, parse(parser, argv)


def run_command(argv: Sequence[str]) -> int:
    """Parse a command and run it."""
    if argv and argv[0] in ("train", "distill") and os.environ.get("LOCAL_RANK", "0") != "0":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a training; the first stops them
    name, args = parse_command(argv)
    if "threads" in args and args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)
    _, run = COMMANDS[name]
    return run(args)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that what is half written is removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def in_words(error: Exception) -> str | None:
    """What an exception tells the user; None if nobody has thought of it."""
    if isinstance(error, UserError):
        told = " ".join(line.strip() for line in str(error).splitlines())
        return told if len(told) < 900 else f"{told[:400]} ... {told[-400:]}"  # names can be as long as one likes
    if isinstance(error, MemoryError) or "not enough memory" in str(error) or "can't allocate" in str(error):
        return "there is not enough memory; give less at once, such as a lower --batch-tokens or data.batch_tokens"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EMFILE):
        forget_output()
        return f"cannot write {error.filename or 'the output'}: {error.strerror}; make room, or write elsewhere"
    return None


def forget_output() -> None:
    """Let Python end without trying once more to write what cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    start_log("--debug" in argv)
    try:
        with ended_by_sigterm():
            code = run_command(argv)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a fault can still be told
            return code
    except BrokenPipeError:  # the reader of our output has gone: no fault, and nobody to tell
        forget_output()
        return 0
    except (UserError, MemoryError, OSError, RuntimeError) as error:
        if "--debug" in argv or (told := in_words(error)) is None:
            raise
        print(f"minitrans: error: {visible(told)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"minitrans: interrupted{f': {error}' if error.args else ''}", file=sys.stderr)
        return 130
