"""The command `translate`: translates arguments, files, pipes or what is typed at a prompt, line by line."""

import contextlib
import io
import logging
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, BinaryIO

from minitrans.cli.arguments import Parser, bounded_number, positive_int
from minitrans.cli.common import TEXTS_HELP, add_decoding, decode_kwargs, load_translator
from minitrans.errors import UserError
from minitrans.text.lines import ALL_LINE_NUMBERS, MAX_LINE_BYTES, iter_lines, raw_lines, read_ahead, seek_part

if TYPE_CHECKING:
    from rich.progress import Progress

    from minitrans.translate.translator import Translator

logger = logging.getLogger("minitrans")

CHUNK_LINES = 4096  # how many lines of a file are sorted by length and batched together


def add_translate_flags(parser: Parser) -> None:
    """Add the flags that say what to translate, and how."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("texts", metavar="TEXT", nargs="*", default=[], help=TEXTS_HELP)
    parser.add_argument("--input", metavar="F", help="file to translate; without one, standard input")
    parser.add_argument("--output", metavar="F", help="file to write; without one, standard output")
    parser.add_argument("--part", type=parse_part, metavar="K/N", help="translate the K-th of N parts of --input")
    resume = "keep finished lines in OUTPUT.partial; the same command, given again, goes on from there"
    parser.add_argument("--resume", action="store_true", help=resume)
    add_decoding(parser)
    n_best = "write the best N of the --beam K translations of each line: number of the line, score, text"
    parser.add_argument("--n-best", type=positive_int, metavar="N", help=n_best)
    parser.add_argument(
        "--scores",
        action="store_true",
        help="write each translation's score before it, and unsure if many such are wrong",
    )
    parser.add_argument(
        "--sample", type=positive_int, metavar="N", help="draw each token from the N likeliest; not with --beam"
    )
    parser.add_argument("--seed", type=bounded_number(int, 0, 2**32 - 1), default=1, help="decides what --sample draws")


def parse_part(text: str) -> tuple[int, int]:
    """K and N of the text K/N."""
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise ArgumentTypeError(f"it must be K/N, as 2/8, with K from 1 to N, not {text}")
    return int(k), int(n)


def translate_command(args: Namespace) -> int:
    """Translate texts from arguments, a file or standard input, line by line.

    Lines from a pipe are answered at once; a terminal gets a prompt. Standard error names the words that training
    never showed, and the translations that are unsure; for a file or a pipe, it only counts the unsure ones.
    """
    from minitrans.files import atomic_open, named_descriptor

    if args.texts and args.input:
        raise UserError("texts and --input are both given; give one")
    if args.n_best and args.n_best > args.beam:
        raise UserError(f"--n-best {args.n_best} is more than --beam {args.beam}; search with as many beams")
    if args.sample and (args.beam > 1 or args.n_best):
        raise UserError("--sample does not go together with --beam or --n-best; give one of them")
    if args.scores and (args.sample or args.n_best):
        raise UserError("--scores does not go together with --sample or --n-best, which has scores; give one of them")
    if (args.part or args.resume) and not os.path.isfile(args.input or ""):
        raise UserError("--part and --resume read a regular file; give its path with --input")
    if args.resume and (args.n_best or not args.output):
        raise UserError("--resume needs --output, and one line for each input line, so no --n-best; change the flags")
    if args.resume and os.path.exists(args.output):
        if os.path.samefile(args.input, args.output):
            raise UserError("--output is --input, which --resume would take for finished output; give another --output")
        if not os.path.isfile(args.output) or named_descriptor(args.output) is not None:
            raise UserError("--resume writes a regular file; give another --output")
        logger.warning("%s already exists; nothing is left to do", args.output)
        return 0
    translator = load_translator(args.run, args)
    with contextlib.ExitStack() as stack:
        bar: contextlib.AbstractContextManager[Progress | None] = contextlib.nullcontext()
        numbers = ALL_LINE_NUMBERS
        if args.texts:
            chunks: Iterable[Sequence[str]] = [args.texts]
        elif not args.input and sys.stdin is None:
            raise UserError("standard input is closed; give texts or --input")
        elif not args.input and sys.stdin.isatty():
            chunks = ([line] for line in iter_lines(prompt_lines(), "standard input"))
        else:
            name = args.input or "standard input"
            try:
                stream = open(args.input or sys.stdin.fileno(), "rb", closefd=bool(args.input))  # noqa: SIM115
            except OSError as error:
                raise UserError(f"cannot read {name}: {error.strerror}; give the path of a text file") from error
            if args.part or args.resume:
                numbers = seek_part(stack.enter_context(stream), *(args.part or (1, 1)))
            if args.resume:
                out = stack.enter_context(atomic_open(args.output, resume=True))
                done = sum(1 for _ in out)
                if done > len(numbers):
                    raise UserError(f"{out.name} has {done} lines for {len(numbers)} of text; remove it")
                numbers = numbers[done:]
                for _ in range(done):
                    stream.readline()
            if sys.stderr.isatty():
                bar = make_progress_bar(stream, numbers)
            chunks = read_ahead(stream, name, CHUNK_LINES, numbers)
        if not args.resume:
            out = stack.enter_context(atomic_open(args.output)) if args.output else sys.stdout.buffer
        prompt = not (args.texts or args.input) and sys.stdin.isatty()
        dialogue = prompt and not args.output and sys.stdout.isatty()
        unsure_display = "shown" if dialogue else "told" if args.texts or prompt else "counted"
        number, n_unsure = numbers.start, 0
        for chunk in chunks:
            with bar as progress:  # hidden while standard output is written, which may be the same terminal
                outputs = list(lines_and_unsure(translator, chunk, number, args, unsure_display))
                number += len(chunk)
                if progress:
                    progress.advance(progress.task_ids[0], len(chunk))
            out.writelines(line.encode() + b"\n" for line, _ in outputs)
            out.flush()
            n_unsure += sum(unsure for _, unsure in outputs)
        if n_unsure and unsure_display == "counted":
            advice = "" if args.scores or args.n_best else "; --scores says which"
            logger.warning("unsure of %d of %d lines%s", n_unsure, number - numbers.start, advice)
    return 0


def lines_and_unsure(
    translator: "Translator", lines: Sequence[str], first_line: int, args: Namespace, unsure_display: str
) -> Iterator[tuple[str, bool]]:
    """The lines to write for some input lines, numbered from `first_line`; and for each, whether it is unsure.

    If `unsure_display` is "shown", "(unsure)" follows a translation; if it is "told", a warning is logged.
    """
    from minitrans.translate.translator import Translation

    given = decode_kwargs(args, first_line)
    if args.sample:
        texts = translator.sample(lines, args.sample, args.seed, **given)
        unknown = map(translator.unknown_words, lines, texts)
        n_best = [[Translation(text, 0.0, unknown_words=words)] for text, words in zip(texts, unknown, strict=True)]
    elif args.n_best:
        n_best = translator.n_best(lines, args.beam, length_penalty=args.length_penalty, **given)
    else:
        best = translator.translations(lines, args.beam, length_penalty=args.length_penalty, **given)
        n_best = [[translation] for translation in best]
    for number, (first, *others) in enumerate(n_best, first_line):
        remarks = ["unsure"] * (first.unsure and unsure_display == "told")
        remarks += [f"not in the training data: {', '.join(first.unknown_words)}"] * bool(first.unknown_words)
        if remarks:
            logger.warning("line %d: %s", number, "; ".join(remarks))
        if args.n_best:
            yield f"{number}\t{first.score:.4f}\t{first.text}", first.unsure
            yield from ((f"{number}\t{t.score:.4f}\t{t.text}", False) for t in others[: args.n_best - 1])
        elif args.scores:
            yield f"{first.score:.4f}\t{'unsure' if first.unsure else ''}\t{first.text}", first.unsure
        else:
            yield f"{first.text} (unsure)" if unsure_display == "shown" and first.unsure else first.text, first.unsure


def make_progress_bar(stream: BinaryIO, line_numbers: range) -> "Progress":
    """A progress bar on standard error for the lines with these numbers; a pipe's total is unknown."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), "lines", TimeElapsedColumn(), "left", TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    total = None
    if stream.seekable():
        start = stream.tell()
        lines = takewhile(lambda line: len(line) <= MAX_LINE_BYTES, raw_lines(stream))
        total = sum(1 for _ in zip(line_numbers, lines, strict=False))
        stream.seek(start)
    bar.add_task("translating", total=total)
    return bar


def prompt_lines() -> Iterator[bytes]:
    """The lines of a terminal, each after a prompt, until end of file."""
    print("one sentence per line; Ctrl-D ends", file=sys.stderr)
    if sys.stdout.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # or `input` would raise an error at invalid UTF-8
        with contextlib.suppress(ImportError):  # some Pythons lack it
            import readline  # noqa: F401 (lets `input` edit lines, which it does only on a terminal)
        with contextlib.suppress(EOFError):
            while True:
                yield input("> ").encode(errors="surrogateescape") + b"\n"
    else:
        print("> ", end="", file=sys.stderr, flush=True)
        for line in sys.stdin.buffer:
            yield line
            print("> ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
