"""The command line: flags and printing only. Each command imports what it needs when it runs.

Results go to standard output, everything else to standard error. Exit codes: 0 done; 1 a check failed; 2 bad input or
usage; 130 interrupted.
"""

import contextlib
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, Literal, TextIO

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveInt

import minitrans
from minitrans.arguments import add_compiled, make_parser, parse, unknown
from minitrans.errors import UserError
from minitrans.text.lines import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from minitrans.cachecheck.check import Report
    from minitrans.serving.confidence import Marks
    from minitrans.serving.scoring import Scores
    from minitrans.serving.translator import Translation, Translator
    from minitrans.serving.workers import Workers
    from minitrans.training.config import RunConfig
    from minitrans.verify.subject import Subject

logger = logging.getLogger("minitrans")

CHUNK_LINES = 4096  # how many lines of a file are sorted by length and batched together


def train_flags(parser: ArgumentParser) -> None:
    """The settings of a run, and what to do with a folder that is there."""
    from minitrans.training.config import add_train_flags

    add_train_flags(parser)


def distill_flags(parser: ArgumentParser) -> None:
    """The settings of a run."""
    from minitrans.training.config import add_settings

    add_settings(parser)


def translate_flags(parser: ArgumentParser) -> None:
    """What to translate, and how."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("texts", metavar="TEXT", nargs="*", default=[], help="texts to translate")
    parser.add_argument("--input", metavar="F", help="file to translate; without one, standard input")
    parser.add_argument("--output", metavar="F", help="file to write; without one, standard output")
    add_decoding(parser)
    parser.add_argument(
        "--n-best", type=PositiveInt, metavar="N", help="write the best N of K: number of the line, score, text"
    )
    parser.add_argument(
        "--scores", action="store_true", help="write before each translation its score, and unsure if it is that"
    )
    parser.add_argument(
        "--sample", type=PositiveInt, metavar="N", help="draw each token from the N likeliest, as likely as each is"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides what --sample draws")


def evaluate_flags(parser: ArgumentParser) -> None:
    """What to translate and to compare it with."""
    parser.add_argument("run", metavar="RUN", nargs="+", help="run folder; of several, each is compared with the first")
    add_references(parser, required=True)
    add_decoding(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def verify_flags(parser: ArgumentParser) -> None:
    """What to measure."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="run folder; without one, a fresh random model")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a Hugging Face model in place of ours: a folder; the name of an architecture, such as marian, for a "
        "small random model of it; or a name on the hub",
    )
    parser.add_argument("--data", metavar="PATH", help="the run's corpus, if it is not at data.path of its config.yaml")
    parser.add_argument("--self-test", action="store_true", help="sabotage the code, and show which checks notice")
    parser.add_argument("--sabotage", metavar="ID", help="break one thing, and show which claims fail")
    parser.add_argument("--list", action="store_true", help="list the sabotages")
    parser.add_argument("--report", metavar="DIR", help="write the same with pictures as a page, DIR/index.html")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_common(parser, threads=1)  # the products are tiny: threads would wait for each other longer than they compute


def export_flags(parser: ArgumentParser) -> None:
    """Where to write it, and what to score it on."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to write, a new one")
    add_references(parser, required=False)
    add_common(parser, compiled=False)


def explain_flags(parser: ArgumentParser) -> None:
    """What to translate, and where to show how it came about."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("texts", metavar="TEXT", nargs="*", default=[], help="texts to translate")
    parser.add_argument("--input", metavar="F", help="file of texts, one a line")
    parser.add_argument("-o", "--output", metavar="F", help="page to write; without one, lines on standard output")
    add_common(parser)


def add_decoding(parser: ArgumentParser) -> None:
    """How to translate."""
    parser.add_argument("--batch-tokens", type=PositiveInt, default=4096, help="source tokens in a batch")
    parser.add_argument("--beam", type=PositiveInt, default=1, metavar="K", help="beams to search with; 1 is greedy")
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, metavar="A", help="beams rank by log-probability / length ** A"
    )
    parser.add_argument("--processes", type=PositiveInt, default=1, help="processes that share the lines")
    parser.add_argument("--no-cache", action="store_true", help="compute every prefix again: same output, slower")
    parser.add_argument("--device", default="cpu", help="where to run: cpu, cuda, ...")
    parser.add_argument(
        "--precision", type=Literal["float32", "bfloat16", "float64"], default="float32", help="arithmetic"
    )
    add_common(parser)


