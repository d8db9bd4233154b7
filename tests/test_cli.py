"""The commands as a user meets them: output, messages, exit codes."""

import contextlib
import errno
import io
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from command_helpers import copy_run, refusal_message, run_cli
from conftest import generator

import minitrans.export
from minitrans import cli
from minitrans.cachecheck.measurement import Report
from minitrans.cli.arguments import Parser
from minitrans.cli.common import print_scores
from minitrans.errors import UserError
from minitrans.text.lines import ALL_LINE_NUMBERS, MAX_LINE_BYTES
from minitrans.training.config import SECTIONS
from minitrans.translate.bundle import Threshold, load_bundle, save_bundle
from minitrans.translate.metrics import Scores
from minitrans.translate.translator import Translation, Translator
from minitrans.verify import run_checks
from minitrans.verify.checks import CHECKS
from minitrans.verify.sabotage import SABOTAGES

Log = pytest.LogCaptureFixture
MINITRANS_COMMAND = (sys.executable, "-m", "minitrans")


def command_output(*argv: str | Path, stdin: bytes = b"") -> str:
    """Run a command that has to end with code 0; return what it writes to standard output."""
    code, out, _ = run_cli(*argv, stdin=stdin)
    assert code == 0
    return out


# -- translate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def unsure_run(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the tiny run that is unsure of every line that is not empty."""
    run = copy_run(tiny_run, tmp_path / "run")
    save_bundle(run, replace(load_bundle(run), threshold=Threshold(0.0, None)))
    return run


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.translate, "CHUNK_LINES", 2)


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        ("--no-cache", {"use_cache": False}),
        ("--batch-tokens 8", {"batch_tokens": 8}),
        ("--beam 3", {"beam": 3}),
        ("--length-penalty 0.5", {"length_penalty": 0.5}),
        ("--precision bfloat16", {"dtype": torch.bfloat16}),
        ("--precision float64", {"dtype": torch.float64}),
        ("--split-sentences", {"split_sentences": True}),
        ("--threads 1", {"threads": 1}),
    ],
)
def test_every_flag_does_something(
    flags: str, changed: dict[str, object], tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}

    def translations(self: Translator, lines: list[str], beam: int, **options: Any) -> list[Translation]:
        seen.update(
            options, beam=beam, split_sentences=self.split_sentences, dtype=self.bundle.model.output.weight.dtype
        )
        return [Translation("", 0.0)]

    monkeypatch.setattr(Translator, "translations", translations)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: seen.update(threads=n))
    command_output("translate", tiny_run, "I love you.")
    without = seen.copy()
    command_output("translate", tiny_run, "I love you.", *flags.split())
    assert dict(seen.items() - without.items()) == changed


