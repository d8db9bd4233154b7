#!/usr/bin/env python3
"""Mutation testing of the C++: change one token or statement, compile, run the tests, and see whether they notice.

Each mutant is a copy of the package in a temporary folder, compiled there with little optimisation. What does not
compile, or compiles to the very same bytes, does not count. One takes about twenty seconds of a core.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from mutants import ROOT, Mutant, report_survivors_and_scores

from minitrans.cli.arguments import positive_int

COMPILED_DIR = Path("minitrans/compiled")
TESTS_DIR = ROOT / "tests/compiled"
COMPILE_COMMAND = ["c++", "-std=c++17", "-O1", "-march=native", "-fopenmp", "-fPIC", "-c"]
TIME_LIMIT = 300  # seconds for compiling and all tests; the unmutated code needs thirty

# What each token is replaced by. Binary operators have spaces around them, pointers and templates have none.
TOKEN_REPLACEMENTS = {
    " + ": " -", " - ": " +", " * ": " + /", " / ": " *", " % ": " /", " < ": " <= >", " <= ": " <", " > ": " >= <",
    " >= ": " >", " == ": " !=", " != ": " ==", " && ": " ||", " || ": " &&", " += ": " -= =", " -= ": " +=",
    " *= ": " +=", " /= ": " *=", " << ": " >>", " >> ": " <<", "std::max": "std::min", "std::min": "std::max",
    "true": "false", "false": "true", "LEFT": "RIGHT", "RIGHT": "LEFT", "++": "--",
}  # fmt: skip
_TOKEN_PATTERN = re.compile("|".join(rf"(?<!\w){re.escape(token)}(?!\w)" if token[0].isalpha() else re.escape(token)
                             for token in sorted(TOKEN_REPLACEMENTS, key=len, reverse=True)))  # fmt: skip
_INTEGER_PATTERN = re.compile(r"(?<![\w.])\d+(?![\w.])")
_FLOAT_PATTERN = re.compile(r"(?<![\w.])\d+\.\d+")
_STATEMENT_PATTERN = re.compile(r"^ *(?:(?:for|if) \(.*\) )?([\w*][^;{}]*;)$", re.MULTILINE)  # alone on a line, or last
_DECLARATION_PATTERN = re.compile(
    r"(?:return|const|auto|using|static|struct|template|typedef|[AT] |bool|u?int|float|double|__m|std::vector|"
    r"(?:Linear|Workspace|Matrix|Buffer|View|Operand|Normed|Lanes|TileUnit|Parameters)\b)"
)

# Mutants that do what the original does, so that no test can notice them: file, changed line, reason.
EQUIVALENT_MUTANTS = {
    "shared.h": {
        "for (; j + 3 * WIDTH < right.outer; j += 4 * WIDTH) multiply_block<2, 8>(left, right, 0, j, c, add);":
            "the second row goes where there is room",
        "return {(*this)[row] + column, n_rows, n_columns, stride, false};": "what has no room is packed more slowly",
    },
}  # fmt: skip


def code_alone(source: str) -> str:
    """The source with blanks in place of comments, strings and directives."""
    pattern = r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"|^#(?:[^\n\\]|\\\n|\\.)*"
    return re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match[0]), source, flags=re.DOTALL | re.MULTILINE)


def possible_changes(code: str) -> Iterator[tuple[int, int, str]]:
    """Where each possible change begins and ends, and what it puts there."""
    for match in _TOKEN_PATTERN.finditer(code):
        for other in TOKEN_REPLACEMENTS[match[0]].split():
            yield *match.span(), f" {other} " if match[0][0] == " " else other
    for match in _INTEGER_PATTERN.finditer(code):
        yield from ((*match.span(), str(int(match[0]) + by)) for by in (1, -1))
    for match in _FLOAT_PATTERN.finditer(code):
        yield *match.span(), f"1.01 * {match[0]}"
    for match in _STATEMENT_PATTERN.finditer(code):
        if not _DECLARATION_PATTERN.match(match[1]):
            yield *match.span(1), ";"


def make_mutants(file: str, source: str) -> Iterator[Mutant]:
    """Make every mutant of a file, each once."""
    for start, end, other in sorted({*possible_changes(code_alone(source))}):
        mutated = source[:start] + other + source[end:]
        first = source.rfind("\n", 0, start) + 1
        before, after = source[first : source.find("\n", end)], mutated[first : mutated.find("\n", start + len(other))]
        line, before, after = source.count("\n", 0, start) + 1, " ".join(before.split()), " ".join(after.split())
        why = EQUIVALENT_MUTANTS.get(file, {}).get(after, "")
        yield Mutant(f"{COMPILED_DIR / file}", range(line, line + 1), before, after, mutated, why)


def copy_package(folder: Path, mutant: Mutant | None = None) -> Path:
    """Copy the package into a folder, perhaps with a mutant in it, to compile quickly; return the folder of its C++."""
    shutil.copytree(ROOT / "minitrans", folder / "minitrans")
    for path in (folder / COMPILED_DIR).glob("*.py"):
        path.write_text(path.read_text(encoding="utf-8").replace('"-O3"', '"-O1"'), encoding="utf-8")
    if mutant:
        (folder / mutant.path).write_text(mutant.source, encoding="utf-8")
    return folder / COMPILED_DIR


def compile_to_object_bytes(folder: Path, changed: str = "") -> dict[str, bytes] | None:
    """The object code, by file name, of what a change of one file affects; None if a file does not compile."""
    compiled = {}
    for path in sorted(folder.glob(changed if changed.endswith(".cpp") else "*.cpp")):
        output = folder / "object.o"
        if subprocess.run([*COMPILE_COMMAND, str(path), "-o", str(output)], capture_output=True).returncode:
            return None
        compiled[path.name] = output.read_bytes()
    return compiled


def tests_pass(folder: Path, file: str) -> bool:
    """Whether all tests pass on a copy of the package; those named after the changed file run first."""
    tests = sorted(TESTS_DIR.glob("test_*.py"), key=lambda path: file.split(".")[0] not in path.name)
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "mutants", "--hypothesis-profile", "mutants",
               "-k", "not lesser_processors and not compiled_once"]  # fmt: skip  # which compile again
    paths = f"{folder}:{Path(__file__).parent}"
    environment = os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *map(str, tests)]
    try:
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIME_LIMIT)
        return ended.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Test the tests; return 0, 1 if they miss too much or `EQUIVALENT_MUTANTS` is wrong, or 2 if they fail anyway."""
    parser = argparse.ArgumentParser(description="Mutation testing of the C++.")
    parser.add_argument("--sample", type=positive_int, default=60, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="other numbers, other mutants")
    parser.add_argument("--list", action="store_true", help="list the mutants instead")
    arguments = parser.parse_args(argv)
    files = sorted(path for path in (ROOT / COMPILED_DIR).iterdir() if path.suffix in (".cpp", ".h"))
    made = [mutant for path in files for mutant in make_mutants(path.name, path.read_text(encoding="utf-8"))]
    random.Random(arguments.seed).shuffle(made)
    if arguments.list:
        print(*made[: arguments.sample], sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as name:
        originals = compile_to_object_bytes(copy_package(Path(name)))
        if not originals or not tests_pass(Path(name), ""):
            print("the tests fail on the unmutated code", file=sys.stderr)
            return 2
    survivors, killed = list[Mutant](), list[Mutant]()
    for mutant in made:
        if len(survivors) + len(killed) == arguments.sample:
            break
        with tempfile.TemporaryDirectory() as name:
            changed = Path(mutant.path).name
            compiled = compile_to_object_bytes(copy_package(Path(name), mutant), changed)
            if compiled is None or compiled.items() <= originals.items():
                continue
            (survivors if tests_pass(Path(name), changed) else killed).append(mutant)
        print(f"\r{len(survivors) + len(killed)} of {arguments.sample}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return report_survivors_and_scores(survivors, killed)


if __name__ == "__main__":
    sys.exit(main())
