"""The command `verify`: the proof, for a model of ours or somebody else's."""

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrans.cli.arguments import Parser
from minitrans.cli.common import add_common_flags
from minitrans.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from minitrans.cachecheck.hugging_face import HFModel
    from minitrans.cachecheck.measurement import Report
    from minitrans.verify.model_and_pairs import ModelAndPairs


def add_verify_flags(parser: Parser) -> None:
    """Add the flags that say what to measure, and how to report it."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="run folder; without one, a small random model")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a Hugging Face model in place of ours: a folder; the name of an architecture, such as marian, for a "
        "small random model of it; or a name on the hub",
    )
    parser.add_argument("--data", metavar="PATH", help="the run's corpus, if it is not at data.path of its config.yaml")
    parser.add_argument("--self-test", action="store_true", help="sabotage the code, and show which checks notice")
    parser.add_argument("--sabotage", metavar="ID", help="break one thing, and show which claims fail")
    parser.add_argument("--list", action="store_true", help="list the sabotages")
    parser.add_argument(
        "--report",
        metavar="PATH",
        help="also write a page with pictures, PATH/index.html; with --model, a PATH that ends with .md becomes "
        "an issue for the model's library, with a short program that shows what fails",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_common_flags(parser, default_threads=1)  # the matrix products are tiny: threads would only wait for each other


def verify_command(args: Namespace) -> int:
    """Measure every claim about attention and cached decoding, on a fresh model, a trained run or another model."""
    from rich.console import Console

    from minitrans.files import make_folder, write_file
    from minitrans.translate.backend import describe_backends
    from minitrans.verify.page import page_html
    from minitrans.verify.report import as_json, print_report

    if args.list:
        from minitrans.verify.run_checks import sabotages_to_run

        width = max(len(sabotage.id) for sabotage in sabotages_to_run(args.compiled))
        print(*(f"{sabotage.id:{width}}  {sabotage.fault}" for sabotage in sabotages_to_run(args.compiled)), sep="\n")
        return 0
    if args.sabotage and not args.model and (args.run or args.data or args.self_test or args.report):
        raise UserError("--sabotage breaks a fresh model: give no RUN, --data, --self-test or --report with it")
    is_issue = bool(args.model and args.report) and args.report.endswith(".md")
    path = Path(args.report or "", "" if is_issue else "index.html")
    new = [folder for folder in path.parents if args.report and not os.path.lexists(folder)]
    if args.report:
        make_folder(path.parent, "name another folder")  # now, and not after minutes of measuring
        if os.path.isdir(path) or not os.access(Path(os.path.realpath(path)).parent, os.W_OK):
            raise UserError(f"cannot write {path}; name another one")
    measure: Callable[..., tuple[Report, Any]] = check_hugging_face_model if args.model else check_minitrans_model
    try:
        report, subject = measure(args, Console(stderr=True))
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in new:
                folder.rmdir()
        raise
    # If whoever reads the output is gone, Rich raises SystemExit, others an OSError; the verdict stands.
    console = Console(width=None if sys.stdout.isatty() else 160)
    with contextlib.suppress(SystemExit):
        if args.json:
            console.out(as_json(report), highlight=False)
        else:
            print_report(report, console)
    with contextlib.suppress(BrokenPipeError):
        if is_issue:
            from minitrans.verify.issue_report import issue_markdown

            write_file(path, issue_markdown(report, subject, args.model))
        elif args.report:
            write_file(path, page_html(report, subject.name if args.model else subject))
    with contextlib.suppress(OSError):  # last, where they are seen
        if args.report:
            print(f"{'issue' if is_issue else 'page'}: {path}", file=sys.stderr)
        if not args.model:
            print(f"computed: {describe_backends()}", file=sys.stderr)
    return 0 if report.passed else 1


def check_minitrans_model(args: Namespace, progress: "Console") -> "tuple[Report, ModelAndPairs]":
    """Measure a fresh model or a run; return the report, and what was measured."""
    from dataclasses import replace

    from rich.progress import track

    from minitrans.verify.model_and_pairs import fresh_model, load_run_and_pairs, model_and_random_pairs
    from minitrans.verify.run_checks import report_failures_under, run, sabotages_to_run, self_test

    if args.data and not args.run:
        raise UserError("--data is a run's corpus: give RUN too")
    with progress.status("measuring"):
        subject = load_run_and_pairs(Path(args.run), args.data) if args.run else model_and_random_pairs(fresh_model())
        if args.sabotage:
            return report_failures_under(args.sabotage, args.compiled), subject
        report = run(subject=subject, compiled=args.compiled)
    if args.self_test:
        total, disable = len(sabotages_to_run(args.compiled)), not progress.is_terminal
        caught = track(self_test(compiled=args.compiled), "sabotaging", total, console=progress, disable=disable)
        report = replace(report, sabotages=list(caught))
    return report, subject


def check_hugging_face_model(args: Namespace, progress: "Console") -> "tuple[Report, HFModel]":
    """Measure somebody else's model; return the report, and what was measured."""
    from dataclasses import replace

    if args.run or args.data or args.sabotage or args.compiled != "auto":
        raise UserError(
            "--model measures a model that is not ours: give no RUN, --data, --sabotage or --compiled with it"
        )
    from minitrans.cachecheck import LoadError, NotOfferedError, run, self_test

    with progress.status("measuring"):
        try:
            from minitrans.cachecheck.hugging_face import load_or_build

            model = load_or_build(args.model)
            report = run(model)
        except LoadError as error:
            raise UserError(str(error)) from error
        except NotOfferedError as error:
            raise UserError(f"--model {args.model} cannot compute a full pass here: {error}") from error
        if args.self_test:
            report = replace(report, sabotages=list(self_test(model)), each_must_catch=False)
    return report, model