@pytest.mark.usefixtures("small_chunks")
def test_beams_and_the_n_best(tiny_run: Path) -> None:
    flags, stdin = ("--beam", "3", "--n-best", "2"), b"I love you.\n\nMachine learning is fun.\n"
    rows = [line.split("\t") for line in command_output("translate", tiny_run, *flags, stdin=stdin).splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert rows[2] == ["2", "0.0000", ""]
    assert float(rows[0][1]) >= float(rows[1][1])
    best = command_output("translate", tiny_run, "--beam", "3", "I love you.", "", "Machine learning is fun.")
    assert best.splitlines() == [rows[0][2], "", rows[3][2]]


@pytest.mark.usefixtures("small_chunks")
def test_samples_are_determined_by_the_seed(tiny_run: Path) -> None:
    def sampled(*flags: str) -> list[str]:
        return command_output("translate", tiny_run, *flags, "I love you.", "", "Machine learning is fun.").splitlines()

    first = sampled("--sample", "5")
    assert first[1] == ""
    assert first == sampled("--sample", "5", "--seed", "1")
    assert first != sampled("--sample", "5", "--seed", "2")
    assert sampled("--sample", "1") == sampled()
    stdin = b"I love you.\n\nMachine learning is fun.\n"
    assert command_output("translate", tiny_run, "--sample", "5", stdin=stdin).splitlines() == first


@pytest.mark.usefixtures("small_chunks")
def test_unsure_texts_are_reported_one_by_one_and_counted_for_a_file(
    tiny_run: Path, tmp_path: Path, caplog: Log
) -> None:
    run, source, target = copy_run(tiny_run, tmp_path / "run"), tmp_path / "source", tmp_path / "target"
    texts = "I love you.", "", "Machine learning is fun.", "I love xyzzy."
    good, _, bad, _ = (t.score for t in Translator.load(tiny_run).translations(texts))
    for threshold, unsure in ((min(good, bad) - 1, []), ((good + bad) / 2, [1 if good < bad else 3])):
        save_bundle(run, replace(load_bundle(run), threshold=Threshold(threshold, None)))
        caplog.clear()
        lines = command_output("translate", run, *texts[:3])
        assert caplog.messages == [f"line {number}: unsure" for number in unsure]
        source.write_text("\n".join(texts[:3]))
        caplog.clear()
        assert command_output("translate", run, "--input", source, "--output", target) == ""
        assert caplog.messages == ["unsure of 1 of 3 lines; --scores says which"] * len(unsure)
        assert target.read_text(encoding="utf-8") == lines
        caplog.clear()
        command_output("translate", run, *texts[1:2], *texts[3:])
        assert caplog.messages == ["line 2: unsure; not in the training data: xyzzy"]
        caplog.clear()
        command_output("translate", run, stdin="\n".join([*texts[1:2], *texts[3:]]).encode())
        unknown = "line 2: not in the training data: xyzzy"
        assert caplog.messages == [unknown, "unsure of 1 of 2 lines; --scores says which"]


def test_the_scores_flag_prints_scores_and_unsure_marks(tiny_run: Path) -> None:
    lines = [*(tiny_run.parent / "test.en").read_text(encoding="utf-8").splitlines(), "", "I love xyzzy."]
    translations = Translator.load(tiny_run, compiled="auto").translations(lines, 2)
    assert {t.unsure for t in translations} == {False, True}
    translate = "translate", tiny_run, "--beam", "2"
    want = [f"{t.score:.4f}\t{'unsure' if t.unsure else ''}\t{t.text}" for t in translations]
    assert command_output(*translate, "--scores", *lines).splitlines() == want
    assert command_output(*translate, *lines).splitlines() == [t.text for t in translations]


SOURCE_TEXT = "\ufeffI love you.\r\n\nMachine learning is fun.\nI love the Xyzzy, xyzzy and plugh\x1b[7q\u2028!\n\n"
SOURCE_TEXT += "I love you.\nplugh\nI love deep learning."


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("way", [[], ["--sample", "5"], ["--beam", "2", "--n-best", "2"], ["--scores"]])
def test_joined_parts_equal_the_whole_and_name_unknown_words_once_a_line(
    unsure_run: Path, way: list[str], tmp_path: Path, caplog: Log
) -> None:
    source, whole, part = (tmp_path / name for name in ("source", "whole", "part"))
    source.write_bytes(SOURCE_TEXT.encode())
    translate = ["translate", str(unsure_run), *way, "--input", str(source), "--output"]
    command_output(*translate, whole)
    unknown = (4, "xyzzy, plugh, 7q"), (7, "plugh")
    told = [f"line {number}: not in the training data: {words}" for number, words in unknown]
    n_unsure = 0 if "--sample" in way else 6  # all but the blank ones
    advice = "" if {"--scores", "--n-best"} & {*way} else "; --scores says which"
    assert caplog.messages == told + [f"unsure of 6 of 8 lines{advice}"] * bool(n_unsure)
    for n in (1, 3, 20):
        caplog.clear()
        joined = b""
        for k in range(1, n + 1):
            command_output(*translate, part, "--part", f"{k}/{n}")
            joined += part.read_bytes()
        assert joined == whole.read_bytes()
        assert [message for message in caplog.messages if message.startswith("line")] == told
        counts = [[*map(int, re.findall(r"\d+", message))] for message in caplog.messages if "unsure" in message]
        assert sum(unsure for unsure, _ in counts) == n_unsure
        assert sum(n_lines for _, n_lines in counts) <= 8


INTERRUPTED_PROGRAM = """
import os, sys
from minitrans import cli

def interrupted(translator, lines, *others):
    if "plugh" in lines:
        os.kill(os.getpid(), int(sys.argv[1]))
    return lines_and_unsure(translator, lines, *others)

lines_and_unsure, cli.translate.lines_and_unsure = cli.translate.lines_and_unsure, interrupted
cli.translate.CHUNK_LINES = 1
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("number", "code", "part", "n_done"), [(signal.SIGKILL, -9, [], 6), (signal.SIGINT, 130, ["--part", "2/2"], 2)]
)
def test_an_interrupted_translation_can_be_resumed(
    tiny_run: Path, number: int, code: int, part: list[str], n_done: int, tmp_path: Path, caplog: Log
) -> None:
    source, whole, target, partial = (tmp_path / name for name in ("source", "whole", "target", "target.partial"))
    source.write_bytes(SOURCE_TEXT.encode())
    translate = ["translate", str(tiny_run), "--sample", "5", "--input", str(source), *part, "--output"]
    command_output(*translate, whole)
    translate += [str(target), "--resume"]
    killed = [sys.executable, "-c", INTERRUPTED_PROGRAM, str(int(number)), *translate]
    assert subprocess.run(killed, capture_output=True, check=False, timeout=120).returncode == code
    assert not target.exists()
    kept = partial.read_bytes()
    assert kept == b"".join(whole.read_bytes().splitlines(keepends=True)[:n_done])
    partial.write_bytes(kept + "我".encode()[:-1])
    caplog.clear()
    command_output(*translate)
    assert target.read_bytes() == whole.read_bytes()
    assert caplog.messages == ["line 7: not in the training data: plugh"]
    assert not partial.exists()
    target.rename(partial)  # as if it had been interrupted after the last line
    command_output(*translate)
    assert target.read_bytes() == whole.read_bytes()
    caplog.clear()
    target.write_bytes(b"as it was")
    command_output(*translate)
    assert caplog.messages == [f"{target} already exists; nothing is left to do"]
    assert target.read_bytes() == b"as it was"


def test_lack_of_memory_is_reported_in_one_line() -> None:
    texts = ["CPUAllocator: can't allocate memory", "not enough memory: you tried", "CUDA out of memory. Tried to"]
    texts.append(str(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))))
    (told,) = {cli.error_message(error) for error in (MemoryError(), *map(RuntimeError, texts))}
    assert told is not None
    assert told.startswith("there is not enough memory; ")
    assert cli.error_message(RuntimeError("out of range")) is None


def test_translating_imports_nothing_that_it_does_not_need(tiny_run: Path) -> None:
    code = (
        "import sys, torch; there = set(sys.modules); from minitrans import cli; "
        "assert all(cli.main(['translate', sys.argv[1], *flags.split()]) == 0 for flags in sys.argv[2:]); "
        "print('imported', *set(sys.modules) - there, sep='\\n', file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, str(tiny_run), "Love.", "--beam 2 --n-best 2"]
    done = subprocess.run(words, input=b"I love you.\n", capture_output=True, check=True, timeout=120)
    imported = set(done.stderr.decode().partition("imported\n")[2].split())  # after warnings
    assert "minitrans.cli.translate" in imported
    public = {name.split(".")[0] for name in imported if not name.startswith(("_", "swig"))}  # SentencePiece's SWIG
    libraries = public - sys.stdlib_module_names
    assert libraries <= {"minitrans", "sentencepiece", "safetensors"}  # and nothing that PyTorch loads lazily
    for module in ("data", "training", "verify", "translate.metrics", "model.reference", "export"):
        assert f"minitrans.{module}" not in imported


def test_starting_and_ending_rarely_collect_garbage(tiny_run: Path) -> None:
    code = (
        "import atexit, gc, sys; from minitrans import cli; "
        "atexit.register(lambda: print(sum(each['collections'] for each in gc.get_stats()), gc.isenabled())); "
        "cli.main(['translate', sys.argv[1], ''])"
    )
    out = subprocess.check_output([sys.executable, "-c", code, str(tiny_run)], text=True, timeout=120)
    collections, enabled = out.split()
    assert int(collections) < 100  # importing PyTorch alone has Python do it 386 times
    assert enabled == "False"


@contextlib.contextmanager
def running_command(*argv: str | Path, **pipes: Any) -> Iterator[Any]:
    """A command in a session of its own, with pipes unless told otherwise."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | {"env": buffered} | pipes
    with subprocess.Popen([*MINITRANS_COMMAND, *argv], bufsize=0, start_new_session=True, **pipes) as process:
        yield process


def test_a_slow_pipe_is_answered_line_by_line(unsure_run: Path) -> None:
    with running_command("translate", unsure_run) as process:
        process.stdin.write(b"I love you.\nMachine lear")
        first = process.stdout.readline()
        assert first.strip()
        process.stdin.write(b"ning is fun.\n\n")
        second = process.stdout.readline()
        assert process.stdout.readline() == b"\n"
        process.stdin.write(b"cat " * 10_000 + b"\nI love you.")
        process.stdin.close()
        assert process.stdout.read().splitlines(keepends=True)[1:] == [first]
        assert process.wait() == 0
        cut, *rest = process.stderr.read().decode().split("\n")
    assert "line 4 is cut" in cut
    assert rest == ["minitrans: warning: unsure of 4 of 5 lines; --scores says which", ""]
    assert command_output("translate", unsure_run, "I love you.", "Machine learning is fun.").encode() == first + second


def test_a_named_pipe_is_answered_line_by_line(tiny_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with running_command("translate", tiny_run, "--input", path) as process, path.open("wb", buffering=0) as pipe:
        for _ in range(2):
            pipe.write(b"I love you.\n")
            assert process.stdout.readline().strip()
        process.stdout.close()
        pipe.write(b"I love you.\n")
        assert process.wait() == 0  # although the pipe is open
        assert process.stderr.read() == b""


def test_ctrl_c_and_bad_input_end_a_command_that_waits_for_a_pipe(tiny_run: Path) -> None:
    for interrupt, code, message in ((True, 130, b"interrupted"), (False, 2, b"standard input, line 2: byte 1")):
        with running_command("translate", tiny_run) as process:
            process.stdin.write(b"I love you.\n")
            assert process.stdout.readline().strip()
            if interrupt:
                process.send_signal(signal.SIGINT)
            else:
                process.stdin.write(b"\xff\n")
            assert process.wait() == code
            err = process.stderr.read()
            assert message in err
            assert err.count(b"\n") == 1


def test_closed_standard_input_is_reported(
    tiny_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as `<&-` leaves it
    assert cli.main(["translate", str(tiny_run)]) == 2
    assert capsys.readouterr().err == "minitrans: error: standard input is closed; give texts or --input\n"


def test_closed_output_is_reported_and_closed_standard_error_is_harmless(tiny_run: Path) -> None:
    for command in ("explain", "translate"):
        run: list[str | Path] = [*MINITRANS_COMMAND, command, tiny_run, "--input", tiny_run.parent / "test.en"]
        done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *run], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (2, b"minitrans: error: standard output is closed; give --output\n")
    done = subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *run], capture_output=True, check=True)
    assert done.stdout.count(b"\n") >= 15


