"""The report on a Hugging Face model as an issue for its library: what fails, and a program without our code."""

import platform
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import torch
import transformers
from torch import Tensor

from minitrans.cachecheck.cache_checks import LONG_LENGTH, MAX_DRAFT, MAX_LENGTH, chunk_deviation, extend_tokens
from minitrans.cachecheck.hugging_face import HFModel, is_architecture
from minitrans.cachecheck.measurement import MIN_FAULT, NotOfferedError, Report, dtype_tolerance, to_str
from minitrans.cachecheck.protocol import ModelAndTokens
from minitrans.cachecheck.runner import cases_by_dtype

TIMEOUT_SECONDS = 300  # that a program may take
SMALL_MODEL_CODE = """\
config = transformers.AutoConfig.for_model("{name}", **{settings})
model = transformers.{auto}.from_config(config, dtype={dtype}).eval()
for parameter in model.parameters():
    parameter.add_(0.1 * torch.randn_like(parameter))"""
SETUP_AND_EXPECTED_CODE = """\
import torch
import transformers

torch.manual_seed(0)
torch.set_grad_enabled(False)
{model}
tokens = torch.tensor({tokens})
expected = model({source}tokens, use_cache=False).logits
"""
CHUNKED_PASS_CODE = """\
cache, logits = None, []
for piece in tokens.split({chunks}, 1):
    output = model({source}piece, {cache}=cache, use_cache=True)
    cache = output.{cache}
    logits.append(output.logits)
logits = torch.cat(logits, 1)
"""
ROLLBACK_CODE = """\
cache = transformers.DynamicCache(config=model.config)
cache.activate_past_recording()
model(tokens[:, :{before}], past_key_values=cache)
model(tokens[:, :{draft}], past_key_values=cache)  # a draft, which is dropped
cache.crop(-{draft})
logits = model(tokens[:, {before}:], past_key_values=cache).logits
expected = expected[:, {before}:]
"""
LEFT_PADDING_CODE = """\
mask = torch.tensor([[0] * 3 + [1] * tokens.size(1)])
padded = torch.cat([tokens[:, :1].expand(1, 3), tokens], 1)
logits = model(padded, attention_mask=mask{positions}).logits[:, 3:]
"""
PRINT_ERRORS_CODE = """\
print((logits - expected).abs().amax((0, 2)).tolist())  # at each position
"""


def issue_markdown(report: Report, model: HFModel, name: str) -> str:
    """Markdown: the versions, the checks that fail, and the smallest program that shows it, with what it prints.

    The user's `name` for the model is an architecture, a folder, or a name on the hub.
    """
    failed = {result.id: result for result in report.checks if result.failed}
    class_name = type(model.model).__name__
    versions = (f"transformers {transformers.__version__}, torch {torch.__version__}, Python "
                f"{platform.python_version()}, {platform.system()} {platform.machine()}")  # fmt: skip
    if not failed:
        why = f", but it takes no single steps: {report.missing_steps.detail}" if report.missing_steps else ""
        return f"# {class_name}: no check of its cache fails{why}\n\n{versions}\n"
    case = next(iter(cases_by_dtype(model).values()))
    # Where something is plainly wrong, look for that, and ignore what may be rounding.
    wrong = any(not result.failed_measurement.measured <= MIN_FAULT for result in failed.values())
    limit = MIN_FAULT if wrong else dtype_tolerance(case.model.dtype)
    programs = candidate_programs(case, model, name, failed.keys(), limit)
    shown = ((program, failing_program_output(program, limit)) for program in programs)
    program, printed = next(((program, printed) for program, printed in shown if printed), ("", ""))
    lines = [f"# {class_name}: decoding from a cache differs from the full pass", ""]
    lines += ["| check | what should be true | deviation | allowed | what differs first |", "|---|---|---:|---:|---|"]
    for r in failed.values():
        measured, allowed = to_str(r.failed_measurement.measured), to_str(r.failed_measurement.tolerance)
        lines.append(f"| {r.id} | {r.claim} | {measured} | {allowed} | {r.detail.replace('|', '&#124;')} |")
    if program:
        lines += ["", "```python", f"{program}```", "", "It should print zeros, up to rounding. It prints"]
        lines += ["", "```text", printed, "```"]
    else:
        lines += ["", "No short program was found that shows it without the checks."]
    lines += ["", versions, ""]
    return "\n".join(lines)


