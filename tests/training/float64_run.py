"""`minitrans train` in float64, where the order of a sum hardly matters: float64_run.py WAY FLAG...

WAY is `require`, or `off` for training without compiled code, or `fail` for a second process that fails.
"""

import os
import sys
from typing import Any

from torch import Tensor

from minitrans import cli
from minitrans.data.process_group import rank
from minitrans.errors import UserError
from minitrans.training import precision, run
from minitrans.training.module import TranslationModule


def fail_on_rank_1(self: TranslationModule, *arguments: Any) -> Tensor:
    if rank() == 1:
        raise UserError("the second process has a fault of its own")
    return original_training_step(self, *arguments)


original_training_step = TranslationModule.training_step

if __name__ == "__main__":
    way, *flags = sys.argv[1:]
    precision.TRAINER_PRECISIONS["fp32"] = "64-true"  # type: ignore[assignment]
    if way == "fail":
        TranslationModule.training_step = fail_on_rank_1  # type: ignore[method-assign, assignment]
        run.REPORT_GRACE_S = 0.0 if "LOCAL_RANK" in os.environ else 60.0  # the second fails at once; the first waits
    else:
        flags += ["--compiled", way]
    sys.exit(cli.main(["train", *flags]))