@pytest.mark.parametrize("to_terminal", [True, False])
def test_a_terminal_shows_prompts_and_unsure_marks(tiny_run: Path, to_terminal: bool) -> None:
    controller, terminal = os.openpty()
    stdout = terminal if to_terminal else subprocess.PIPE
    with running_command("translate", tiny_run, stdin=terminal, stdout=stdout) as process:
        os.write(controller, b"I love xyzzy.\n")
        written = b""
        while to_terminal and b"> " not in written.partition(b"(unsure)\r\n")[2]:  # earlier, Ctrl-D may get lost
            written += os.read(controller, 1 << 16)
        if not to_terminal:
            written = process.stdout.readline()  # answered before the input ends
        os.write(controller, b"\x04")
        messages = process.stderr.read().splitlines()
        assert process.wait() == 0
    os.close(terminal)
    os.close(controller)
    prompt, unsure = (b"", b"") if to_terminal else (b"> ", b"unsure; ")
    assert messages == [
        b"one sentence per line; Ctrl-D ends",
        prompt + b"minitrans: warning: line 1: " + unsure + b"not in the training data: xyzzy",
        prompt,
    ]
    (translation,) = Translator.load(tiny_run).translations(["I love xyzzy."])
    if to_terminal:
        assert f"{translation.text} (unsure)\r\n" in written.decode()
    else:  # output that is kept in a file holds translations only
        assert written.decode() == f"{translation.text}\n"