def add_common(parser: ArgumentParser, compiled: bool = True, threads: int | None = None) -> None:
    """Who computes, with how many threads."""
    if compiled:
        add_compiled(parser)
    text = "CPU threads" if threads else "CPU threads, of all processes together; else all cores"
    parser.add_argument("--threads", type=PositiveInt, default=threads, help=text)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_references(parser: ArgumentParser, required: bool) -> None:
    """What to score on."""
    parser.add_argument("--source", metavar="F", required=required, help="file to translate")
    parser.add_argument(
        "--reference",
        metavar="F",
        action="append",
        required=required,
        help="right translations, line by line; may be given several times: any of them is right, and an empty line in "
        "a file after the first is none",
    )
    parser.add_argument(
        "--tokenize",
        type=Literal["none", "13a", "intl", "zh", "char"],
        help="how BLEU splits words; none: only at spaces; default: whatever suits the target language",
    )


def train_command(args: Namespace) -> int:
    """Train a model on a parallel corpus and write a run folder."""
    from minitrans.training.config import run_config

    config = run_config(args)
    from minitrans.training.run import train  # after the settings, so that a typing error is answered at once

    if found := train(config):  # in the first process
        print_run(config, found)
    return 0


def distill_command(args: Namespace) -> int:
    """Train a model on a corpus and on what teachers, trained first, make of it."""
    from minitrans.training.config import run_config

    config = run_config(args)
    from minitrans.training.distillation import distill

    for run, scores in distill(config):
        print_run(run, scores)
    return 0


def print_run(config: "RunConfig", scores: "dict[str, Scores]") -> None:
    """What has been trained."""
    print_scores(list(scores.items()))
    print(f"run folder: {visible(str(config.run_dir))}")


def translate_command(args: Namespace) -> int:
    """Translate texts from arguments, a file or standard input, line by line.

    What comes through a pipe is answered at once, and a terminal is prompted. Words that training never showed are
    named on standard error.
    """
    from minitrans.files import open_aside
    from minitrans.text.lines import iter_lines, read_ahead

    if args.texts and args.input:
        raise UserError("texts and --input are both given; give one")
    if args.n_best and args.n_best > args.beam:
        raise UserError(f"--n-best {args.n_best} is more than --beam {args.beam}; search with as many beams")
    if args.sample and (args.beam > 1 or args.n_best):
        raise UserError("--sample does not go together with --beam or --n-best; give one of them")
    if args.scores and (args.sample or args.n_best):
        raise UserError("--scores does not go together with --sample or --n-best, which has scores; give one of them")
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
        workers = stack.enter_context(start_workers(args.run, args))
        out = stack.enter_context(open_aside(args.output)) if args.output else sys.stdout.buffer
        dialogue = not (args.texts or args.input or args.output) and sys.stdin.isatty() and sys.stdout.isatty()
        done = 0
        for chunk in chunks:
            with bar as progress:  # not while standard output is written, which may be the same terminal
                lines = workers.run(partial(written, args=args, dialogue=dialogue), chunk, done + 1)
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


def written(
    translator: "Translator", lines: Sequence[str], first_line: int, args: Namespace, dialogue: bool
) -> Iterator[str]:
    """What to write for some lines, the first of which has the number `first_line`; in a dialogue doubts are added."""
    for number, line in enumerate(lines, first_line):
        if unknown := translator.unknown(line):
            logger.warning("line %d: not in the training data: %s", number, ", ".join(unknown))
    how = {"batch_tokens": args.batch_tokens, "use_cache": not args.no_cache, "first_line": first_line}
    if args.sample:
        yield from translator.sample(lines, args.sample, args.seed, **how)
    elif args.n_best:
        found = translator.n_best(lines, args.beam, length_penalty=args.length_penalty, **how)
        for number, translations in enumerate(found, first_line):
            yield from (f"{number}\t{t.score:.4f}\t{t.text}" for t in translations[: args.n_best])
    elif args.scores:
        scored = best(translator, lines, first_line, args)
        yield from (f"{t.score:.4f}\t{'unsure' if t.unsure else ''}\t{t.text}" for t in scored)
    elif dialogue:
        yield from (f"{t.text} (unsure)" if t.unsure else t.text for t in best(translator, lines, first_line, args))
    else:
        yield from translator.translate(lines, args.beam, length_penalty=args.length_penalty, **how)


