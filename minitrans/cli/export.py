"""The command `export`: a trained model for another engine."""

import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

from minitrans.cli.arguments import Parser
from minitrans.cli.common import add_common_flags, add_test_set_flags, print_scores, read_test_set
from minitrans.errors import UserError

EXTRA_BY_FORMAT = {"ctranslate2": "export", "transformers": "hf"}  # the extra that each format needs


def add_export_flags(parser: Parser) -> None:
    """Add the flags that say where to write the model, for which engine, and what to score it on."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="new folder to write")
    parser.add_argument("--format", choices=EXTRA_BY_FORMAT, default="ctranslate2", help="the engine to write for")
    parser.add_argument("--license", metavar="L", help="for the model card of transformers' format, such as apache-2.0")
    add_test_set_flags(parser, required=False)
    add_common_flags(parser, compiled=False)


def export_command(args: Namespace) -> int:
    """Write the model for another engine; with --source and --reference, score its translations."""
    if (args.source is None) != (args.reference is None):
        raise UserError("--source and --reference go together; give both or neither")
    if args.license and args.format != "transformers":
        raise UserError("--license is for a model card; give --format transformers with it")
    pairs = read_test_set(args) if args.source else None
    try:
        format = import_module(f"minitrans.export.{args.format}")
    except ModuleNotFoundError as error:
        extra = EXTRA_BY_FORMAT[args.format]
        raise UserError(f"{error.name} is not installed; install minitrans with its extra `{extra}`") from error
    from minitrans.translate.translator import Translator

    translator, folder = Translator.load(args.run), Path(args.output)
    format.export(translator.bundle, folder, **{"license": args.license} if args.license else {})
    print(f"engine: {folder}", file=sys.stderr)
    if pairs is not None:
        from minitrans.translate.metrics import score_systems

        sources, references, others = pairs
        own = translator.translate(sources)
        by_engine = {name: translate(sources) for name, translate in format.translate_fns(folder, translator.bundle)}
        scores = score_systems([own, *by_engine.values()], references, translator.bundle.target, args.tokenize, others)
        scored = dict(zip(["minitrans float32", *by_engine], scores, strict=True))
        print_scores(scored.items())
        for name, outputs in by_engine.items():
            n_different = sum(a != b for a, b in zip(own, outputs, strict=True))
            print(f"{name}: {n_different} of {len(own)} translations differ from those of minitrans")
        if args.format == "transformers":
            measured = {Path(args.source).name: scored["transformers float32"]}
            format.write_card(folder, translator.bundle, args.license, measured)
    return 0
