#!/usr/bin/env python3
"""Train the models of the first table in docs/results.md, each with seeds that share their teachers, and print it.

It takes hours. A run that exists already is not trained again, one that was interrupted goes on, and a model
that has been scored is not scored again: its scores are kept in its run folder.
"""

import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minitrans import cli
from minitrans.cli.arguments import Parser, positive_int
from minitrans.data.corpus import load_corpus
from minitrans.errors import UserError
from minitrans.files import write_file
from minitrans.training import distillation
from minitrans.training.config import RunConfig, parse_config
from minitrans.training.run_folder import is_trained
from minitrans.translate.metrics import Scores, mean_and_std, score
from minitrans.translate.translator import Translator

CONFIGS_DIR = Path(__file__).parents[2] / "configs"
BLEU_TOKENIZER_BY_CONFIG = {"multi30k-en-de-lc": "none"}  # how BLEU splits words, where the text is tokenized already
BEAM_SIZES = (1, 5)
SCORES_FILE = "scores.json"
COLUMNS = ["config", "test set", "parameters", "teachers", "training"]
COLUMNS += ["BLEU, greedy", "chrF, greedy", "BLEU, beam 5", "chrF, beam 5"]


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is missing, score it, print the table."""
    parser = Parser("results_table.py", (__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "configs",
        metavar="CONFIG",
        nargs="*",
        default=[
            str(CONFIGS_DIR / f"{name}.yaml") for name in ("multi30k-en-de", "multi30k-en-de-lc", "tatoeba-en-zh")
        ],
        help="YAML files of the runs",
    )
    parser.add_argument("--corpora", help="folder with a corpus named after each config; without it, as configs say")
    parser.add_argument("--seeds", type=positive_int, default=3, metavar="N", help="runs of each config")
    parser.add_argument("--runs", default="runs/results", help="folder for all runs")
    cli.process_setup.start_log(debug=False)
    cli.process_setup.setup_training_process()
    try:
        args = parser.parse(sys.argv[1:] if argv is None else argv)
        folder = Path(args.runs).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        with cli.process_setup.interrupted_by_signals():
            for config in map(Path, args.configs):
                runs = [train_and_score(config, seed, args.corpora, folder) for seed in range(1, args.seeds + 1)]
                rows += table_rows(config, runs)
    except UserError as error:
        print(f"results_table.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    for row in (COLUMNS, ["---"] * 2 + ["---:"] * (len(COLUMNS) - 2), *rows):
        print(f"| {' | '.join(row)} |")
    return 0


def train_and_score(config: Path, seed: int, corpora_dir: str | None, runs_dir: Path) -> dict[str, Any]:
    """Train a model and score its test sets, unless that has been done.

    All seeds share their teachers.
    """
    run, teachers = runs_dir / f"{config.stem}-{seed}", runs_dir / f"{config.stem}-teachers"
    settings = ["--config", str(config), "--seed", str(seed), "--run-dir", str(run)]
    if corpora_dir is not None:
        settings += ["--data.path", str(Path(corpora_dir, config.stem))]
    model = parse_config(settings)
    final = distillation.final_config(model, teachers)
    if not (is_trained(final) and (run / SCORES_FILE).is_file()):  # it also refuses a run with other settings
        minutes = {
            "teachers": run_timed_stage(distillation.make_distillation_inputs(model, teachers), teachers),
            "model": run_timed_stage(distillation.train_unless_done(final), run),
        }
        scores = score_and_count_parameters(run, model, BLEU_TOKENIZER_BY_CONFIG.get(config.stem))
        write_file(run / SCORES_FILE, json.dumps({"minutes": minutes, **scores}, indent=1))
    loaded: dict[str, Any] = json.loads((run / SCORES_FILE).read_text(encoding="utf-8"))
    return loaded


def run_timed_stage(stage: Iterable[tuple[RunConfig, dict[str, Scores]]], output_dir: Path) -> float:
    """Run a stage of the training; return the minutes that it took, with the earlier ones if it was interrupted.

    The minutes are kept beside the folder `output_dir` that it makes; NaN if it was killed, or made otherwise.
    """
    spent = output_dir.with_name(f"{output_dir.name}.minutes")
    before = 0.0
    if output_dir.exists():
        before = float(spent.read_text(encoding="ascii")) if spent.is_file() else math.nan
    write_file(spent, "nan\n")
    began = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            for trained, scores in stage:
                cli.train.print_run(trained, scores)
    finally:
        minutes = before + (time.perf_counter() - began) / 60
        write_file(spent, f"{minutes}\n")
    return minutes


def score_and_count_parameters(run: Path, config: RunConfig, tokenize: str | None) -> dict[str, Any]:
    """The number of parameters, and the scores by test set and beam."""
    translator = Translator.load(run, compiled="auto")
    scores: dict[str, dict[int, Any]] = {}
    for split, pairs in load_corpus(config.data).items():
        if split not in ("train", "valid"):
            sources, references = pairs["source"][:], pairs["target"][:]
            outputs = {beam: translator.translate(sources, beam=beam) for beam in BEAM_SIZES}
            scores[split] = {
                beam: asdict(score(lines, references, translator.bundle.target, tokenize))
                for beam, lines in outputs.items()
            }
    return {"parameters": sum(p.numel() for p in translator.bundle.model.parameters()), "scores": scores}


def table_rows(config: Path, runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows of a config, one a test set: what COLUMNS says, means of the runs; scores have standard deviations."""
    rows = []
    minutes = [mean_minutes([run["minutes"][part] for run in runs]) for part in ("teachers", "model")]
    for split in runs[0]["scores"]:
        greedy, beam = ([Scores(**run["scores"][split][str(beam)]) for run in runs] for beam in BEAM_SIZES)
        tokenizer = greedy[0].bleu_signature.partition("tok:")[2].partition("|")[0]
        cells = [mean_std(scores, name) for scores in (greedy, beam) for name in ("bleu", "chrf")]
        cells[0] += f" ({tokenizer})"
        rows.append([f"`configs/{config.name}`", f"`{split}`", f"{runs[0]['parameters']:,}", *minutes, *cells])
    return rows


def mean_minutes(minutes: Sequence[float]) -> str:
    """The mean, if all are known."""
    mean = statistics.mean(minutes)
    return "-" if math.isnan(mean) else f"{mean:.0f} min"


def mean_std(scores: Sequence[Scores], name: str) -> str:
    """Mean and standard deviation of a score; of one run, the score."""
    if len(scores) == 1:
        return f"{getattr(scores[0], name):.2f}"
    summary = mean_and_std(scores)
    return f"{summary['mean'][name]:.2f} ± {summary['std'][name]:.2f}"


if __name__ == "__main__":
    sys.exit(main())