def best(translator: "Translator", lines: Sequence[str], first_line: int, args: Namespace) -> "list[Translation]":
    """The best translation of each line, with its score."""
    return translator.translations(
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
    print("a sentence a line; Ctrl-D ends", file=sys.stderr)
    if stream is sys.stdin.buffer and sys.stdout.isatty():
        import readline  # noqa: F401 (lets `input` edit lines, which it does on a terminal alone)

        with contextlib.suppress(EOFError):
            while True:
                yield input("> ").encode(errors="surrogateescape") + b"\n"
        print(file=sys.stderr)
        return
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = stream.readline()
        if not line:
            print(file=sys.stderr)
            return
        yield line


def evaluate_command(args: Namespace) -> int:
    """Translate a file and score it against references: BLEU, chrF, exact match, and how often "unsure" is right."""
    from dataclasses import asdict

    sources, references, others = read_references(args)
    from minitrans.serving.bundle import load_bundle

    bundles = [load_bundle(Path(run)) for run in args.run]
    for run, bundle in zip(args.run, bundles, strict=True):
        if (bundle.source, bundle.target) != (bundles[0].source, bundles[0].target):
            raise UserError(
                f"{run} translates {bundle.source} to {bundle.target}, {args.run[0]} {bundles[0].source} to "
                f"{bundles[0].target}; compare runs that translate the same languages"
            )
    outputs = [translate_timed(run, sources, args) for run in args.run]
    from minitrans.serving.confidence import judge
    from minitrans.serving.scoring import by_line, compare, spread

    texts = [[translation.text for translation in translations] for translations, _ in outputs]
    scores = compare(texts, references, bundles[0].target, args.tokenize, others)
    right = by_line(references, others)
    marks = [
        judge(translations, right, bundle.threshold) if bundle.threshold else None
        for bundle, (translations, _) in zip(bundles, outputs, strict=True)
    ]
    several = len(scores) > 1
    if args.json:
        runs: list[dict[str, object]] = [
            {name: value for name, value in asdict(found).items() if value is not None}
            | (asdict(marked) if marked else {})
            | {"seconds": seconds, "sentences_per_second": len(sources) / seconds}
            for found, marked, (_, seconds) in zip(scores, marks, outputs, strict=True)
        ]
        named = [{"run": run} | fields for run, fields in zip(args.run, runs, strict=True)]
        print(json.dumps({"runs": named, **spread(scores)} if several else runs[0]))
        return 0
    names = args.run if several else [Path(args.source).name]
    print_scores(list(zip(names, scores, strict=True)))
    for name, marked in zip(names, marks, strict=True):
        if marked:
            print_marks(name, marked)
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


def read_references(args: Namespace) -> tuple[list[str], list[str], list[list[str]]]:
    """The lines of --source, of the first --reference, and of each other one."""
    from minitrans.text.lines import read_lines

    sources, (references, *others) = read_lines(args.source), map(read_lines, args.reference)
    for name, lines in zip(args.reference, (references, *others), strict=True):
        if len(sources) != len(lines):
            raise UserError(f"{args.source} has {len(sources)} lines, {name} has {len(lines)}; make them equal")
    if not sources:
        raise UserError(f"{args.source} is empty; there is nothing to score")
    for number, (source, reference) in enumerate(zip(sources, references, strict=True), 1):
        if others and source.strip() and not reference.strip():
            raise UserError(
                f"{args.reference[0]}, line {number} is empty; the first of several references must be complete"
            )
    return sources, references, others


def translate_timed(run: str, sources: Sequence[str], args: Namespace) -> "tuple[list[Translation], float]":
    """A run's translations of all sources, and the seconds that they took."""
    import time

    with start_workers(run, args) as workers:
        began = time.perf_counter()
        found = workers.run(partial(best, args=args), sources)
        return found, time.perf_counter() - began


def verify_command(args: Namespace) -> int:
    """Measure every claim about attention and cached decoding, on a fresh model, a trained run or somebody's model."""
    from rich.console import Console

    from minitrans.verify.page import make_folder, write_page
    from minitrans.verify.report import print_report

    if args.list:
        from minitrans.verify.proof import sabotages_for

        width = max(len(sabotage.id) for sabotage in sabotages_for(args.compiled))
        print(*(f"{sabotage.id:{width}}  {sabotage.fault}" for sabotage in sabotages_for(args.compiled)), sep="\n")
        return 0
    if args.report:
        make_folder(Path(args.report))  # before minutes are spent on what cannot be written
    report, subject = (measure_theirs if args.model else measure_ours)(args, Console(stderr=True))
    if args.report:
        print(f"page: {write_page(Path(args.report), report, subject)}", file=sys.stderr)
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        print_report(report, Console(width=None if sys.stdout.isatty() else 160))
    return 0 if report.passed else 1


def measure_ours(args: Namespace, progress: "Console") -> "tuple[Report, Subject]":
    """What is measured on a fresh model or a run, and on what."""
    from dataclasses import replace

    from rich.progress import track

    from minitrans.verify.proof import run, sabotaged, sabotages_for, self_test
    from minitrans.verify.subject import fresh_model, random_subject, run_subject

    if args.sabotage:
        if args.run or args.data or args.self_test:
            raise UserError("--sabotage breaks a fresh model: give no RUN, --data or --self-test with it")
        with progress.status("measuring"):
            report = sabotaged(args.sabotage, args.compiled)
        return replace(report, checks=[result for result in report.checks if not result.passed]), random_subject(
            fresh_model()
        )
    with progress.status("measuring"):
        subject = run_subject(Path(args.run), args.data) if args.run else random_subject(fresh_model())
        report = run(subject=subject, compiled=args.compiled)
    if args.self_test:
        total, disable = len(sabotages_for(args.compiled)), not progress.is_terminal
        caught = track(self_test(compiled=args.compiled), "sabotaging", total, console=progress, disable=disable)
        report = replace(report, sabotages=list(caught))
    return report, subject


def measure_theirs(args: Namespace, progress: "Console") -> "tuple[Report, str]":
    """What is measured on somebody else's model, and its name."""
    from dataclasses import replace

    if args.run or args.data or args.sabotage or args.compiled != "auto":
        raise UserError(
            "--model measures a model that is not ours: give no RUN, --data, --sabotage or --compiled with it"
        )
    from minitrans.cachecheck import LoadError, NotOfferedError, run, self_test

    with progress.status("measuring"):
        try:
            from minitrans.cachecheck.hugging_face import load

            model = load(args.model)
            report = run(model)
        except LoadError as error:
            raise UserError(str(error)) from error
        except NotOfferedError as error:
            raise UserError(f"--model {args.model} cannot compute a full pass here: {error}") from error
        if args.self_test:
            report = replace(report, sabotages=list(self_test(model)), all_catch=False)
    return report, model.name


def export_command(args: Namespace) -> int:
    """Write the model for another engine; with --source and --reference, score what that translates."""
    if (args.source is None) != (args.reference is None):
        raise UserError("--source and --reference go together; give both or neither")
    pairs = read_references(args) if args.source else None
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

    sources, references, others = pairs
    outputs = {"minitrans float32": translator.translate(sources)}
    for compute_type in ("float32", "int8"):
        engine = export.load_engine(folder, compute_type, torch.get_num_threads())
        outputs[f"ctranslate2 {compute_type}"] = export.engine_translate(engine, translator.bundle, sources)
    scores = compare(list(outputs.values()), references, translator.bundle.target, args.tokenize, others)
    print_scores(list(zip(outputs, scores, strict=True)))
    ours = outputs["minitrans float32"]
    for name, theirs in list(outputs.items())[1:]:
        n_different = sum(a != b for a, b in zip(ours, theirs, strict=True))
        print(f"{name}: {n_different} of {len(ours)} translations differ from those of minitrans")
    return 0


def explain_command(args: Namespace) -> int:
    """Show how translations come about: where each head looks, what the cache holds, what each head is worth."""
    import shutil

    from minitrans.text.lines import read_lines

    if args.texts and args.input:
        raise UserError("texts and --input are both given; give one")
    if not args.texts and not args.input:
        raise UserError("there is no text to explain; give one after RUN, or --input")
    texts = args.texts or read_lines(args.input)
    from minitrans.explain.terminal import draw
    from minitrans.serving.translator import Translator

    found = minitrans.explain(Translator.load(args.run, compiled=args.compiled), texts)
    if args.output:
        found.save(args.output)
        print(f"page: {args.output}", file=sys.stderr)
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    pictures = ("\n".join(draw(sentence, width)) + "\n" for sentence in found.sentences)
    sys.stdout.buffer.write("\n".join(pictures).encode())
    return 0


def start_workers(run: str, args: Namespace) -> "Workers":
    """The processes that translate with a run."""
    from minitrans.serving.workers import Workers  # it takes a second, in which a usage error has been answered

    return Workers(args.processes, partial(load_translator, run, copy(args)))


def load_translator(run: str, args: Namespace) -> "Translator":
    """The run's translator, on the device and in the precision asked for; `args` are its own."""
    start_log(args.debug)  # in a process that has been started to translate
    import torch

    from minitrans.serving.translator import Translator

    try:
        translator = Translator.load(run, args.device, getattr(torch, args.precision), compiled=args.compiled)
    except (RuntimeError, AssertionError) as error:  # what torch raises for a device that is not there
        raise UserError(f"--device {args.device}: {str(error).splitlines()[0]}") from error
    if not translator.compiled:
        args.compiled = "off"  # the processes that are started with the same `args` need not find it out once more
    return translator


class Visible(logging.Formatter):
    """One line for a record, in which names from files cannot move the cursor."""

    def format(self, record: logging.LogRecord) -> str:
        """Escape them."""
        return visible(super().format(record))


class StandardError(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is by then: while there is a progress bar, above it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look it up, and write."""
        self.setStream(sys.stderr)
        super().emit(record)


def start_log(debug: bool) -> None:
    """Warnings go to standard error; with --debug, more."""
    handler = StandardError()
    handler.setFormatter(Visible("minitrans: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.addLevelName(logging.WARNING, "warning")
    if debug:
        logging.getLogger("minitrans").setLevel(logging.INFO)


def print_scores(named: "Sequence[tuple[str, Scores]]") -> None:
    """One line for each, then how they were computed."""
    for name, scores in named:
        print(
            f"{visible(str(name))}: BLEU {scores.bleu:.2f}{certainty(scores.bleu_interval, scores.bleu_p)}  "
            f"chrF {scores.chrf:.2f}{certainty(scores.chrf_interval, scores.chrf_p)}  "
            f"exact match {scores.exact_match:.1f}%  ({scores.sentences} sentences)"
        )
    print(f"BLEU {scores.bleu_signature}\nchrF {scores.chrf_signature}")


def print_marks(name: str, marks: "Marks") -> None:
    """How the mark "unsure" fits the translations of a run or a file."""
    precision, recall = (
        "none" if share is None else f"{share:.1f}%" for share in (marks.unsure_precision, marks.unsure_recall)
    )
    print(
        f"{name}: unsure of {marks.unsure:.1f}%; of these {precision} wrong (precision), of the wrong {recall} among "
        f"them (recall); wrong: {marks.unsure_wrong}"
    )


def certainty(interval: tuple[float, float] | None, p: float | None) -> str:
    """A score's interval and p-value, where it has them."""
    if interval is None:
        return ""
    compared = "" if p is None else f", p = {p:.3f}{'*' if p < 0.05 else ''}"
    return f" (95% CI {interval[0]:.2f}-{interval[1]:.2f}{compared})"


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
