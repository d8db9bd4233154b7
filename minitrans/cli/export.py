"""The command `export`: the same model for another engine."""

import re
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

from minitrans.cli.arguments import Parser
from minitrans.cli.common import add_common, add_references, print_scores, read_references
from minitrans.errors import UserError
from minitrans.files import write_file

# By the name of a format, where it is written and the extra that this needs.
FORMATS = {
    "ctranslate2": ("minitrans.serving.export", "export"),
    "transformers": ("minitrans.serving.export_transformers", "hf"),
}


def export_flags(parser: Parser) -> None:
    """Where to write it, for which engine, and what to score it on."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to write, a new one")
    parser.add_argument("--format", choices=FORMATS, default="ctranslate2", help="which engine is to read it")
    add_references(parser, required=False)
    add_common(parser, compiled=False)


def export_command(args: Namespace) -> int:
    """Write the model for another engine; with --source and --reference, score what that translates."""
    if (args.source is None) != (args.reference is None):
        raise UserError("--source and --reference go together; give both or neither")
    pairs = read_references(args) if args.source else None
    module, extra = FORMATS[args.format]
    try:
        exporting: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; install minitrans with its extra `{extra}`") from error
    from minitrans.serving.translator import Translator

    translator, folder = Translator.load(args.run), Path(args.output)
    bundle = translator.bundle
    card = {"license": license_of(Path(args.run))} if args.format == "transformers" else {}
    exporting.export(bundle, folder, **card)
    print(f"engine: {folder}", file=sys.stderr)
    if pairs is None:
        return 0
    import torch

    from minitrans.serving.scoring import compare

    sources, references, others = pairs
    outputs = {"minitrans float32": translator.translate(sources)}
    if args.format == "transformers":
        engine = exporting.load_engine(folder)
        outputs["transformers float32"] = exporting.engine_translate(engine, bundle, sources)
    else:
        for compute_type in ("float32", "int8"):
            engine = exporting.load_engine(folder, compute_type, torch.get_num_threads())
            outputs[f"ctranslate2 {compute_type}"] = exporting.engine_translate(engine, bundle, sources)
    scores = compare(list(outputs.values()), references, bundle.target, args.tokenize, others)
    if card:
        measured = {Path(args.source).name: scores[1]}
        write_file(folder / "README.md", exporting.model_card(bundle, scores=measured, **card))
    print_scores(list(zip(outputs, scores, strict=True)))
    ours = outputs["minitrans float32"]
    for name, theirs in list(outputs.items())[1:]:
        n_different = sum(a != b for a, b in zip(ours, theirs, strict=True))
        print(f"{name}: {n_different} of {len(ours)} translations differ from those of minitrans")
    return 0


def license_of(run: Path) -> str | None:
    """What the card of the run's data says under "Licence", as the hub writes it: "apache-2.0"; None if nothing."""
    import yaml

    try:
        settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        card = (Path(settings["data"]["path"]) / "README.md").read_text(encoding="utf-8")
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        return None
    found = re.search(r"^#+ Licen[cs]e\n+([\w.-]+)", card, re.MULTILINE)
    return found[1].lower() if found else None
