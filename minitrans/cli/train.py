"""The commands that train: `train`, and `distill`, which trains teachers first."""

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from minitrans.cli.common import print_scores
from minitrans.errors import UserError
from minitrans.text.lines import escape_controls

if TYPE_CHECKING:
    from minitrans.training.config import RunConfig
    from minitrans.translate.metrics import Scores


def train_command(config: "RunConfig") -> int:
    """Train a model on a parallel corpus and write a run folder."""
    from minitrans.training.run import train  # imported only now, so that a mistyped flag is reported at once

    if scores := train(config):  # empty in all processes but the first
        print_run(config, scores)
    return 0


def distill_command(config: "RunConfig") -> int:
    """Train a model on a corpus and on translations of it by teachers, which are trained first."""
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

    from minitrans.training.distillation import distill

    if config.data.streaming:
        raise UserError("distill keeps what its teachers translate: set data.streaming to false")
    has_tasks = SLURMEnvironment.detect() and os.environ["SLURM_NTASKS"] != "1"
    if has_tasks or "TORCHELASTIC_RUN_ID" in os.environ or config.trainer["num_nodes"] > 1:
        raise UserError(
            "distill trains on one machine, and starts its processes itself: set trainer.devices, and neither "
            "trainer.num_nodes nor torchrun or srun's number of tasks"
        )
    try:
        for run, scores in distill(config):
            with contextlib.suppress(OSError):  # whoever reads this is gone; the next training goes on all the same
                print_run(run, scores)
    except UserError as error:
        if not any(flag in str(error) for flag in ("--resume", "--overwrite")):
            raise
        raise UserError(f"{error} (distill has neither flag: it resumes; to begin anew, remove the folder)") from error
    return 0


def print_run(config: "RunConfig", scores: "dict[str, Scores]") -> None:
    """Print the scores and the folder of a run, and which code computed it."""
    from minitrans.translate.backend import describe_backends

    print_scores(scores.items())
    print(f"run folder: {escape_controls(str(config.run_dir))}")
    print(f"computed: {describe_backends()}", file=sys.stderr)
