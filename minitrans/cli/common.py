"""What several commands share: flags, loading a translator, reading a test set, and printing scores."""

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from minitrans.cli.arguments import Parser, bounded_number, core_count, positive_int
from minitrans.errors import UserError
from minitrans.text.lines import escape_controls, read_lines

if TYPE_CHECKING:
    from minitrans.translate.metrics import Scores
    from minitrans.translate.translator import Translator

TEXTS_HELP = "texts to translate; after --, they may begin with a dash"


def add_decoding(parser: Parser) -> None:
    """Add the flags that say how to translate."""
    parser.add_argument("--batch-tokens", type=positive_int, default=4096, help="source tokens in a batch")
    beams = bounded_number(int, 1, 200, "time and memory grow quadratically, and more find nothing better")
    parser.add_argument("--beam", type=beams, default=1, metavar="K", help="beams to search with; 1 is greedy")
    parser.add_argument(
        "--length-penalty",
        type=bounded_number(float, -10, 10, "beyond these, rounding decides"),
        default=1.0,
        metavar="A",
        help="rank beams by log-probability / length ** A",
    )
    parser.add_argument(
        "--split-sentences", action="store_true", help="cut each line into its sentences, and join their translations"
    )
    parser.add_argument("--no-cache", action="store_true", help="compute every prefix again, in PyTorch")
    parser.add_argument("--device", default="cpu", help="where to run: cpu, cuda, ...")
    parser.add_argument("--precision", choices=["float32", "bfloat16", "float64"], default="float32", help="arithmetic")
    add_common_flags(parser)


def add_common_flags(parser: Parser, compiled: bool = True, default_threads: int | None = None) -> None:
    """Add the flags that most commands have: compiled code or not, threads, tracebacks."""
    if compiled:
        parser.add_argument(
            "--compiled",
            choices=["auto", "off", "require"],
            default="auto",
            help="whether to use compiled code: auto, if it proves to give the model's own numbers; off, never; "
            "require, always, or stop with an error",
        )
    text = "CPU threads" if default_threads else "CPU threads; without it, all cores"
    parser.add_argument("--threads", type=core_count, default=default_threads, help=text)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_test_set_flags(parser: Parser, required: bool) -> None:
    """Add the flags that name a test set, and how to score on it."""
    parser.add_argument("--source", metavar="F", required=required, help="file to translate")
    parser.add_argument(
        "--reference",
        metavar="F",
        action="append",
        required=required,
        help="right translations, line by line; may be given several times: any of them is right, and an empty line in "
        "a file after the first is no translation",
    )
    parser.add_argument(
        "--tokenize",
        choices=["none", "13a", "intl", "zh", "char"],
        help="how BLEU splits words; none: only at spaces; default: zh for Chinese, char for Korean, Japanese, Thai "
        "and others without spaces, else 13a",
    )


def read_test_set(args: Namespace) -> tuple[list[str], list[str], list[list[str]]]:
    """The lines of --source, of the first --reference, and of each other one."""
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


def load_translator(run: str, args: Namespace) -> "Translator":
    """The run's translator, on the device and in the precision asked for."""
    if args.no_cache and args.compiled == "require":
        raise UserError("--no-cache computes in PyTorch, and --compiled require asks for C++; give one")
    import torch  # takes a second: usage errors come first

    from minitrans.translate.translator import Translator

    dtype = getattr(torch, args.precision)
    try:
        torch.empty(0, device=args.device, dtype=dtype)
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:  # no such device, or one without float64
        raise UserError(f"--device {args.device}: {str(error).splitlines()[0]}") from error
    translator = Translator.load(run, args.device, dtype, compiled="off" if args.no_cache else args.compiled)
    translator.split_sentences = args.split_sentences
    return translator


def decode_kwargs(args: Namespace, first_line: int) -> dict[str, Any]:
    """The keyword arguments, from the flags, that every method that translates takes."""
    return {"batch_tokens": args.batch_tokens, "use_cache": not args.no_cache, "first_line": first_line}


def print_scores(named: "Iterable[tuple[str, Scores]]") -> None:
    """Print a line for each name, then the signatures that say how the scores were computed."""
    for name, scores in named:
        print(
            f"{escape_controls(name)}: BLEU {scores.bleu:.2f}"
            f"{format_interval(scores.bleu_interval, scores.bleu_p)}  "
            f"chrF {scores.chrf:.2f}{format_interval(scores.chrf_interval, scores.chrf_p)}  "
            f"exact match {scores.exact_match:.1f}%  ({scores.sentences} sentences)"
        )
    print(f"BLEU {scores.bleu_signature}\nchrF {scores.chrf_signature}")


def format_interval(interval: tuple[float, float] | None, p: float | None) -> str:
    """A score's interval and p-value, where it has them."""
    if interval is None:
        return ""
    compared = "" if p is None else f", p = {p:.3f}{'*' if p < 0.05 else ''}"
    return f" (95% CI {interval[0]:.2f}-{interval[1]:.2f}{compared})"