def test_invalid_utf8_at_the_prompt_is_reported_in_one_line(tiny_run: Path) -> None:
    if "libedit" in (pytest.importorskip("readline").__doc__ or ""):
        pytest.skip("libedit drops such bytes")
    controller, terminal = os.openpty()
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}  # as in most locales
    with running_command("translate", tiny_run, stdin=terminal, stdout=terminal, env=environment) as process:
        os.write(controller, b"na\xefve\xff\n")
        said = process.stderr.read().decode().splitlines()[-1]
        assert process.wait() == 2
    os.close(terminal)
    os.close(controller)
    assert re.search(r"error: standard input, line 1: byte \d is not valid UTF-8; convert the text to UTF-8$", said)


def test_the_lines_of_a_progress_bar_are_counted_up_to_one_that_is_no_text() -> None:
    text = io.BytesIO(b"a\nb\n" + b"c" * (MAX_LINE_BYTES + 1))
    assert cli.translate.make_progress_bar(text, ALL_LINE_NUMBERS).tasks[0].total == 2
    assert text.tell() == 0


def test_an_error_of_the_model_is_not_blamed_on_the_device(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translator, "load", Mock(side_effect=RuntimeError("of an edit")))
    with pytest.raises(RuntimeError, match=r"^of an edit$"):
        cli.main(["translate", str(tiny_run), "a"])


