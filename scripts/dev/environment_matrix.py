#!/usr/bin/env python3
"""The same tests and proofs, computed in many ways: compilers, optimizations, instruction sets, threads, sanitizers.

In each setting run the tests of the model, of compiled code, of verification and of the edits; `verify` of a fresh
model; 20 steps of training, plain and compiled, fp32 and bf16, and `verify` of what comes out (with sanitizers, only
the tests of compiled code). A setting that this machine lacks is named and left out. All of them take an hour; names as
arguments choose some.
"""

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "bench"))

from instruction_sets import INSTRUCTION_SETS  # noqa: E402

TEST_PATHS = ["tests/model", "tests/compiled", "tests/verify", "tests/test_model_edits.py"]
PYTEST_ARGUMENTS = ["-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
PYTEST_ARGUMENTS += ["-m", "not slow"]
PYTEST_ARGUMENTS += ["-p", "no:faulthandler"]  # it would take the signal that the tile unit in software needs
BRIEF_PYTEST_ARGUMENTS = ["tests/compiled/test_probe.py", "tests/compiled/test_stepper.py", "--numprocesses", "0"]
BRIEF_PYTEST_ARGUMENTS += ["-k", "not lesser_processors"]  # which compile for other processors once more
TRAIN_ARGUMENTS = ["train", "--config", "configs/en-zh.yaml", "--trainer.max_steps", "20"]
TRAIN_ARGUMENTS += ["--trainer.val_check_interval", "20"]
TRAIN_ARGUMENTS += ["--trainer.limit_val_batches", "1", "--data.batch_tokens", "256", "--model.n_layers", "1"]
SOFT_BFLOAT16_CXX = f"g++ -O1 --include={shlex.quote(f'{ROOT}/tests/compiled/bfloat16.h')}"  # the processor's, if any
SANITIZER_FLAGS = "-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all"


# Each setting: the flag in /proc/cpuinfo that it needs, and its environment.
CPU_FLAG_AND_ENV_BY_SETTING: dict[str, tuple[str, dict[str, str]]] = {
    "as it is": ("", {}),
    "one thread": ("", {"OMP_NUM_THREADS": "1"}),
    "two threads": ("", {"OMP_NUM_THREADS": "2"}),
    **{f"g++ -O{n}": ("", {"CXX": f"g++ -O{n}"}) for n in range(3)},
    "clang++": ("", {"CXX": "clang++"}),
    "clang++ -O1": ("", {"CXX": "clang++ -O1"}),
    **INSTRUCTION_SETS,
    "bfloat16 in software": ("avx512bw", {"CXX": SOFT_BFLOAT16_CXX}),
    "amx in software": ("avx512bw", {"CXX": f"{SOFT_BFLOAT16_CXX} -mamx-tile -mamx-bf16"}),
    "sanitizers": (
        "",
        {"CXX": f"g++ -O1 {SANITIZER_FLAGS}", "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"},
    ),
}


def preload_environment(setting: str, folder: Path) -> dict[str, str]:
    """The environment that preloads the libraries that a setting needs."""
    if setting == "amx in software":
        library = folder / "tile_unit.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, "tests/compiled/tile_unit.c"], check=True)
        return {"LD_PRELOAD": str(library)}
    if setting == "sanitizers":
        names = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
                 for name in ("libasan.so", "libstdc++.so")]  # fmt: skip
        return {"LD_PRELOAD": ":".join(names)}
    return {}


def missing_requirement(setting: str) -> str:
    """What this machine lacks for a setting, if anything."""
    unit, environment = CPU_FLAG_AND_ENV_BY_SETTING[setting]
    compiler = environment.get("CXX", "g++").split()[0]
    if not shutil.which(compiler):
        return f"no {compiler}"
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.is_file() and platform.machine() == "x86_64" else []
    if unit and unit not in flags:
        return f"the processor has no {unit}"
    own = {"bfloat16 in software": "avx512_bf16", "amx in software": "amx_tile"}.get(setting)
    return "the processor has such a unit" if own in flags else ""


def commands(setting: str, brief: bool, folder: Path) -> dict[str, list[str]]:
    """The commands to run, by name."""
    proof = {"verify": ["-m", "minitrans", "verify", "--compiled", "require"]}
    if brief:
        return {**proof, "tests": [*PYTEST_ARGUMENTS, *BRIEF_PYTEST_ARGUMENTS]}  # the proof compiles for both
    if setting == "sanitizers":
        return {"tests": [*PYTEST_ARGUMENTS, "tests/compiled"]}
    by_name = {"tests": [*PYTEST_ARGUMENTS, *TEST_PATHS], **proof}
    for mode in ("require", "off"):
        for precision in ("fp32", "bf16"):
            run = str(folder / f"{mode}-{precision}")
            flags = ["--compiled", mode, "--training.precision", precision, "--run-dir", run]
            by_name[f"train {precision} {mode}"] = ["-m", "minitrans", *TRAIN_ARGUMENTS, *flags]
            by_name[f"verify {precision} {mode}"] = ["-m", "minitrans", "verify", run, "--compiled", mode]
    return by_name


def list_setting_failures(setting: str, brief: bool) -> list[str]:
    """Run all commands of a setting; show the output of those that fail, and return their names."""
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = {**os.environ, **CPU_FLAG_AND_ENV_BY_SETTING[setting][1], **preload_environment(setting, folder)}
        for name, command in commands(setting, brief, folder).items():
            ended = subprocess.run(
                [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if ended.returncode:
                failed.append(name)
                print(ended.stdout[-6000:], f"{setting}: {name} ended with code {ended.returncode}", sep="\n")
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Try the settings; return 0 if nothing failed in any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("setting", nargs="*", help=f"which: {', '.join(CPU_FLAG_AND_ENV_BY_SETTING)}; default: all")
    parser.add_argument("--brief", action="store_true", help="the probe's and the decoder's tests, and verify alone")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.setting if name not in CPU_FLAG_AND_ENV_BY_SETTING]:
        parser.error(f"there is no setting {unknown[0]!r}; there are {', '.join(CPU_FLAG_AND_ENV_BY_SETTING)}")
    os.chdir(ROOT)
    rows, all_failed = [], False
    for setting in args.setting or CPU_FLAG_AND_ENV_BY_SETTING:
        began = time.monotonic()
        if reason := missing_requirement(setting):
            outcome = f"left out: {reason}"
        else:
            failed = list_setting_failures(setting, args.brief)
            outcome = f"{'failed: ' + ', '.join(failed) if failed else 'passed'} in {time.monotonic() - began:.0f} s"
            all_failed |= bool(failed)
        rows.append(f"{setting:16} {outcome}")
        print(rows[-1], flush=True)
    print("", *rows, sep="\n")
    return int(all_failed)


if __name__ == "__main__":
    sys.exit(main())
