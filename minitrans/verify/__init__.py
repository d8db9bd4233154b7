"""The proof: each claim about attention and cached decoding, measured on the model in hand.

`run(model)` measures a model; `run()` a fresh one with random weights. The checks are in `checks`, what they are
measured against in `oracles`, the model and data they are measured on in `subject`, the table in `report`.
"""

from minitrans.model import Transformer
from minitrans.verify.check import Report
from minitrans.verify.checks import CHECKS
from minitrans.verify.subject import Subject, fresh_model, random_subject

__all__ = ["run"]


def run(model: Transformer | None = None, subject: Subject | None = None) -> Report:
    """Measure every claim.

    Args:
        model: The model to measure, with random sentences; it is copied, and left as it is. None: a fresh model.
        subject: Model and sentences, in place of `model`.

    Returns:
        For each check what was measured, its tolerance and the verdict.
    """
    if subject is None:
        subject = random_subject(fresh_model() if model is None else model)
    return Report([check.run(subject) for check in CHECKS])
