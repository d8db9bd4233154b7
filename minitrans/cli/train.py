"""The commands that train: `train`, and `distill`, which trains teachers first."""

import sys
from typing import TYPE_CHECKING

from minitrans.cli.common import print_scores
from minitrans.text.lines import visible

if TYPE_CHECKING:
    from minitrans.training.config import RunConfig
    from minitrans.translate.scoring import Scores


def train_command(config: "RunConfig") -> int:
    """Train a model on a parallel corpus and write a run folder."""
    from minitrans.training.run import train  # after the settings, so that a typing error is answered at once

    if scores := train(config):  # in the first process
        print_run(config, scores)
    return 0


def distill_command(config: "RunConfig") -> int:
    """Train a model on a corpus and on what teachers, trained first, make of it."""
    from minitrans.training.distillation import distill

    for run, scores in distill(config):
        print_run(run, scores)
    return 0


def print_run(config: "RunConfig", scores: "dict[str, Scores]") -> None:
    """What has been trained, and by what."""
    from minitrans.translate.backend import who_computes

    print_scores(list(scores.items()))
    print(f"run folder: {visible(str(config.run_dir))}")
    print(f"computed: {who_computes()}", file=sys.stderr)
