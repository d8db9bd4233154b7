"""The commands as a user meets them: output, messages, exit codes."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from runs import wait_for_the_end_of
from safetensors.torch import load_file, save_file

import minitrans.serving
from minitrans import cli
from minitrans.cachecheck.check import Caught, Report
from minitrans.cli.arguments import CORES
from minitrans.serving.admission import Mode
from minitrans.serving.translator import Translator
from minitrans.training.config import SECTIONS
from minitrans.verify import proof
from minitrans.verify.checks import CHECKS
from minitrans.verify.sabotage import SABOTAGES

Capture = pytest.CaptureFixture[str]


def fails(capsys: Capture, *argv: str | Path) -> str:
    """Run a command that has to end with code 2 and one line on standard error; return that line."""
    assert cli.main([str(a) for a in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("minitrans: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def run_command(*argv: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "minitrans", *map(str, argv)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=120)


@contextlib.contextmanager
def standard_input(content: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file as standard input."""
    with tempfile.TemporaryFile("w+") as file, monkeypatch.context() as patch:
        file.buffer.write(content)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        yield


# -- translate ------------------------------------------------------------------------------------------------------


def test_texts_from_arguments(tiny_run: Path, capsys: Capture) -> None:
    assert cli.main(["translate", str(tiny_run), "I love you.", "", "I love you."]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 4
    assert lines[0] == lines[2] != ""
    assert lines[1] == lines[3] == ""


def test_a_file_in_and_a_file_out(tiny_run: Path, tmp_path: Path, capsys: Capture) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes("\ufeffI love you.\r\n\na\u2028b\0c\nlast without end".encode())
    assert cli.main(["translate", str(tiny_run), "--input", str(source), "--output", str(target)]) == 0
    assert capsys.readouterr().out == ""
    lines = target.read_text(encoding="utf-8").split("\n")
    assert len(lines) == 5
    assert lines[1] == lines[4] == ""
    assert [p.name for p in tmp_path.iterdir()].count("out.txt.tmp") == 0
    assert cli.main(["translate", str(tiny_run), "I love you."]) == 0
    assert capsys.readouterr().out == lines[0] + "\n"


def test_standard_input_in_many_chunks(tiny_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(cli.translate, "CHUNK_LINES", 2)
    with standard_input(b"I love you.\n\nI love you.\n\nI love you.\n", monkeypatch):
        assert cli.main(["translate", str(tiny_run)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines == [lines[0], "", lines[0], "", lines[0], ""]
    assert lines[0]


def test_no_cache_and_precision_give_the_same_words(tiny_run: Path, capsys: Capture) -> None:
    outputs = []
    for flags in ([], ["--no-cache"], ["--precision", "float64"], ["--threads", "1", "--batch-tokens", "8"]):
        assert cli.main(["translate", str(tiny_run), *flags, "I love you.", "Machine learning is fun."]) == 0
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 1


def test_beams_and_the_n_best(tiny_run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.translate, "CHUNK_LINES", 2)
    with standard_input(b"I love you.\n\nMachine learning is fun.\n", monkeypatch):
        assert cli.main(["translate", str(tiny_run), "--beam", "3", "--n-best", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert rows[2] == ["2", "0.0000", ""]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert cli.main(["translate", str(tiny_run), "--beam", "3", "I love you.", "", "Machine learning is fun."]) == 0
    assert capsys.readouterr().out.splitlines() == [rows[0][2], "", rows[3][2]]


def test_samples_are_those_of_the_seed(tiny_run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def sampled(*flags: str) -> list[str]:
        assert cli.main(["translate", str(tiny_run), *flags, "I love you.", "", "Machine learning is fun."]) == 0
        return capsys.readouterr().out.splitlines()

    first = sampled("--sample", "5")
    assert first[1] == ""
    assert first == sampled("--sample", "5", "--seed", "1")
    assert first != sampled("--sample", "5", "--seed", "2")
    assert first == sampled("--sample", "5", "--processes", "2")
    assert sampled("--sample", "1") == sampled()
    monkeypatch.setattr(cli.translate, "CHUNK_LINES", 2)
    with standard_input(b"I love you.\n\nMachine learning is fun.\n", monkeypatch):
        assert cli.main(["translate", str(tiny_run), "--sample", "5"]) == 0
    assert capsys.readouterr().out.splitlines() == first


@pytest.mark.parametrize("way", [[], ["--beam", "2", "--n-best", "1"], ["--sample", "3"], ["--scores"]])
def test_words_that_training_never_showed_are_named_once_a_line(
    tiny_run: Path, way: list[str], caplog: pytest.LogCaptureFixture, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.translate, "CHUNK_LINES", 2)
    text = "I love you.\n\nI love the Xyzzy, xyzzy and plugh\x1b[7q\u2028!\nI love you.\nPlugh\n"
    with standard_input(text.encode(), monkeypatch):
        assert cli.main(["translate", str(tiny_run), *way]) == 0
    assert caplog.messages == [
        "line 3: not in the training data: xyzzy, plugh, 7q",
        "line 5: not in the training data: plugh",
    ]
    assert capsys.readouterr().out.count("\n") == 5


@pytest.mark.parametrize("processes", ["1", "2"])
def test_scores_and_whether_they_are_low(tiny_run: Path, processes: str, capsys: Capture) -> None:
    lines = [*(tiny_run.parent / "test.en").read_text(encoding="utf-8").splitlines(), "", "I love xyzzy."]
    found = Translator.load(tiny_run).translations(lines, 2)
    assert {t.unsure for t in found} == {False, True}
    command = ["translate", str(tiny_run), "--beam", "2", "--processes", processes]
    assert cli.main([*command, "--scores", *lines]) == 0
    want = [f"{t.score:.4f}\t{'unsure' if t.unsure else ''}\t{t.text}" for t in found]
    assert capsys.readouterr().out.splitlines() == want
    assert cli.main([*command, *lines]) == 0
    assert capsys.readouterr().out.splitlines() == [t.text for t in found]


def test_invalid_utf8_names_the_line_and_writes_nothing(tiny_run: Path, tmp_path: Path, capsys: Capture) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"fine\nnot \xff fine\n")
    assert "in.txt, line 2" in fails(capsys, "translate", tiny_run, "--input", source, "--output", target)
    assert not target.exists()


LINES = "\ufeffI love you.\r\n\nMachine learning is fun.\nI love xyzzy.\n\nI love you.\nplugh\nI love deep learning."


@pytest.mark.parametrize("way", [[], ["--sample", "5"], ["--beam", "2", "--n-best", "2"], ["--scores"]])
def test_parts_put_together_are_the_whole(
    tiny_run: Path, way: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.translate, "CHUNK_LINES", 2)
    source, whole, part = (tmp_path / name for name in ("source", "whole", "part"))
    source.write_bytes(LINES.encode())
    command = ["translate", str(tiny_run), *way, "--input", str(source), "--output"]
    assert cli.main([*command, str(whole)]) == 0
    told = caplog.messages.copy()
    assert [message[:7] for message in told] == ["line 4:", "line 7:"]
    for n in (1, 3, 20):
        caplog.clear()
        joined = b""
        for k in range(1, n + 1):
            assert cli.main([*command, str(part), "--part", f"{k}/{n}"]) == 0
            joined += part.read_bytes()
        assert joined == whole.read_bytes()
        assert caplog.messages == told


INTERRUPTED = """
import os, sys
from minitrans import cli
from minitrans.serving.workers import Workers

def interrupted(workers, work, lines, first_line):
    if "plugh" in lines:
        os.kill(os.getpid(), int(sys.argv[1]))
    return run(workers, work, lines, first_line)

run, Workers.run = Workers.run, interrupted
cli.translate.CHUNK_LINES = 1
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
@pytest.mark.parametrize(("part", "n_done"), [([], 6), (["--part", "2/2"], 2)])
def test_an_interrupted_translation_goes_on(
    tiny_run: Path,
    number: int,
    code: int,
    part: list[str],
    n_done: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, whole, target, partial = (tmp_path / name for name in ("source", "whole", "target", "target.partial"))
    source.write_bytes(LINES.encode())
    command = ["translate", str(tiny_run), "--sample", "5", "--input", str(source), *part, "--output"]
    assert cli.main([*command, str(whole)]) == 0
    command += [str(target), "--resume"]
    killed = [sys.executable, "-c", INTERRUPTED, str(int(number)), *command]
    assert subprocess.run(killed, capture_output=True, check=False, timeout=120).returncode == code
    assert not target.exists()
    kept = partial.read_bytes()
    assert kept == b"".join(whole.read_bytes().splitlines(keepends=True)[:n_done])
    partial.write_bytes(kept + "我".encode()[:-1])
    caplog.clear()
    assert cli.main(command) == 0
    assert target.read_bytes() == whole.read_bytes()
    assert caplog.messages == ["line 7: not in the training data: plugh"]
    assert not partial.exists()
    caplog.clear()
    target.write_bytes(b"as it was")
    assert cli.main(command) == 0
    assert caplog.messages == [f"{target} is there already; nothing is left to do"]
    assert target.read_bytes() == b"as it was"


def test_a_long_line_is_named_on_standard_error(tiny_run: Path) -> None:
    done = run_command("translate", tiny_run, stdin=b"I love you.\n" + b"cat " * 10_000 + b"\nI love you.\n")
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 3
    assert done.stderr.count(b"\n") == 1
    assert b"line 2 is cut" in done.stderr


def test_a_reader_that_goes_away_is_no_fault(tiny_run: Path) -> None:
    command = [sys.executable, "-m", "minitrans", "translate", str(tiny_run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"I love you.\n" * 10)
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_translating_imports_nothing_that_it_does_not_need(tiny_run: Path) -> None:
    code = (
        "import sys, torch; there = set(sys.modules); from minitrans import cli; assert cli.main(sys.argv[1:]) == 0; "
        "print('\\n'.join(set(sys.modules) - there), file=sys.stderr)"
    )
    for flags, stdin in ((["I love you."], b""), (["--beam", "2", "--n-best", "2"], b"I love you.\n")):
        command = [sys.executable, "-c", code, "translate", str(tiny_run), *flags]
        done = subprocess.run(command, input=stdin, capture_output=True, check=True, timeout=120)
        imported = set(done.stderr.decode().split())
        libraries = {name.split(".")[0] for name in imported if name[0] != "_"} - sys.stdlib_module_names
        assert libraries <= {
            "minitrans",
            "sentencepiece",
            "safetensors",
        }  # no jsonargparse, and nothing that PyTorch loads lazily
        for ours in ("data", "training", "verify", "serving.scoring", "model.reference", "serving.export"):
            assert f"minitrans.{ours}" not in imported


class Running:
    """A command with pipes, killed after two minutes."""

    def __init__(self, *argv: str | Path) -> None:
        command = [sys.executable, "-m", "minitrans", *map(str, argv)]
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=buffered
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr
        self.killer = threading.Timer(120, self.process.kill)

    def __enter__(self) -> "Running":
        self.killer.start()
        self.process.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.process.__exit__(None, None, None)
        self.killer.cancel()


def test_a_slow_pipe_is_answered_line_by_line(tiny_run: Path, capsys: Capture) -> None:
    with Running("translate", tiny_run) as running:
        running.stdin.write(b"I love you.\nMachine lear")
        first = running.stdout.readline()
        assert first.strip()
        running.stdin.write(b"ning is fun.\n\n")
        second = running.stdout.readline()
        assert running.stdout.readline() == b"\n"
        running.stdin.write(b"cat " * 10_000 + b"\nI love you.")
        running.stdin.close()
        assert running.stdout.read().splitlines(keepends=True)[1:] == [first]
        assert running.process.wait() == 0
        warning = running.stderr.read()
    assert warning.count(b"\n") == 1
    assert b"line 4 is cut" in warning
    assert cli.main(["translate", str(tiny_run), "I love you.", "Machine learning is fun."]) == 0
    assert capsys.readouterr().out.encode() == first + second


def test_a_named_pipe_is_answered_line_by_line(tiny_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with Running("translate", tiny_run, "--input", path) as running, path.open("wb", buffering=0) as pipe:
        for _ in range(2):
            pipe.write(b"I love you.\n")
            assert running.stdout.readline().strip()
        running.stdout.close()
        pipe.write(b"I love you.\n")
        assert running.process.wait() == 0  # although the pipe is open
        assert running.stderr.read() == b""


def test_ctrl_c_and_a_fault_end_it_while_a_pipe_is_waited_for(tiny_run: Path) -> None:
    for interrupt, code, message in ((True, 130, b"interrupted"), (False, 2, b"standard input, line 2: byte 1")):
        with Running("translate", tiny_run) as running:
            running.stdin.write(b"I love you.\n")
            assert running.stdout.readline().strip()
            if interrupt:
                running.process.send_signal(signal.SIGINT)
            else:
                running.stdin.write(b"\xff\n")
            assert running.process.wait() == code
            told = running.stderr.read()
            assert message in told
            assert told.count(b"\n") == 1


def test_all_lines_come_back_through_a_pipe(tiny_run: Path) -> None:
    lines = [b""] * 30_000
    lines[::5000] = [b"I love you."] * 6
    answers = run_command("translate", tiny_run, stdin=b"\n".join([*lines, b""])).stdout.split(b"\n")
    assert [bool(answer) for answer in answers] == [bool(line) for line in lines] + [False]
    assert len(set(answers)) == 2


def test_standard_input_that_is_closed_is_told(
    tiny_run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as `<&-` leaves it
    assert "standard input is closed" in fails(capsys, "translate", tiny_run)


def test_a_terminal_is_prompted(tiny_run: Path) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "minitrans", "translate", str(tiny_run)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.write(ours, b"I love you.\n")
        first = process.stdout.readline()  # answered before the input ends
        os.write(ours, b"\x04")
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b"a sentence a line; Ctrl-D ends\n> > \n"
    os.close(ours)
    os.close(theirs)
    assert first.strip()


def test_in_a_dialogue_doubts_are_told(tiny_run: Path) -> None:
    pty = pytest.importorskip("pty")
    for to_terminal in (True, False):  # what is kept in a file holds translations alone
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "minitrans", "translate", str(tiny_run)]
        stdout = theirs if to_terminal else subprocess.PIPE
        with subprocess.Popen(command, stdin=theirs, stdout=stdout, stderr=subprocess.PIPE) as process:
            os.write(ours, b"I love xyzzy.\n")
            written = b""
            while to_terminal and b"> " not in written.partition(b"(unsure)\r\n")[2]:  # before, Ctrl-D may get lost
                written += os.read(ours, 1 << 16)
            if process.stdout:
                written = process.stdout.readline()
            os.write(ours, b"\x04")
            assert process.stderr is not None
            told = process.stderr.read().splitlines()
            assert process.wait(60) == 0
        os.close(theirs)
        os.close(ours)
        assert told[0] == b"a sentence a line; Ctrl-D ends"
        assert told[1].endswith(b"minitrans: warning: line 1: not in the training data: xyzzy")
        (found,) = Translator.load(tiny_run).translations(["I love xyzzy."])
        shown = f"{found.text} (unsure)\r\n" if to_terminal else f"{found.text}\n"
        assert shown in written.decode()
        assert to_terminal or written.decode() == shown


def screen(written: bytes) -> list[str]:
    """The lines on a terminal that has received this: it knows the few commands that a progress bar uses."""
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


def on_a_terminal(*argv: str | Path, stdin: Path, stdout: bool) -> tuple[bytes, bytes]:
    """What a command writes to a terminal, its standard error and maybe its output; and what to a pipe."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "minitrans", *map(str, argv)]
    with (
        stdin.open("rb") as source,
        subprocess.Popen(
            command,
            stdin=source,
            stdout=theirs if stdout else subprocess.PIPE,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "80"},
        ) as process,
    ):
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 1 << 16):
                written += piece
        os.close(ours)
        through_pipe = process.stdout.read() if process.stdout else b""
        assert process.wait(60) == 0
    return written, through_pipe


def test_a_progress_bar_garbles_neither_translations_nor_warnings(tiny_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(b"I love you.\n" + b"\n" * cli.translate.CHUNK_LINES + b"cat " * 10_000 + b"\nI love you.\n")
    plain = run_command("translate", tiny_run, "--input", source)
    assert b"line 4098 is cut" in plain.stderr
    warning = plain.stderr.decode().split()

    written, through_pipe = on_a_terminal("translate", tiny_run, stdin=source, stdout=False)
    assert through_pipe == plain.stdout
    assert b"4099/4099" in written  # the bar, which is gone in the end
    assert "\n".join(screen(written)).split() == warning

    part = "--input", source, "--part", "1/2"
    written, _ = on_a_terminal("translate", tiny_run, *part, stdin=source, stdout=False)
    assert b"4098/4098" in written

    written, _ = on_a_terminal("translate", tiny_run, stdin=source, stdout=True)
    assert b"4099/4099" in written
    shown, answers = screen(written), plain.stdout.decode().split("\n")
    assert shown[: cli.translate.CHUNK_LINES] == answers[: cli.translate.CHUNK_LINES]
    assert shown[-4:] == answers[-4:]
    assert " ".join(shown[cli.translate.CHUNK_LINES : -4]).split() == warning


def test_several_processes_give_the_same_lines_and_warnings(tiny_run: Path) -> None:
    text = b"I love you.\n" + b"cat " * 10_000 + b"\nMachine learning is fun.\n\n" + b"cat " * 10_000 + b"\n"
    text += b"I love xyzzy.\nI love plugh.\n"
    one, two = (run_command("translate", tiny_run, "--processes", n, stdin=text) for n in ("1", "2"))
    assert (two.returncode, two.stdout) == (one.returncode, one.stdout)
    told = [sorted(done.stderr.decode().splitlines()) for done in (one, two)]
    assert told[0] == told[1]
    assert [line for line in told[1] if "not in the training data" in line] == [
        "minitrans: warning: line 6: not in the training data: xyzzy",
        "minitrans: warning: line 7: not in the training data: plugh",
    ]
    assert any("line 5 is cut" in line for line in told[1])


@pytest.mark.slow
def test_ctrl_c_and_a_reader_that_goes_away_end_all_processes_quietly(tiny_run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minitrans", "translate", str(tiny_run), "--processes", "2"]
    for interrupt, code, message in ((True, 130, b"minitrans: interrupted\n"), (False, 0, b"")):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(b"I love you.\n" * cli.translate.CHUNK_LINES * 2)
            process.stdin.flush()
            assert process.stdout.readline()  # all have begun
            if interrupt:
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.stdout.close()
                process.stdin.write(b"I love you.\n" * 10)
            process.stdin.close()
            assert process.stderr.read() == message
            assert process.wait(60) == code
        wait_for_the_end_of(process.pid)


# -- evaluate -------------------------------------------------------------------------------------------------------


def test_evaluate_prints_the_json_of_the_contract(tiny_run: Path, tmp_path: Path, capsys: Capture) -> None:
    source, reference = tmp_path / "a.en", tmp_path / "a.zh"
    source.write_text("I love you.\nMachine learning is fun.\n")
    assert cli.main(["translate", str(tiny_run), "--input", str(source), "--output", str(reference)]) == 0
    assert cli.main(["evaluate", str(tiny_run), "--source", str(source), "--reference", str(reference), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        "bleu",
        "bleu_signature",
        "bleu_interval",
        "chrf",
        "chrf_signature",
        "chrf_interval",
        "exact_match",
        "sentences",
        "unsure",
        "unsure_precision",
        "unsure_recall",
        "unsure_wrong",
        "seconds",
        "sentences_per_second",
    }
    assert (found["exact_match"], found["sentences"]) == (100.0, 2)


def other_run(run: Path, folder: Path, **sizes: str) -> Path:
    """A copy of a run that translates badly."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    weights = load_file(folder / "model.safetensors")
    noise = torch.Generator().manual_seed(1)
    save_file(
        {name: w + 0.5 * torch.randn(w.shape, generator=noise) for name, w in weights.items()},
        folder / "model.safetensors",
    )
    told = json.loads((folder / "model.json").read_text())
    del told["sha256"]  # as versions before wrote it
    (folder / "model.json").write_text(json.dumps(told | sizes))
    return folder


@pytest.fixture
def own_words(tiny_run: Path, tmp_path: Path) -> list[str]:
    """Flags that score translations of the test split against those of `tiny_run`."""
    source, reference = tiny_run.parent / "test.en", tmp_path / "own.zh"
    assert cli.main(["translate", str(tiny_run), "--input", str(source), "--output", str(reference)]) == 0
    return ["--source", str(source), "--reference", str(reference)]


def test_evaluate_prints_scores_with_intervals_and_signatures(
    tiny_run: Path, own_words: list[str], capsys: Capture
) -> None:
    assert cli.main(["evaluate", str(tiny_run), *own_words]) == 0
    scores, bleu, chrf, marks, speed = capsys.readouterr().out.splitlines()
    sure = r" 100.00 \(95% CI 100.00-100.00\)"
    assert re.fullmatch(rf"test.en: BLEU{sure}  chrF{sure}  exact match 100.0%  \(15 sentences\)", scores)
    assert bleu.startswith("BLEU nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:zh|")
    assert chrf.startswith("chrF nrefs:1|bs:1000|seed:12345|")
    assert re.fullmatch(
        r"test.en: unsure of \d+.\d%; of these 0.0% wrong \(precision\), of the wrong none among them \(recall\); "
        r"wrong: equal to no reference, chrF below 40",
        marks,
    )
    assert speed.endswith(" sentences/s")


def test_evaluate_tells_how_often_unsure_is_right(
    tiny_run: Path, tmp_path: Path, own_words: list[str], capsys: Capture
) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    sources = Path(own_words[1]).read_text(encoding="utf-8").splitlines()
    translator = Translator.load(tiny_run)
    found = translator.translations(sources)
    middle = sorted(t.score for t in found)[7]
    told = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps(told | {"threshold": {"score": middle, "chrf": None}}))
    unsure = [bool(t.unknown) or t.score < middle for t in found]
    wrong = [i % 3 == 0 for i in range(15)]
    lines = "".join(f"{'x' if w else t.text}\n" for t, w in zip(found, wrong, strict=True))
    (tmp_path / "ref.zh").write_text(lines, encoding="utf-8")
    both = sum(u and w for u, w in zip(unsure, wrong, strict=True))
    assert 0 < both < min(sum(unsure), sum(wrong)) <= max(sum(unsure), sum(wrong)) < 15
    command = ["evaluate", str(run), "--source", own_words[1], "--reference", str(tmp_path / "ref.zh")]
    for more, both_and in (([], both), (["--reference", own_words[3]], 0)):  # by the second, all are right
        assert cli.main([*command, *more, "--json"]) == 0
        marks = json.loads(capsys.readouterr().out)
        assert marks["unsure"] == pytest.approx(100 * sum(unsure) / 15)
        assert marks["unsure_precision"] == pytest.approx(100 * both_and / sum(unsure))
        assert marks["unsure_recall"] == (None if more else pytest.approx(100 * both / 5))
        assert marks["unsure_wrong"] == "equal to no reference"
    assert cli.main(command) == 0
    assert f"of these {100 * both / sum(unsure):.1f}% wrong (precision), of the wrong {20 * both:.1f}% among" in (
        capsys.readouterr().out
    )
    (run / "model.json").write_text(json.dumps({name: told[name] for name in told if name != "threshold"}))
    assert cli.main([*command, "--json"]) == 0
    assert "unsure" not in capsys.readouterr().out


def test_evaluate_compares_runs_with_the_first(
    tiny_run: Path, tmp_path: Path, own_words: list[str], capsys: Capture
) -> None:
    other = other_run(tiny_run, tmp_path / "other")
    runs = [str(tiny_run), str(other), str(tiny_run)]
    assert cli.main(["evaluate", *runs, *own_words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"runs", "mean", "std"}
    assert [run["run"] for run in found["runs"]] == runs
    first, worse, same = found["runs"]
    assert "bleu_p" not in first
    assert first["bleu"] == same["bleu"] > worse["bleu"]
    assert worse["bleu_p"] < 0.05 < same["bleu_p"]
    assert found["mean"]["bleu"] == pytest.approx((200 + worse["bleu"]) / 3)
    assert set(found["mean"]) == set(found["std"]) == {"bleu", "chrf", "exact_match"}

    assert cli.main(["evaluate", *runs, *own_words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines[:3]] == runs
    assert [line.count(", p = ") for line in lines[:3]] == [0, 2, 2]
    assert [line.count("*") for line in lines[:3]] == [0, 2, 0]
    mean, std = found["mean"]["bleu"], found["std"]["bleu"]
    assert [line.split(": unsure of ")[0] for line in lines[5:8]] == runs
    assert lines[8].startswith(f"mean (std): BLEU {mean:.2f} ({std:.2f})  chrF ")


def test_evaluate_refuses_runs_of_different_languages(
    tiny_run: Path, tmp_path: Path, own_words: list[str], capsys: Capture
) -> None:
    other = other_run(tiny_run, tmp_path / "other", target="de")
    message = fails(capsys, "evaluate", tiny_run, other, *own_words)
    assert f"{other} translates en to de, {tiny_run} en to zh; compare runs that" in message


def test_evaluate_with_another_tokenizer(tiny_run: Path, own_words: list[str], capsys: Capture) -> None:
    assert cli.main(["evaluate", str(tiny_run), *own_words, "--tokenize", "none", "--json"]) == 0
    assert "tok:none" in json.loads(capsys.readouterr().out)["bleu_signature"]


def test_evaluate_in_several_processes_finds_the_same(tiny_run: Path, capsys: Capture) -> None:
    folder = tiny_run.parent
    flags = ["evaluate", str(tiny_run), "--source", str(folder / "test.en"), "--reference", str(folder / "test.zh")]
    scores = []
    for n in ("1", "2"):
        assert cli.main([*flags, "--json", "--processes", n]) == 0
        scores.append(
            {k: v for k, v in json.loads(capsys.readouterr().out).items() if "seconds" not in k and "per" not in k}
        )
    assert scores[0] == scores[1]


def test_evaluate_with_several_references(
    tiny_run: Path, tmp_path: Path, own_words: list[str], capsys: Capture
) -> None:
    source, own = Path(own_words[1]), Path(own_words[3]).read_text(encoding="utf-8").splitlines()
    first, second = tmp_path / "first.zh", tmp_path / "second.zh"
    first.write_text("".join(f"{'x' if i % 3 == 0 else line}\n" for i, line in enumerate(own)), encoding="utf-8")
    second.write_text("".join(f"{line if i < 3 else ''}\n" for i, line in enumerate(own)), encoding="utf-8")
    evaluate = ["evaluate", str(tiny_run), "--source", str(source), "--json"]
    exact = []
    for files in ([first], [first, second], [first, second, own_words[3]]):
        assert cli.main([*evaluate, *(word for file in files for word in ("--reference", str(file)))]) == 0
        found = json.loads(capsys.readouterr().out)
        exact.append(found["exact_match"])
    assert exact == pytest.approx([100 * n / 15 for n in (10, 11, 15)])
    assert (found["bleu_signature"][:9], found["bleu"]) == ("nrefs:var", pytest.approx(100))

    message = fails(capsys, *evaluate, "--reference", second, "--reference", first)
    assert f"{second}, line 4 is empty; the first of several references must be complete" in message
    (tmp_path / "short.zh").write_text("a\n")
    message = fails(capsys, *evaluate, "--reference", first, "--reference", tmp_path / "short.zh")
    assert f"{source} has 15 lines, {tmp_path / 'short.zh'} has 1;" in message


# -- verify ---------------------------------------------------------------------------------------------------------


def test_verify_a_fresh_model(capsys: Capture) -> None:
    assert cli.main(["verify"]) == 0
    assert "0 failed" in capsys.readouterr().out


def test_verify_a_trained_run_as_json(tiny_run: Path, capsys: Capture) -> None:
    assert cli.main(["verify", str(tiny_run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True


def test_verify_writes_a_page_and_says_where(
    tiny_run: Path, fresh_report: Report, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "run", lambda **_: fresh_report)
    assert cli.main(["verify", str(tiny_run), "--report", str(tmp_path / "proof")]) == 0
    assert f"page: {tmp_path / 'proof' / 'index.html'}" in capsys.readouterr().err
    assert "cache.steps" in (tmp_path / "proof" / "index.html").read_text(encoding="utf-8")
    (tmp_path / "file").touch()
    assert "cannot make the folder" in fails(capsys, "verify", "--report", tmp_path / "file" / "proof")


def test_one_sabotage_shows_the_claims_that_fail(capsys: Capture) -> None:
    assert cli.main(["verify", "--sabotage", "positions.restart", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    failed = [check["id"] for check in found["checks"]]
    assert {"cache.steps", "cache.chunks", "cache.score"} <= set(failed)
    assert not any(check["passed"] for check in found["checks"])
    assert all(check["measured"] is None or check["measured"] > check["tolerance"] for check in found["checks"])
    assert found["sabotages"] == [
        {"id": "positions.restart", "fault": "Positions begin at 0 again in every step.", "caught_by": failed}
    ]
    assert cli.main(["verify", "--sabotage", "positions.restart"]) == 1
    out = capsys.readouterr().out
    assert "position 1 of row 0 is the first that differs" in out
    assert f"0 passed, {len(failed)} failed" in out


def test_the_sabotages_are_listed(capsys: Capture) -> None:
    assert cli.main(["verify", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [sabotage.id for sabotage in proof.sabotages_for("auto")]
    assert ["positions.restart", "Positions begin at 0 again in every step."] in [
        line.split(maxsplit=1) for line in lines
    ]


def test_the_self_test_shows_what_caught_what_and_counts_for_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(proof, "SABOTAGES", [s for s in SABOTAGES if s.id in ("rows.sorted", "loss.padding")])
    monkeypatch.setattr(proof, "CHECKS", [c for c in CHECKS if c.id in ("cache.rows", "C20")])
    assert cli.main(["verify", "--self-test", "--json"]) == 0
    caught = json.loads(capsys.readouterr().out)["sabotages"]
    assert {(s["id"], *s["caught_by"]) for s in caught} == {("loss.padding", "C20"), ("rows.sorted", "cache.rows")}
    monkeypatch.setattr(proof, "SABOTAGES", [s for s in SABOTAGES if s.id == "rows.sorted"])
    assert cli.main(["verify", "--self-test"]) == 1
    assert "1 sabotage, 1 caught; checks that caught none: " in capsys.readouterr().out


def test_a_failed_check_ends_with_code_1(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    from minitrans.model.cache import DecoderCache

    monkeypatch.setattr(DecoderCache, "select_rows", lambda self, rows: None)
    assert cli.main(["verify"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_verify_a_run_whose_corpus_has_gone(
    tiny_run: Path, fresh_report: Report, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "run", lambda **_: fresh_report)
    assert "gone: No such file" in fails(capsys, "verify", tiny_run, "--data", tmp_path / "gone")
    run = shutil.copytree(tiny_run, tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["path"] = str(tmp_path / "gone")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert "has moved, give its place with --data" in fails(capsys, "verify", run)
    assert cli.main(["verify", str(run), "--data", str(tiny_run.parent)]) == 0


# -- export (with the engine: tests/test_export.py) -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "library", "module", "extra"),
    [("ctranslate2", "ctranslate2", "export", "export"), ("transformers", "tokenizers", "export_transformers", "hf")],
)
def test_export_where_the_engine_is_not_installed(
    name: str, library: str, module: str, extra: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"minitrans.serving.{module}", raising=False)
    monkeypatch.delattr(minitrans.serving, module, raising=False)
    message = fails(capsys, "export", tmp_path, "--format", name, "-o", tmp_path / "out")
    assert f"{library} is not installed; install minitrans with its extra `{extra}`" in message


# -- usage ----------------------------------------------------------------------------------------------------------


# Commands, RUN for the folder of a run, and what is said of them. The files `one` and `two` have as many lines.
WRONG = [
    ("", "the following arguments are required: COMMAND; see minitrans --help"),
    ("--x", "the following arguments are required: COMMAND; see minitrans --help"),
    ("evalute x", "there is no command evalute (see minitrans --help); the nearest is evaluate"),
    ("translate", "the following arguments are required: RUN; see minitrans translate --help"),
    ("evaluate RUN", "the following arguments are required: --source, --reference; see minitrans evaluate --help"),
    ("export -o d", "the following arguments are required: RUN; see minitrans export --help"),
    ("export RUN", "the following arguments are required: -o/--output; see minitrans export --help"),
    ("translate RUN --bee 3", "there is no flag --bee (see minitrans translate --help); the nearest is --"),
    ("translate RUN --debgu=x", "there is no flag --debgu (see minitrans translate --help); the nearest is --debug"),
    ("verify --js", "there is no flag --js (see minitrans verify --help); the nearest is --json"),
    ("train --debgu", "there is no flag --debgu (see minitrans train --help); the nearest is --debug"),
    ("distill --resume", "there is no flag --resume (see minitrans distill --help); the nearest is "),
    ("distill --seed -1", "--seed is -1; it must be a whole number from 0 to 4294967295"),
    ("export RUN -o d --compiled off", "there is no flag --compiled "),
    ("verify RUN more", "more is one argument too many; see minitrans verify --help"),
    ("translate RUN --beam", "argument --beam: expected one argument; see minitrans translate --help"),
    ("translate RUN a --beam 0", "argument --beam: it must be a whole number from 1 to 200 (more take time and "),
    ("translate RUN a --beam 201", "argument --beam: it must be a whole number from 1 to 200 (more take time and "),
    ("translate RUN a --sample 0", "argument --sample: it must be a whole number from 1 to 2147483647, not 0"),
    (f"translate RUN a --sample {'9' * 30}", "argument --sample: it must be a whole number from 1 to 2147483647, not"),
    ("translate RUN a --seed -1", "argument --seed: it must be a whole number from 0 to 4294967295, not -1"),
    ("translate RUN a --threads 0", f"argument --threads: it must be a whole number from 1 to {CORES} (this machine's"),
    ("translate RUN a --threads 100000", f"--threads: it must be a whole number from 1 to {CORES} (this machine's "),
    ("translate RUN a --processes 100000", f"--processes: it must be a whole number from 1 to {CORES} (this machine's"),
    ("translate RUN a --length-penalty nan", "--length-penalty: it must be a number from -10 to 10 (beyond, rounding "),
    ("translate RUN a --length-penalty 1e30", "--length-penalty: it must be a number from -10 to 10 (beyond, rounding"),
    ("translate RUN a --batch-tokens many", "argument --batch-tokens: it must be a whole number from 1 to 2147483647"),
    ("translate RUN a --precision float7", "argument --precision: invalid choice: 'float7' (choose from "),
    ("evaluate RUN --tokenize moses", "argument --tokenize: invalid choice: 'moses' (choose from "),
    ("translate RUN a --device abacus", "--device abacus: "),
    ("translate RUN a --beam 2 --n-best 3", "--n-best 3 is more than --beam 2; search with as many beams"),
    ("translate RUN a --sample 5 --beam 2", "--sample does not go together with --beam or --n-best; give one of them"),
    ("translate RUN a --sample 5 --n-best 1", "--sample does not go together with --beam or --n-best; give one of the"),
    ("translate RUN a --scores --sample 2", "--scores does not go together with --sample or --n-best, which has score"),
    ("translate RUN a --scores --n-best 1", "--scores does not go together with --sample or --n-best, which has score"),
    ("translate RUN a --input f", "texts and --input are both given; give one"),
    *(
        (f"translate RUN --input one --part {text}", f"--part: it must be K/N, as 2/8, with K from 1 to N, not {text};")
        for text in ("0/2", "3/2", "2", "/", "1/x", "1/2/3", "1.0/2")
    ),
    ("translate RUN --part 1/2", "--part and --resume read a regular file; give its path with --input"),
    ("translate RUN a --part 1/2", "--part and --resume read a regular file; give its path with --input"),
    ("translate RUN --input pipe --part 1/2", "--part and --resume read a regular file; give its path with --input"),
    ("translate RUN --input . --output d --resume", "--part and --resume read a regular file; give its path with --in"),
    ("translate RUN --input one --resume", "--resume needs --output, and a line for every line, so no --n-best; chan"),
    ("translate RUN --input one --output d --resume --n-best 1", "--resume needs --output, and a line for every line"),
    ("translate RUN --input two --output long --resume", "long.partial has 3 lines for 2 of text; remove it"),
    ("translate RUN --input two --output long --resume --part 1/2", "long.partial has 3 lines for 1 of text; remove"),
    ("evaluate RUN --source two --reference one", "two has 2 lines, one has 1; make them equal"),
    ("evaluate RUN --source empty --reference empty", "empty is empty; there is nothing to score"),
    ("verify --sabotage position.restart", "no sabotage position.restart (see --list); the nearest is positions.resta"),
    ("verify --sabotage mask.leak run", "--sabotage breaks a fresh model: give no RUN, --data or --self-test with it"),
    ("verify --sabotage mask.leak --self-test", "--sabotage breaks a fresh model: give no RUN, --data or --self-test "),
]


@pytest.mark.parametrize(("words", "told"), WRONG, ids=[words[:60] for words, _ in WRONG])
def test_what_is_wrong_is_told_in_one_line(
    words: str, told: str, tiny_run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("one", "a\n"), ("two", "a\nb\n"), ("empty", ""), ("long.partial", "a\nb\nc\n")):
        Path(name).write_text(text)
    os.mkfifo("pipe")
    assert told in fails(capsys, *words.replace("RUN", str(tiny_run)).split())


@pytest.mark.parametrize("command", ["translate", "evaluate", "verify"])
def test_a_folder_that_is_no_run(command: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "f").write_text("a\n")
    flags: dict[str, list[str | Path]] = {
        "translate": ["--input", tmp_path / "f"],
        "evaluate": ["--source", tmp_path / "f", "--reference", tmp_path / "f"],
        "verify": [],
    }
    assert "model.json, model.safetensors, tokenizer.model is missing" in fails(
        capsys, command, tmp_path, *flags[command]
    )


def test_debug_shows_where_it_happened(tmp_path: Path) -> None:
    from minitrans.errors import UserError

    with pytest.raises(UserError, match="is not a folder"):
        cli.main(["translate", str(tmp_path / "gone"), "--debug", "a"])


def test_flags_may_stand_between_texts(tiny_run: Path, capsys: Capture) -> None:
    assert cli.main(["translate", str(tiny_run), "I love you.", "--threads", "1", "I love you."]) == 0
    assert capsys.readouterr().out.count("\n") == 2


def test_settings_are_listed_section_by_section(capsys: Capture) -> None:
    def listed(*words: str) -> set[str]:
        with pytest.raises(SystemExit, match=r"^0$"):
            cli.main(["train", "--help", *words])
        out = capsys.readouterr().out
        assert words or out.count("\n") < 40  # a screen
        return {flag.partition(".")[0] for flag in re.findall(r"^  --(\w+\.\w+)", out, re.M)}

    assert listed() == set()
    for section in SECTIONS:
        assert listed(section) == {section}


@pytest.mark.parametrize("command", [[], *([name] for name in cli.COMMANDS)])
def test_help_ends_with_code_0(command: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([*command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    told = {name: " ".join(str(run.__doc__).split()) for name, (_, run) in cli.COMMANDS.items()}
    assert text.startswith(" ".join(["usage: minitrans", *command]))
    if command:
        assert told[command[0]] in text
        assert "default: " in text
    else:
        for name in told:
            assert f" {name} {told[name]}" in text


SETTINGS = ["--run-dir=r", "--data.path=p", "--data.source=a", "--data.target=b", "--trainer.max_steps=1"]
NEEDED = {  # what each command needs at least
    "train": SETTINGS,
    "distill": SETTINGS,
    "translate": ["r"],
    "evaluate": ["r", "--source", "s", "--reference", "t"],
    "verify": ["r"],
    "explain": ["r", "a"],
    "export": ["r", "--output", "o"],
    "serve": ["r"],
}


def test_every_command_is_tested() -> None:
    assert set(NEEDED) == set(cli.COMMANDS)


@pytest.mark.parametrize("command", NEEDED)
def test_compiled_is_a_flag_where_something_is_computed(command: str, capsys: Capture) -> None:
    if command == "export":
        return
    assert cli.parse_command([command, *NEEDED[command]])[1].compiled == "auto"
    for mode in ("auto", "off", "require"):
        assert cli.parse_command([command, *NEEDED[command], "--compiled", mode])[1].compiled == mode
    assert "--compiled" in fails(capsys, command, *NEEDED[command], "--compiled", "no")


def test_compiled_reaches_who_computes(
    tiny_run: Path, own_words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    load = Translator.load

    def seen(run: str, device: str, dtype: torch.dtype, compiled: Mode) -> Translator:
        asked.append(compiled)
        return load(run, device, dtype, compiled)

    def measured(compiled: Mode, **_: object) -> Report:
        asked.append(compiled)
        return Report([])

    def sabotaged(compiled: Mode) -> Iterator[Caught]:
        asked.append(compiled)
        return iter(())

    monkeypatch.setattr(Translator, "load", seen)
    monkeypatch.setattr(proof, "run", measured)
    monkeypatch.setattr(proof, "self_test", sabotaged)
    for command in (["translate", str(tiny_run), "a"], ["evaluate", str(tiny_run), *own_words]):
        assert cli.main([*command, "--compiled", "off"]) == cli.main(command) == 0
    cli.main(["verify", "--self-test", "--compiled", "off"])
    assert asked == ["off", "auto", "off", "auto", "off", "off"]


def test_workers_do_not_find_out_once_more_that_compiled_code_may_not_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Plain:
        compiled = False

    _, args = cli.parse_command(["translate", "r"])
    monkeypatch.setattr(Translator, "load", lambda *_, **__: Plain())
    cli.common.load_translator("r", args)
    assert args.compiled == "off"
    monkeypatch.setattr(Plain, "compiled", True)
    _, args = cli.parse_command(["translate", "r", "--compiled", "require"])
    cli.common.load_translator("r", args)
    assert args.compiled == "require"


def test_without_the_cache_every_way_finds_the_same(tiny_run: Path, capsys: Capture) -> None:
    for way in (["--beam", "3"], ["--beam", "3", "--n-best", "2"], ["--sample", "5"]):
        outputs = []
        for flags in ([], ["--no-cache"]):
            words = ["translate", str(tiny_run), "--precision", "float64", *way, *flags, "I love you.", ""]
            assert cli.main(words) == 0
            outputs.append(capsys.readouterr().out)
        assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("words", "texts", "beam"),
    [
        (["r", "--beam", "5", "a", "b"], ["a", "b"], 5),
        (["--beam=5", "r", "a", "--debug", "b", "--no-cache"], ["a", "b"], 5),
        (["r", "a", "--beam", "2", "--", "--beam", "-x"], ["a", "--beam", "-x"], 2),
        (["r", "--", "--", "a", "--"], ["--", "a", "--"], 1),
        (["r", "-5", "- b", "-", "", "null", "[1]", "--a b"], ["-5", "- b", "-", "", "null", "[1]", "--a b"], 1),
    ],
)
def test_flags_and_texts_are_told_apart(words: list[str], texts: list[str], beam: int) -> None:
    _, args = cli.parse_command(["translate", *words])
    assert (args.run, args.texts, args.beam) == ("r", texts, beam)


def test_a_value_may_hold_spaces_and_dashes() -> None:
    _, args = cli.parse_command(["translate", "--input=my file", "r", "--output", "- a", "--length-penalty", "-1"])
    assert (args.input, args.output, args.length_penalty, args.texts) == ("my file", "- a", -1.0, [])


@pytest.mark.parametrize("words", [["-o", "d"], ["-od"], ["-o=d"], ["--output", "d"], ["--output=d"]])
def test_a_flag_may_be_short(words: list[str]) -> None:
    assert cli.parse_command(["export", "r", *words])[1].output == "d"


def test_wrong_usage_is_answered_without_loading_a_library() -> None:
    code = (
        "import sys; from minitrans import cli; assert cli.main(['translate', 'r', '--bee']) == 2; "
        "assert not {'torch', 'lightning', 'datasets', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, cli.SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_soon_sleep_unless_the_user_says_how_they_wait(
    environment: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", environment)
    assert cli.main(["translate", "--bee"]) == 2
    assert environment.get("GOMP_SPINCOUNT") == spins


def test_ctrl_c_ends_with_code_130(monkeypatch: pytest.MonkeyPatch, tiny_run: Path, capsys: Capture) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.common, "load_translator", interrupt)
    assert cli.main(["translate", str(tiny_run), "a"]) == 130
    assert capsys.readouterr().err == "minitrans: interrupted\n"
