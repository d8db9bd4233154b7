"""The command `export`: the same model for another engine."""

import sys
from argparse import Namespace
from pathlib import Path

from minitrans.cli.arguments import Parser
from minitrans.cli.common import add_common, add_references, print_scores, read_references
from minitrans.errors import UserError


def export_flags(parser: Parser) -> None:
    """Where to write it, and what to score it on."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to write, a new one")
    add_references(parser, required=False)
    add_common(parser, compiled=False)


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