def terminal_lines(written: bytes) -> list[str]:
    """The lines that a terminal shows after this output, which may hold the few commands of a progress bar."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[^\x1b]", written.decode()):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1])
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part.startswith("\x1b"):
            assert part[-1] in "mhl", part  # colours, and the cursor hidden and shown
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + 1 :]
            column += 1
    return lines


def run_on_terminal(*argv: str | Path, stdin: Path, stdout_to_terminal: bool) -> tuple[bytes, bytes]:
    """What a command writes to a terminal (its standard error, and maybe its output), and what to a pipe."""
    controller, terminal = os.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    out = terminal if stdout_to_terminal else subprocess.PIPE
    with (
        stdin.open("rb") as source,
        running_command(*argv, stdin=source, stdout=out, stderr=terminal, env=environment) as process,
    ):
        os.close(terminal)
        written = b""
        with contextlib.suppress(OSError):  # how a terminal signals its end
            while piece := os.read(controller, 1 << 16):
                written += piece
        os.close(controller)
        through_pipe = b"" if stdout_to_terminal else process.stdout.read()
        assert process.wait() == 0
    return written, through_pipe


def test_a_progress_bar_garbles_neither_translations_nor_warnings(
    unsure_run: Path, tmp_path: Path, caplog: Log
) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(b"I love you.\n" + b"\n" * cli.translate.CHUNK_LINES + b"cat " * 10_000 + b"\nI love you.\n")
    out = command_output("translate", unsure_run, "--input", source)
    assert "line 4098 is cut" in caplog.messages[0]
    warning = " ".join(f"minitrans: warning: {message}" for message in caplog.messages).split()

    written, through_pipe = run_on_terminal("translate", unsure_run, stdin=source, stdout_to_terminal=False)
    assert through_pipe.decode() == out
    assert b"4099/4099" in written  # the bar, which is gone in the end
    assert "\n".join(terminal_lines(written)).split() == warning

    part = "--input", source, "--part", "1/2"
    written, _ = run_on_terminal("translate", unsure_run, *part, stdin=source, stdout_to_terminal=False)
    assert b"4098/4098" in written

    written, _ = run_on_terminal("translate", unsure_run, stdin=source, stdout_to_terminal=True)
    assert b"4099/4099" in written
    shown, answers = terminal_lines(written), out.split("\n")
    assert shown[: cli.translate.CHUNK_LINES] == answers[: cli.translate.CHUNK_LINES]
    *warned, fourth, third, second, count, end = shown[cli.translate.CHUNK_LINES :]
    assert [fourth, third, second, end] == answers[-4:]
    assert count == "minitrans: warning: unsure of 3 of 4099 lines; --scores says which"
    assert " ".join([*warned, count]).split() == warning


# -- evaluate ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def reference_flags(tiny_run: Path, tmp_path: Path) -> list[str]:
    """Flags that score translations of the test split against those of `tiny_run`."""
    source, reference = tiny_run.parent / "test.en", tmp_path / "own.zh"
    command_output("translate", tiny_run, "--input", source, "--output", reference)
    return ["--source", str(source), "--reference", str(reference)]


def test_evaluate_prints_scores_with_intervals_and_all_as_json(tiny_run: Path, reference_flags: list[str]) -> None:
    scores, bleu, chrf, marks, speed = command_output("evaluate", tiny_run, *reference_flags).splitlines()
    sure = r" 100.00 \(95% CI 100.00-100.00\)"
    assert re.fullmatch(rf"test.en: BLEU{sure}  chrF{sure}  exact match 100.0%  \(15 sentences\)", scores)
    assert bleu.startswith("BLEU nrefs:1|bs:1000|seed:12345|case:mixed|eff:yes|tok:zh|")
    assert chrf.startswith("chrF nrefs:1|bs:1000|seed:12345|")
    assert re.fullmatch(
        r"test.en: unsure of \d+.\d%; 0.0% of these wrong \(precision\), none of the wrong marked \(recall\); "
        r"wrong: equal to no reference, chrF below 40",
        marks,
    )
    assert speed.endswith(" sentences/s")
    report = json.loads(command_output("evaluate", tiny_run, *reference_flags, "--tokenize", "none", "--json"))
    names = "bleu bleu_signature bleu_interval chrf chrf_signature chrf_interval exact_match sentences"
    unsure_names = "unsure unsure_precision unsure_recall unsure_wrong"
    assert set(report) == {*names.split(), *unsure_names.split(), "seconds", "sentences_per_second"}
    assert (report["exact_match"], report["sentences"]) == (100.0, 15)
    assert "tok:none" in report["bleu_signature"]
    reference = Path(reference_flags[3])
    reference.write_bytes(b"\n" + reference.read_bytes().partition(b"\n")[2])  # the only reference may be blank
    assert "exact match 93.3%" in command_output("evaluate", tiny_run, *reference_flags)


def test_evaluate_scores_the_unsure_marks(unsure_run: Path, tmp_path: Path, reference_flags: list[str]) -> None:
    """With one reference and with several; a line that is blank on all sides is right and never unsure."""
    source, wrong, right = (tmp_path / name for name in ("a\x1b.en", "wrong.zh", "right.zh"))
    for path, given in ((source, reference_flags[1]), (right, reference_flags[3])):
        path.write_text(Path(given).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    own = right.read_text(encoding="utf-8").splitlines()
    wrong.write_text("".join(f"{line if i % 3 or not line else 'x'}\n" for i, line in enumerate(own)), encoding="utf-8")
    evaluate = "evaluate", unsure_run, "--source", source, "--reference", wrong
    for more, exact, precision in (([], 11, 100 / 3), (["--reference", str(right)], 16, 0)):  # by both, all are right
        scores = json.loads(command_output(*evaluate, *more, "--json"))
        found = [scores[name] for name in ("exact_match", "unsure", "unsure_precision")]
        assert found == pytest.approx([100 * exact / 16, 100 * 15 / 16, precision])
        assert scores["unsure_recall"] == (None if more else 100)
        assert scores["unsure_wrong"] == "equal to no reference"
    assert (scores["bleu_signature"][:9], scores["bleu"]) == ("nrefs:var", pytest.approx(100))
    said = r"a\x1b.en: unsure of 93.8%; 33.3% of these wrong (precision), 100.0% of the wrong marked (recall); wrong: "
    assert said in command_output(*evaluate)
    save_bundle(unsure_run, replace(load_bundle(unsure_run), threshold=None))
    assert "unsure" not in command_output(*evaluate, "--json")


def test_evaluate_compares_runs_with_the_first(tiny_run: Path, tmp_path: Path, reference_flags: list[str]) -> None:
    other, bundle, noise = copy_run(tiny_run, tmp_path / "other"), load_bundle(tiny_run), generator(1)
    for weights in bundle.model.parameters():
        weights.data += 0.5 * torch.randn(weights.shape, generator=noise)  # it translates badly
    assert bundle.threshold is not None
    save_bundle(other, replace(bundle, threshold=replace(bundle.threshold, chrf=7.0)))
    runs = [str(tiny_run), str(other), str(tiny_run)]
    scores = json.loads(command_output("evaluate", *runs, *reference_flags, "--json"))
    assert set(scores) == {"runs", "mean", "std"}
    assert [run["run"] for run in scores["runs"]] == runs
    first, worse, same = scores["runs"]
    assert "bleu_p" not in first
    assert first["bleu"] == same["bleu"] > worse["bleu"]
    assert first["unsure"] == same["unsure"] != worse["unsure"]
    assert [run["unsure_wrong"].endswith("chrF below 7") for run in scores["runs"]] == [False, True, False]
    assert worse["bleu_p"] < 0.05 < same["bleu_p"]
    assert scores["mean"]["bleu"] == pytest.approx((200 + worse["bleu"]) / 3)
    assert set(scores["mean"]) == set(scores["std"]) == {"bleu", "chrf", "exact_match"}

    lines = command_output("evaluate", *runs, *reference_flags).splitlines()
    assert [line.split(": ")[0] for line in lines[:3]] == runs
    assert [line.count(", p = ") for line in lines[:3]] == [0, 2, 2]
    assert [line.count("*") for line in lines[:3]] == [0, 2, 0]
    mean, std = scores["mean"], scores["std"]
    assert [line.split(": unsure of ")[0] for line in lines[5:8]] == runs
    said = (f"{name} {mean[name.lower()]:.2f} ({std[name.lower()]:.2f})" for name in ("BLEU", "chrF"))
    assert lines[8].startswith(f"mean (std): {'  '.join(said)}  exact match ")


def test_each_score_is_printed_with_its_own_interval(capsys: pytest.CaptureFixture[str]) -> None:
    print_scores([("x", Scores(1.0, "a", 2.0, "b", 3.0, 4, (0.5, 1.5), (1.25, 2.75), 0.25, 0.005))])
    bleu, chrf = "BLEU 1.00 (95% CI 0.50-1.50, p = 0.250)", "chrF 2.00 (95% CI 1.25-2.75, p = 0.005*)"
    assert capsys.readouterr().out == f"x: {bleu}  {chrf}  exact match 3.0%  (4 sentences)\nBLEU a\nchrF b\n"


# -- verify -----------------------------------------------------------------------------------------------------------


def test_verifying_a_run_gives_json_and_a_page_whose_path_is_printed(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [check for check in CHECKS if check.id.startswith(("C26", "cache.steps", "compiled."))]
    monkeypatch.setattr(run_checks, "CHECKS", some)
    code, out, err = run_cli("verify", tiny_run, "--json", "--report", tmp_path / "proof")
    assert (code, json.loads(out)["passed"]) == (0, True)
    assert f"page: {tmp_path / 'proof' / 'index.html'}" in err
    assert "cache.steps" in (tmp_path / "proof" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_page_that_cannot_be_written_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    monkeypatch.delattr(run_checks, "run")
    page = tmp_path / "index.html"
    if is_folder:
        page.mkdir()
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    assert refusal_message("verify", "--report", tmp_path) == f"cannot write {page}; name another one"


def test_results_are_printed_even_if_the_page_can_no_longer_be_written(
    fresh_model_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_and_get_in_the_way(**_: object) -> Report:
        (tmp_path / "index.html").mkdir()
        return fresh_model_report

    monkeypatch.setattr(run_checks, "run", measure_and_get_in_the_way)
    code, out, err = run_cli("verify", "--json", "--report", tmp_path)
    assert (code, json.loads(out)["passed"]) == (2, True)
    assert err.endswith(f"cannot write {tmp_path / 'index.html'}: Is a directory\n")


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--json"], 1)])
def test_the_verdict_is_the_exit_code_even_if_output_is_closed(
    fresh_model_report: Report, monkeypatch: pytest.MonkeyPatch, flags: list[str], code: int
) -> None:
    report = fresh_model_report if code == 0 else replace(fresh_model_report, sabotages=[])  # no check caught one
    monkeypatch.setattr(run_checks, "run", lambda **_: report)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", 1) as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        assert cli.main(["verify", *flags]) == code


def test_one_sabotage_shows_the_claims_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    noticing = "cache.steps", "cache.chunks", "cache.score"
    monkeypatch.setattr(run_checks, "CHECKS", [check for check in CHECKS if check.id in (*noticing, "C18")])
    code, out, _ = run_cli("verify", "--sabotage", "positions.restart", "--json")
    assert code == 1
    report = json.loads(out)
    failed = [check["id"] for check in report["checks"]]
    assert set(failed) == set(noticing)
    assert not any(check["passed"] for check in report["checks"])
    assert all(check["measured"] is None or check["measured"] > check["tolerance"] for check in report["checks"])
    assert report["sabotages"] == [
        {"id": "positions.restart", "fault": "Positions begin at 0 again in every step.", "caught_by": failed}
    ]
    assert any("position 1 of row 0 is the first that differs" in check["detail"] for check in report["checks"])


def test_the_sabotages_are_listed() -> None:
    listed = [line.split(maxsplit=1) for line in command_output("verify", "--list").splitlines()]
    assert listed == [[sabotage.id, sabotage.fault] for sabotage in run_checks.sabotages_to_run("auto")]


def test_the_self_test_shows_what_caught_each_fault_and_counts_for_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checks, "SABOTAGES", [s for s in SABOTAGES if s.id in ("rows.sorted", "loss.padding")])
    monkeypatch.setattr(run_checks, "CHECKS", [c for c in CHECKS if c.id in ("cache.rows", "C20")])
    caught = json.loads(command_output("verify", "--self-test", "--json"))["sabotages"]
    assert {(s["id"], *s["caught_by"]) for s in caught} == {("loss.padding", "C20"), ("rows.sorted", "cache.rows")}
    monkeypatch.setattr(run_checks, "SABOTAGES", [s for s in SABOTAGES if s.id == "rows.sorted"])
    code, out, _ = run_cli("verify", "--self-test")
    assert code == 1
    assert "1 sabotage, 1 caught; checks that caught none: " in out


# -- export (with the engine: tests/export/) ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "library", "extra"), [("ctranslate2", "ctranslate2", "export"), ("transformers", "tokenizers", "hf")]
)
def test_export_without_its_engine_names_the_extra_to_install(
    name: str, library: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"minitrans.export.{name}", raising=False)
    monkeypatch.delattr(minitrans.export, name, raising=False)
    message = refusal_message("export", tmp_path, "--format", name, "-o", tmp_path / "out", unchanged=tmp_path)
    assert f"{library} is not installed; install minitrans with its extra `{extra}`" in message


# -- usage (refusals: tests/test_refusals.py) -------------------------------------------------------------------------


def test_the_exit_code_is_right_even_if_standard_error_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Mock(write=Mock(side_effect=BrokenPipeError)))
    for error, code in ((KeyboardInterrupt(), 130), (UserError("it is wrong"), 2)):
        monkeypatch.setattr(cli, "parse_and_run", Mock(side_effect=error))
        assert cli.main([]) == code


def test_the_parser_of_a_command_takes_what_argparse_passes_on() -> None:
    assert Parser("minitrans", "what it does", epilog="more").epilog == "more"  # Python 3.14 passes `color`


def test_debug_lets_the_error_through_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        cli.main(["translate", str(tmp_path / "gone"), "--debug", "a"])
    assert cli.main(["translate", str(tmp_path / "gone"), "--", "--debug"]) == 2


def test_settings_are_listed_section_by_section() -> None:
    config = Path(__file__).parents[1] / "configs/en-zh.yaml"

    def listed(*words: str) -> set[str]:
        out = command_output("train", "--config", config, "--help", *words)
        assert words or out.count("\n") < 40  # a screen
        return {flag.partition(".")[0] for flag in re.findall(r"^  --(\w+\.\w+)", out, re.M)}

    assert listed() == set()
    for section in SECTIONS:
        assert listed(section) == {section}


@pytest.mark.parametrize("words", [[], *([name] for name in cli.COMMANDS)])
def test_help_ends_with_code_0(words: list[str]) -> None:
    text = " ".join(command_output(*words, "--help").split())
    summaries = {name: " ".join(str(run.__doc__).split()) for name, (_, run) in cli.COMMANDS.items()}
    assert text.startswith(" ".join(["usage: minitrans", *words]))
    if words:
        assert summaries[words[0]] in text
        assert "default: " in text
        assert words[0] in ("train", "distill") or not re.search(r"default: (None|False|\[\])", text)
    else:
        for name in summaries:
            assert f" {name} {summaries[name]}" in text


def test_the_compiled_flag_reaches_the_translator_and_the_checks(
    tiny_run: Path, reference_flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load, run, self_test = Mock(wraps=Translator.load), Mock(return_value=Report([])), Mock(return_value=iter(()))
    monkeypatch.setattr(Translator, "load", load)
    monkeypatch.setattr(run_checks, "run", run)
    monkeypatch.setattr(run_checks, "self_test", self_test)
    for words in (["translate", str(tiny_run), "a"], ["evaluate", str(tiny_run), *reference_flags]):
        command_output(*words, "--compiled", "off")
        command_output(*words)
    run_cli("verify", "--self-test", "--compiled", "off")
    calls = *load.call_args_list, *run.call_args_list, *self_test.call_args_list
    assert [call.kwargs["compiled"] for call in calls] == ["off", "auto", "off", "auto", "off", "off"]


def test_warnings_go_to_the_standard_error_of_the_moment(tmp_path: Path) -> None:
    handler, record = cli.process_setup.StandardErrorHandler(), logging.makeLogRecord({"msg": "unsure"})
    for name in ("a", "b"):
        with open(tmp_path / name, "w") as file, contextlib.redirect_stderr(file):
            handler.handle(record)
        assert (tmp_path / name).read_text() == "unsure\n"


@pytest.mark.parametrize(
    ("words", "parsed"),
    [
        ("translate r --beam 5 a b", {"run": "r", "texts": ["a", "b"], "beam": 5}),
        ("translate --beam=5 r a --debug b --no-cache", {"run": "r", "texts": ["a", "b"], "beam": 5}),
        ("translate r a --beam 2 -- --beam -x", {"texts": ["a", "--beam", "-x"], "beam": 2}),
        ("translate r -- -- a --", {"texts": ["--", "a", "--"], "beam": 1}),
        ("translate r -5 '- b' - '' null [1] '--a b'", {"texts": ["-5", "- b", "-", "", "null", "[1]", "--a b"]}),
        ("translate '--input=my file' r --output '- a'", {"input": "my file", "output": "- a", "texts": []}),
        ("translate r --length-penalty -1", {"length_penalty": -1.0, "texts": []}),
        *((f"export r {flag}", {"output": "d"}) for flag in ("-o d", "-o=d", "--output d", "--output=d")),
    ],
)
def test_flags_values_and_texts_are_told_apart(words: str, parsed: dict[str, Any]) -> None:
    _, args = cli.parse_command(shlex.split(words))
    assert {name: getattr(args, name) for name in parsed} == parsed


def test_wrong_usage_is_refused_without_importing_a_library() -> None:
    code = (
        "import sys; from minitrans import cli; assert cli.main(['translate', 'r', '--bee']) == 2; "
        "assert not {'torch', 'lightning', 'datasets', 'numpy'} & set(sys.modules); "
        "assert cli.main(['train', '--run-dir', 'r', '--bee']) == 2; "
        "assert not {'lightning', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, cli.process_setup.SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_waiting_threads_soon_sleep_unless_the_user_sets_how_they_wait(
    environment: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", environment)
    assert cli.main(["translate", "--bee"]) == 2
    assert environment.get("GOMP_SPINCOUNT") == spins
