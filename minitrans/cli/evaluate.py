"""The command `evaluate`: scores of one run, or of several compared with the first."""

import json
import time
from argparse import Namespace
from pathlib import Path

from minitrans.cli.arguments import Parser
from minitrans.cli.common import (
    add_decoding,
    add_test_set_flags,
    decode_kwargs,
    load_translator,
    print_scores,
    read_test_set,
)
from minitrans.errors import UserError
from minitrans.text.lines import escape_controls


def add_evaluate_flags(parser: Parser) -> None:
    """Add the flags that say what to translate, how, and what to compare it with."""
    parser.add_argument("run", metavar="RUN", nargs="+", help="run folder; of several: mean, std, p against the first")
    add_test_set_flags(parser, required=True)
    add_decoding(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def evaluate_command(args: Namespace) -> int:
    """Translate a file and score it against references: BLEU, chrF, exact match, and how often "unsure" is right."""
    from dataclasses import asdict

    sources, references, others = read_test_set(args)
    translators = [load_translator(run, args) for run in args.run]
    bundles = [translator.bundle for translator in translators]
    for run, bundle in zip(args.run, bundles, strict=True):
        if (bundle.source, bundle.target) != (bundles[0].source, bundles[0].target):
            raise UserError(
                f"{run} translates {bundle.source} to {bundle.target}, {args.run[0]} {bundles[0].source} to "
                f"{bundles[0].target}; compare runs that translate the same languages"
            )
    outputs = []
    for translator in translators:
        began = time.perf_counter()
        best = translator.translations(sources, args.beam, length_penalty=args.length_penalty, **decode_kwargs(args, 1))
        outputs.append((best, time.perf_counter() - began))
    from minitrans.translate.metrics import mean_and_std, references_by_line, score_systems, score_unsure

    texts = [[translation.text for translation in translations] for translations, _ in outputs]
    scores = score_systems(texts, references, bundles[0].target, args.tokenize, others)
    right = references_by_line(references, others)
    marks = [
        score_unsure(translations, right, bundle.threshold) if bundle.threshold else None
        for bundle, (translations, _) in zip(bundles, outputs, strict=True)
    ]
    several = len(scores) > 1
    if args.json:
        runs: list[dict[str, object]] = [
            {name: value for name, value in asdict(scored).items() if value is not None}
            | (asdict(marked) if marked else {})
            | {"seconds": seconds, "sentences_per_second": len(sources) / seconds}
            for scored, marked, (_, seconds) in zip(scores, marks, outputs, strict=True)
        ]
        named = [{"run": run} | fields for run, fields in zip(args.run, runs, strict=True)]
        print(json.dumps({"runs": named, **mean_and_std(scores)} if several else runs[0]))
        return 0
    names = [*map(escape_controls, args.run if several else [Path(args.source).name])]
    print_scores(zip(names, scores, strict=True))
    for name, marked in zip(names, marks, strict=True):
        if marked:
            percents = marked.unsure_precision, marked.unsure_recall
            precision, recall = ("none" if percent is None else f"{percent:.1f}%" for percent in percents)
            print(
                f"{name}: unsure of {marked.unsure:.1f}%; {precision} of these wrong (precision), {recall} of the "
                f"wrong marked (recall); wrong: {marked.unsure_wrong}"
            )
    if several:
        mean, std = mean_and_std(scores)["mean"], mean_and_std(scores)["std"]
        print(
            f"mean (std): BLEU {mean['bleu']:.2f} ({std['bleu']:.2f})  chrF {mean['chrf']:.2f} ({std['chrf']:.2f})  "
            f"exact match {mean['exact_match']:.1f}% ({std['exact_match']:.1f}%)"
        )
        if scores[0].bleu_interval:
            print(f"p: paired bootstrap against {names[0]}; * marks p < 0.05")
    seconds = sum(taken for _, taken in outputs)
    print(f"{seconds:.1f} s, {len(sources) * len(scores) / seconds:.0f} sentences/s")
    return 0
