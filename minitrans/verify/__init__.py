"""The proof: each claim about attention and cached decoding, measured on the model in hand.

`run(model)` measures a model, `run()` a fresh one with random weights; `self_test()` shows that the checks notice when
the code is wrong. The claims are in `checks` and the faults in `sabotages`, a chapter a file; what the claims are
measured against is in `oracles` and `incremental`, the model and data they are measured on in `subject`.
"""

from collections.abc import Iterator

import torch

from minitrans.compiled import kernels
from minitrans.model.transformer import Transformer
from minitrans.verify import checks as checks
from minitrans.verify import sabotages as sabotages
from minitrans.verify.check import CHECKS, LOWER, Caught, Report
from minitrans.verify.sabotage import SABOTAGES
from minitrans.verify.subject import Subject, fresh_model, random_subject

__all__ = ["SABOTAGES", "run", "self_test"]


def run(model: Transformer | None = None, subject: Subject | None = None) -> Report:
    """Measure every claim.

    Args:
        model: The model to measure, with random sentences; it is copied, and left as it is. None: a fresh model.
        subject: Model and sentences, in place of `model`; float64.

    Returns:
        For each check what was measured, its tolerance and the verdict.
    """
    if subject is None:
        subject = random_subject(fresh_model() if model is None else model)
    subjects = {dtype: subject.to(dtype) for dtype in (torch.float64, *LOWER)}
    return Report([check.run(subjects) for check in CHECKS])


def self_test() -> Iterator[Caught]:
    """Apply every sabotage to the live code, one at a time, and run all checks on a fresh model made under it, float64.

    Those of the compiled kernels are left out where there are none.

    Yields:
        For each sabotage the checks that failed; the code is as it was by then.
    """
    compiled = kernels.serve(torch.empty(0), torch.float32)
    for sabotage in SABOTAGES:
        if sabotage.id.startswith("fused.") and not compiled:
            continue  # nobody takes that pass here
        with sabotage.applied():
            subjects = {torch.float64: random_subject(fresh_model())}
            failed = [check.id for check in CHECKS if not check.run(subjects).passed]
        yield Caught(sabotage.id, sabotage.fault, failed)
