"""The command line: parsing and printing only. Each command imports what it needs when it runs.

Results go to standard output, everything else to standard error. Exit codes: 0 done; 1 a check failed; 2 bad input or
usage; 130 interrupted.
"""

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from minitrans.errors import UserError

if TYPE_CHECKING:
    from minitrans.scoring import Scores
    from minitrans.translator import Translator

DESCRIPTIONS = {
    "train": "Train a model on a parallel corpus and write a run folder.",
    "translate": "Translate texts from arguments, a file or standard input, line by line; on a terminal it prompts.",
    "evaluate": "Translate a file and score it against references: BLEU, chrF, exact match.",
    "verify": "Measure every claim about attention and cached decoding, on a fresh model or on a trained run.",
}
CHUNK_LINES = 4096  # how many lines of a file are sorted by length and batched together


class Parser(argparse.ArgumentParser):
    """Reports wrong usage like any other bad input: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UserError(f"{message}; see {self.prog} --help")


def make_parser(command: str) -> Parser:
    """The flags of a command; those of `train` are the settings of a run, see `minitrans.training.config`."""
    parser = Parser(prog=f"minitrans {command}", description=DESCRIPTIONS[command], allow_abbrev=False)
    if command == "verify":
        parser.add_argument("run", metavar="RUN", nargs="?", help="run folder (default: a fresh random model)")
        parser.add_argument("--data", metavar="PATH", help="the run's corpus (default: data.path of its config.yaml)")
        parser.add_argument(
            "--self-test", action="store_true", help="sabotage the code in many ways, and show which checks notice"
        )
        parser.add_argument("--report", metavar="DIR", help="write the same with pictures as a page, DIR/index.html")
    else:
        parser.add_argument("run", metavar="RUN", help="run folder")
        parser.add_argument(
            "--batch-tokens", type=positive, default=4096, help="source tokens in a batch (default: %(default)s)"
        )
        parser.add_argument(
            "--processes", type=positive, default=1, help="processes that share the lines (default: %(default)s)"
        )
        parser.add_argument("--no-cache", action="store_true", help="compute every prefix anew: same output, slowly")
        parser.add_argument("--device", default="cpu", help="where to run: cpu, cuda, ... (default: %(default)s)")
        parser.add_argument(
            "--precision",
            choices=["float32", "bfloat16", "float64"],
            default="float32",
            help="arithmetic (default: %(default)s)",
        )
    if command == "translate":
        parser.add_argument("texts", metavar="TEXT", nargs="*", help="texts to translate")
        parser.add_argument("--input", metavar="F", help="file to translate (default: standard input)")
        parser.add_argument("--output", metavar="F", help="file to write (default: standard output)")
    if command == "evaluate":
        parser.add_argument("--source", metavar="F", required=True, help="file to translate")
        parser.add_argument("--reference", metavar="F", required=True, help="right translations, line by line")
    if command in ("evaluate", "verify"):
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--threads", type=positive, help="CPU threads, of all processes together (default: all cores)")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    start_log("--debug" in argv)
    try:
        return run_command(argv)
    except UserError as error:
        if "--debug" in argv:
            raise
        print(f"minitrans: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"minitrans: interrupted{f': {error}' if error.args else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: no fault, and nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def start_log(debug: bool) -> None:
    """Warnings go to standard error; with --debug, more."""
    logging.basicConfig(format="minitrans: %(levelname)s: %(message)s", level=logging.WARNING)
    logging.addLevelName(logging.WARNING, "warning")
    if debug:
        logging.getLogger("minitrans").setLevel(logging.INFO)


def run_command(argv: Sequence[str]) -> int:
    """Find the command, parse its flags, run it."""
    width = max(map(len, DESCRIPTIONS))
    overview = Parser(
        prog="minitrans",
        description="A translation Transformer which proves its own attention.",
        epilog="\n".join(f"  {command:{width}}  {text}" for command, text in DESCRIPTIONS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    overview.add_argument("command", choices=DESCRIPTIONS, metavar="COMMAND", help="what to do; each has its --help:")
    command = overview.parse_args(argv[:1]).command
    if command == "train":
        return train_command(argv[1:])
    args = make_parser(command).parse_intermixed_args(argv[1:])
    if args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)
    return {"translate": translate_command, "evaluate": evaluate_command, "verify": verify_command}[command](args)


def train_command(argv: Sequence[str]) -> int:
    """`minitrans train`."""
    if os.environ.get("LOCAL_RANK", "0") != "0":  # Ctrl-C reaches every process of the command; the first one stops all
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    from minitrans.training.config import parse_config

    config = parse_config(argv)
    from minitrans.training.run import train  # after the settings, so that a typing error is answered at once

    found = train(config)
    for split, scores in found.items():
        print_scores(split, scores)
    if found:  # in the first process
        print(f"run folder: {config.run_dir}")
    return 0


def translate_command(args: argparse.Namespace) -> int:
    """`minitrans translate`."""
    from minitrans.files import open_aside
    from minitrans.text import iter_lines

    if args.texts and args.input:
        raise UserError("texts and --input are both given; give one")
    with contextlib.ExitStack() as stack:
        prompting = False
        if args.texts:
            lines: Iterable[str] = args.texts
        elif args.input:
            lines = iter_lines(stack.enter_context(open_input(args.input)), args.input)
        else:
            prompting = sys.stdin.isatty()
            lines = iter_lines(prompted(sys.stdin.buffer) if prompting else sys.stdin.buffer, "standard input")
        from minitrans.workers import Workers  # it takes a second, in which a usage error has been answered

        workers = stack.enter_context(Workers(args.processes, partial(load_translator, args)))
        out = stack.enter_context(open_aside(args.output)) if args.output else sys.stdout.buffer
        lines, done = iter(lines), 0
        while chunk := list(islice(lines, 1 if prompting else args.processes * CHUNK_LINES)):
            for translation in workers.run(partial(translated, args=args), chunk, first_line=done + 1):
                out.write(translation.encode() + b"\n")
            out.flush()
            done += len(chunk)
    return 0


def translated(translator: "Translator", lines: Sequence[str], first_line: int, args: argparse.Namespace) -> list[str]:
    """The lines to write for these lines, of which the first has this number in its file."""
    return translator.translate(lines, args.batch_tokens, not args.no_cache, first_line)


def open_input(path: str) -> BinaryIO:
    """A file to read from."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a text file") from error