def candidate_programs(
    case: ModelAndTokens[Any], model: HFModel, name: str, failed: Collection[str], limit: float
) -> Iterator[str]:
    """The programs that may show why these checks fail, the likeliest first; deviations up to a limit are ignored."""
    hf_model, auto, dtype = model.model, model.auto_class.__name__, str(case.model.dtype)
    made = f"model = transformers.{auto}.from_pretrained({name!r}, dtype={dtype}).eval()"
    if is_architecture(name):
        default = type(hf_model.config)().to_dict()
        own = {key: value for key, value in hf_model.config.to_diff_dict().items() if value != default.get(key)}
        settings = {key: value for key, value in own.items() if key not in ("architectures", "dtype")}
        made = SMALL_MODEL_CODE.format(name=hf_model.config.model_type, settings=settings, auto=auto, dtype=dtype)
    source = f"torch.tensor({case.src_ids[:1].tolist()}), decoder_input_ids=" if model.has_source else ""

    def whole(tokens: Tensor, rest: str, **fields: object) -> str:
        text = SETUP_AND_EXPECTED_CODE + rest + PRINT_ERRORS_CODE
        return text.format(model=made, tokens=tokens.tolist(), source=source, **fields)

    case = case.with_rows(slice(1))
    if {"steps", "chunks", "lengths"} & set(failed) and (difference := shortest_failing_chunks(case, limit)):
        yield whole(difference[0], CHUNKED_PASS_CODE, chunks=difference[1], cache=model.cache_name)
    if "rollback" in failed and not source:
        yield whole(extend_tokens(case, 3 * MAX_DRAFT), ROLLBACK_CODE, before=MAX_DRAFT, draft=3)
    given = ", position_ids=(mask.cumsum(1) - 1).clamp(min=0)"
    for id_, positions in (("padding.left", given), ("padding.left-mask-alone", "")):
        if id_ in failed:
            yield whole(extend_tokens(case, 5), LEFT_PADDING_CODE, positions=positions)


def shortest_failing_chunks(case: ModelAndTokens[Any], limit: float) -> tuple[Tensor, list[int]] | None:
    """The fewest tokens, in the fewest chunks, that deviate from the full pass by more than a limit, if any do.

    Of longer sentences only a few lengths and cuts are tried, near windows, because there would be thousands.
    """
    beyond_windows = {k * span + more for span in case.model.window_sizes for k in (1, 2, 3) for more in (0, 1, 2)}
    most = min(case.model.max_len or MAX_LENGTH, MAX_LENGTH)
    for length in (n for n in sorted({*range(1, LONG_LENGTH + 3), *beyond_windows}) if 0 < n <= most):
        part = case.with_tokens(extend_tokens(case, length))
        firsts = range(1, length) if length <= 3 * LONG_LENGTH else (length // 2, length - 1)
        two = [[first, length - first] for first in firsts]
        for chunks in [[length], *two, [*[1] * (length - 2), 2], [1] * length]:
            with suppress(NotOfferedError):  # the model takes no such chunks
                if sum(chunks) == length and not chunk_deviation(part, chunks) <= limit:
                    return part.tokens, chunks
    return None


def failing_program_output(program: str, limit: float) -> str:
    """What a program prints, if it runs and one of its numbers is NaN or above a limit; otherwise nothing."""
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.SubprocessError:  # it fails, or takes too long
        return ""
    last_line = done.stdout.strip().rpartition("\n")[2]  # libraries may have printed others
    numbers = [float(x) for x in re.findall(r"nan|inf|[\d.]+(?:e[-+]\d+)?", last_line)]
    return last_line if any(not x <= limit for x in numbers) else ""
