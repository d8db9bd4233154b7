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
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, TextIO

from minitrans.errors import UserError
from minitrans.text.lines import clean

if TYPE_CHECKING:
    from rich.progress import Progress

    from minitrans.serving.scoring import Scores
    from minitrans.serving.translator import Translator

DESCRIPTIONS = {
    "train": "Train a model on a parallel corpus and write a run folder.",
    "translate": "Translate texts from arguments, a file or standard input, line by line; what comes through a pipe is "
    "answered at once, and a terminal is prompted.",
    "evaluate": "Translate a file and score it against references: BLEU, chrF, exact match.",
    "verify": "Measure every claim about attention and cached decoding, on a fresh model or on a trained run.",
    "export": "Write the model for another engine; with --source and --reference, score what that translates.",
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
    elif command == "export":
        parser.add_argument("run", metavar="RUN", help="run folder")
        parser.add_argument(
            "--format", choices=["ctranslate2"], default="ctranslate2", help="the engine (default: %(default)s)"
        )
        parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to write, a new one")
    else:
        parser.add_argument(
            "run",
            metavar="RUN",
            nargs="+" if command == "evaluate" else None,
            help="run folder" + ("; of several, each is compared with the first" if command == "evaluate" else ""),
        )
        parser.add_argument(
            "--batch-tokens", type=positive, default=4096, help="source tokens in a batch (default: %(default)s)"
        )
        parser.add_argument(
            "--beam", type=positive, default=1, metavar="K", help="beams to search with (default: %(default)s, greedy)"
        )
        parser.add_argument(
            "--length-penalty",
            type=float,
            default=1.0,
            metavar="A",
            help="beams are ranked by log-probability / length ** A (default: %(default)s)",
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
        parser.add_argument(
            "--n-best", type=positive, metavar="N", help="write the best N of K: number of the line, score, translation"
        )
        parser.add_argument(
            "--sample", type=positive, metavar="N", help="draw each token from the N likeliest, by their probabilities"
        )
        parser.add_argument("--seed", type=int, default=1, help="decides what --sample draws (default: %(default)s)")
    if command == "evaluate":
        parser.set_defaults(n_best=None, sample=None)
    if command in ("evaluate", "export"):
        required = command == "evaluate"
        parser.add_argument("--source", metavar="F", required=required, help="file to translate")
        parser.add_argument("--reference", metavar="F", required=required, help="right translations, line by line")
        parser.add_argument(
            "--tokenize",
            choices=["none", "13a", "intl", "zh", "char"],
            help="how BLEU splits words; none: at spaces alone (default: what suits the target language)",
        )
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
        print(f"minitrans: error: {clean(str(error))}", file=sys.stderr)  # a name in it may hold a line break
        return 2
    except KeyboardInterrupt as error:
        print(f"minitrans: interrupted{f': {error}' if error.args else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: no fault, and nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class StandardError(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is by then: while there is a progress bar, above it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look it up, and write."""
        self.setStream(sys.stderr)
        super().emit(record)


def start_log(debug: bool) -> None:
    """Warnings go to standard error; with --debug, more."""
    logging.basicConfig(
        format="minitrans: %(levelname)s: %(message)s", level=logging.WARNING, handlers=[StandardError()]
    )
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
    if command in ("translate", "evaluate") and args.beam > 1 and args.no_cache:
        raise UserError("--no-cache and --beam do not go together: beam search always uses the cache")
    if args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)
    commands = {
        "translate": translate_command,
        "evaluate": evaluate_command,
        "verify": verify_command,
        "export": export_command,
    }
    return commands[command](args)


def train_command(argv: Sequence[str]) -> int:
    """`minitrans train`."""
    if os.environ.get("LOCAL_RANK", "0") != "0":  # Ctrl-C reaches every process of the command; the first one stops all
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    from minitrans.training.config import parse_config

    config = parse_config(argv)
    from minitrans.training.run import train  # after the settings, so that a typing error is answered at once

    found = train(config)
    if found:  # in the first process
        print_scores(list(found.items()))
        print(f"run folder: {config.run_dir}")
    return 0


def translate_command(args: argparse.Namespace) -> int:
    """`minitrans translate`."""
    from minitrans.files import open_aside
    from minitrans.text.lines import iter_lines, read_ahead

    if args.texts and args.input:
        raise UserError("texts and --input are both given; give one")
    if args.n_best and args.n_best > args.beam:
        raise UserError(f"--n-best {args.n_best} is more than --beam {args.beam}; search with as many beams")
    if args.sample and (args.beam > 1 or args.n_best or args.no_cache):
        raise UserError("--sample does not go together with --beam, --n-best or --no-cache; give one of them")
    with contextlib.ExitStack() as stack:
        bar: contextlib.AbstractContextManager[Progress | None] = contextlib.nullcontext()
        if args.texts:
            chunks: Iterable[Sequence[str]] = [args.texts]
        elif not args.input and sys.stdin is None:
            raise UserError("standard input is closed; give texts or --input")
        elif not args.input and sys.stdin.isatty():
            chunks = ([line] for line in iter_lines(prompted(sys.stdin.buffer), "standard input"))
        else:
            name = args.input or "standard input"
            stream = open_input(args.input or sys.stdin.fileno(), name)
            if sys.stderr.isatty():
                bar = make_bar(stream)
            chunks = read_ahead(stream, name, args.processes * CHUNK_LINES)
        from minitrans.serving.workers import Workers  # it takes a second, in which a usage error has been answered

        workers = stack.enter_context(Workers(args.processes, partial(load_translator, args.run, args)))
        out = stack.enter_context(open_aside(args.output)) if args.output else sys.stdout.buffer
        done = 0
        for chunk in chunks:
            with bar as progress:  # not while standard output is written, which may be the same terminal
                lines = workers.run(partial(translated, args=args), chunk, done + 1)
                done += len(chunk)
                if progress:
                    progress.update(progress.task_ids[0], completed=done)
            out.writelines(line.encode() + b"\n" for line in lines)
            out.flush()
    return 0


def make_bar(stream: BinaryIO) -> "Progress":
    """A bar on standard error, for as many lines as a file has; those of a pipe nobody knows."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), "lines", TimeElapsedColumn(), "left", TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    total = None
    if stream.seekable():
        start = stream.tell()
        total = sum(1 for _ in stream)
        stream.seek(start)
    bar.add_task("translating", total=total)
    return bar


def translated(
    translator: "Translator", lines: Sequence[str], first_line: int, args: argparse.Namespace
) -> Iterator[str]:
    """What to write for some lines, the first of which has the number `first_line`."""
    if args.sample:
        yield from translator.sample(
            lines, args.sample, args.seed, batch_tokens=args.batch_tokens, first_line=first_line
        )
    elif args.n_best:
        found = translator.n_best(
            lines, args.beam, length_penalty=args.length_penalty, batch_tokens=args.batch_tokens, first_line=first_line
        )
        for number, translations in enumerate(found, first_line):
            yield from (f"{number}\t{t.score:.4f}\t{t.text}" for t in translations[: args.n_best])
    else:
        yield from translator.translate(
            lines,
            args.beam,
            length_penalty=args.length_penalty,
            batch_tokens=args.batch_tokens,
            use_cache=not args.no_cache,
            first_line=first_line,
        )


def open_input(file: str | int, name: str) -> BinaryIO:
    """A file to read from, by its path or by the descriptor it has already; `name` is for a message."""
    try:
        return open(file, "rb", closefd=isinstance(file, str))
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}; give the path of a text file") from error


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
    from dataclasses import asdict

    sources, references = read_pairs(args)
    bundles = [load_translator(run, args).bundle for run in args.run]
    for run, bundle in zip(args.run, bundles, strict=True):
        if (bundle.source, bundle.target) != (bundles[0].source, bundles[0].target):
            raise UserError(
                f"{run} translates {bundle.source} to {bundle.target}, {args.run[0]} {bundles[0].source} to "
                f"{bundles[0].target}; compare runs that translate the same languages"
            )
    outputs = [translate_timed(run, sources, args) for run in args.run]
    from minitrans.serving.scoring import compare, spread

    scores = compare([translations for translations, _ in outputs], references, bundles[0].target, args.tokenize)
    several = len(scores) > 1
    if args.json:
        runs: list[dict[str, object]] = [
            {name: value for name, value in asdict(found).items() if value is not None}
            | {"seconds": seconds, "sentences_per_second": len(sources) / seconds}
            for found, (_, seconds) in zip(scores, outputs, strict=True)
        ]
        named = [{"run": run} | fields for run, fields in zip(args.run, runs, strict=True)]
        print(json.dumps({"runs": named, **spread(scores)} if several else runs[0]))
        return 0
    print_scores(list(zip(args.run if several else [Path(args.source).name], scores, strict=True)))
    if several:
        mean, std = spread(scores)["mean"], spread(scores)["std"]
        print(
            f"mean (std): BLEU {mean['bleu']:.2f} ({std['bleu']:.2f})  chrF {mean['chrf']:.2f} ({std['chrf']:.2f})  "
            f"exact match {mean['exact_match']:.1f}% ({std['exact_match']:.1f}%)"
        )
        print(f"p: paired bootstrap against {args.run[0]}; * marks p < 0.05")
    seconds = sum(taken for _, taken in outputs)
    print(f"{seconds:.1f} s, {len(sources) * len(scores) / seconds:.0f} sentences/s")
    return 0


def read_pairs(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The lines of --source and of --reference."""
    from minitrans.text.lines import read_lines

    sources, references = read_lines(args.source), read_lines(args.reference)
    if len(sources) != len(references):
        raise UserError(
            f"{args.source} has {len(sources)} lines, {args.reference} has {len(references)}; they must be as many"
        )
    if not sources:
        raise UserError(f"{args.source} is empty; there is nothing to score")
    return sources, references


def translate_timed(run: str, sources: Sequence[str], args: argparse.Namespace) -> tuple[list[str], float]:
    """A run's translations of all sources, and the seconds that they took."""
    import time

    from minitrans.serving.workers import Workers

    with Workers(args.processes, partial(load_translator, run, args)) as workers:
        began = time.perf_counter()
        translations = workers.run(partial(translated, args=args), sources)
        return translations, time.perf_counter() - began


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


def export_command(args: argparse.Namespace) -> int:
    """`minitrans export`."""
    if (args.source is None) != (args.reference is None):
        raise UserError("--source and --reference go together; give both or neither")
    pairs = read_pairs(args) if args.source else None
    try:
        from minitrans.serving import export
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; install minitrans with its extra `export`") from error
    from minitrans.serving.translator import Translator

    translator, folder = Translator.load(args.run), Path(args.output)
    export.export(translator.bundle, folder)
    print(f"engine: {folder}", file=sys.stderr)
    if pairs is None:
        return 0
    import torch

    from minitrans.serving.scoring import compare

    sources, references = pairs
    outputs = {"minitrans float32": translator.translate(sources)}
    for compute_type in ("float32", "int8"):
        engine = export.load_engine(folder, compute_type, torch.get_num_threads())
        outputs[f"ctranslate2 {compute_type}"] = export.engine_translate(engine, translator.bundle, sources)
    scores = compare(list(outputs.values()), references, translator.bundle.target, args.tokenize)
    print_scores(list(zip(outputs, scores, strict=True)))
    ours = outputs["minitrans float32"]
    for name, theirs in list(outputs.items())[1:]:
        n_different = sum(a != b for a, b in zip(ours, theirs, strict=True))
        print(f"{name}: {n_different} of {len(ours)} translations differ from those of minitrans")
    return 0


def load_translator(run: str, args: argparse.Namespace) -> "Translator":
    """The run's translator, on the device and in the precision asked for."""
    start_log(args.debug)  # in a process that has been started to translate
    import torch

    from minitrans.serving.translator import Translator

    try:
        return Translator.load(run, args.device, getattr(torch, args.precision))
    except (RuntimeError, AssertionError) as error:  # what torch raises for a device that is not there
        raise UserError(f"--device {args.device}: {str(error).splitlines()[0]}") from error


def print_scores(named: "Sequence[tuple[str, Scores]]") -> None:
    """One line for each, then how they were computed."""
    for name, scores in named:
        print(
            f"{name}: BLEU {scores.bleu:.2f}{certainty(scores.bleu_interval, scores.bleu_p)}  "
            f"chrF {scores.chrf:.2f}{certainty(scores.chrf_interval, scores.chrf_p)}  "
            f"exact match {scores.exact_match:.1f}%  ({scores.sentences} sentences)"
        )
    print(f"BLEU {scores.bleu_signature}\nchrF {scores.chrf_signature}")


def certainty(interval: tuple[float, float] | None, p: float | None) -> str:
    """A score's interval and p-value, where it has them."""
    if interval is None:
        return ""
    compared = "" if p is None else f", p = {p:.3f}{'*' if p < 0.05 else ''}"
    return f" (95% CI {interval[0]:.2f}-{interval[1]:.2f}{compared})"