def prompted(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a terminal, each after a prompt, until end of file."""
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = stream.readline()
        if not line:
            print(file=sys.stderr)
            return
        yield line


def evaluate_command(args: argparse.Namespace) -> int:
    """`minitrans evaluate`."""
    import time
    from dataclasses import asdict

    from minitrans.text import read_lines

    sources, references = read_lines(args.source), read_lines(args.reference)
    if len(sources) != len(references):
        raise UserError(
            f"{args.source} has {len(sources)} lines, {args.reference} has {len(references)}; they must be as many"
        )
    if not sources:
        raise UserError(f"{args.source} is empty; there is nothing to score")
    from minitrans.workers import Workers

    with Workers(args.processes, partial(load_translator, args)) as workers:
        began = time.perf_counter()
        translations = workers.run(partial(translated, args=args), sources)
        seconds = time.perf_counter() - began
    from minitrans.scoring import score

    scores = score(translations, references, workers.translator.bundle.target)
    speed = len(sources) / seconds
    if args.json:
        print(json.dumps(asdict(scores) | {"seconds": seconds, "sentences_per_second": speed}))
    else:
        print_scores(Path(args.source).name, scores)
        print(f"{seconds:.1f} s, {speed:.0f} sentences/s")
    return 0


def verify_command(args: argparse.Namespace) -> int:
    """`minitrans verify`."""
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import track

    from minitrans import verify
    from minitrans.verify.page import make_folder, write_page
    from minitrans.verify.report import print_report
    from minitrans.verify.subject import fresh_model, random_subject, run_subject

    if args.report:
        make_folder(Path(args.report))  # before minutes are spent on what cannot be written
    progress = Console(stderr=True)
    with progress.status("measuring"):
        subject = run_subject(Path(args.run), args.data) if args.run else random_subject(fresh_model())
        report = verify.run(subject=subject)
    if args.self_test:
        total, disable = len(verify.SABOTAGES), not progress.is_terminal
        caught = track(verify.self_test(), "sabotaging", total, console=progress, disable=disable)
        report = replace(report, sabotages=list(caught))
    if args.report:
        print(f"page: {write_page(Path(args.report), report, subject)}", file=sys.stderr)
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        print_report(report, Console(width=None if sys.stdout.isatty() else 160))
    return 0 if report.passed else 1


def load_translator(args: argparse.Namespace) -> "Translator":
    """The run's translator, on the device and in the precision asked for."""
    start_log(args.debug)  # in a process that has been started to translate
    import torch

    from minitrans.translator import Translator

    try:
        return Translator.load(args.run, args.device, getattr(torch, args.precision))
    except (RuntimeError, AssertionError) as error:  # what torch raises for a device that is not there
        raise UserError(f"--device {args.device}: {str(error).splitlines()[0]}") from error


def print_scores(name: str, scores: "Scores") -> None:
    """One line of scores."""
    print(
        f"{name}: BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}  exact match {scores.exact_match:.1f}%  "
        f"({scores.sentences} sentences)  {scores.bleu_signature}"
    )
