"""The command `explain`: how a translation comes about, as a page or on the terminal."""

import shutil
import sys
from argparse import Namespace

import minitrans
from minitrans.cli.arguments import Parser
from minitrans.cli.common import TEXTS_HELP, add_common_flags
from minitrans.errors import UserError
from minitrans.text.lines import read_lines


def add_explain_flags(parser: Parser) -> None:
    """Add the flags that say what to translate, and where to show how it came about."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("texts", metavar="TEXT", nargs="*", default=[], help=TEXTS_HELP)
    parser.add_argument("--input", metavar="F", help="file of texts, one a line")
    parser.add_argument("-o", "--output", metavar="F", help="page to write; without one, lines on standard output")
    add_common_flags(parser)


def explain_command(args: Namespace) -> int:
    """Show how translations come about: where each head looks, what the cache holds, what each head is worth."""
    if args.texts and args.input:
        raise UserError("texts and --input are both given; give one")
    if not args.texts and not args.input:
        raise UserError("there is no text to explain; give one after RUN, or --input")
    texts = args.texts or read_lines(args.input)
    from minitrans.explain.terminal import draw_cross_attention
    from minitrans.explain.tracing import translate_sentences
    from minitrans.translate.translator import Translator

    translator = Translator.load(args.run, compiled=args.compiled)
    if args.output:
        minitrans.explain(translator, texts).save(args.output)
        print(f"page: {args.output}", file=sys.stderr)
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for i, each in enumerate(translate_sentences(translator, texts)):
        picture = "\n".join(draw_cross_attention(*each, width))
        sys.stdout.buffer.write(("\n" * (i > 0) + f"{picture}\n").encode())
        sys.stdout.buffer.flush()
    return 0
