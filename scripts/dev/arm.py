#!/usr/bin/env python3
"""Checks minitrans on ARM (aarch64) without an ARM machine: emulated by QEMU, its C++ compiled by a cross compiler.

`arm.py runs/en-zh` sets up build/arm, once: Debian's Python for ARM, and the packages of constraints.txt. There it runs
what `CHECKS` names; the run's translations have to be those of this machine. build/arm/bin/python is a Python like
any other, only far slower: `build/arm/bin/python -m minitrans ...`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARM_DIR = ROOT / "build" / "arm"
PACKAGE_BY_TOOL = {  # the programs needed, and the packages of Debian that have them
    "qemu-aarch64-static": "qemu-user-static",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "debootstrap": "debootstrap",
    "dpkg-deb": "dpkg",
}
DEBIAN_RELEASE, PYTHON_VERSION = "bookworm", "3.11"  # of Debian, and of its Python
TORCH_VERSION = "2.10.0"  # the version in constraints.txt wants CUDA's libraries on ARM
WRAPPER_SCRIPTS = {
    # A cross compiler knows no native processor. Neoverse N1 has no SVE: code for that is not run.
    "c++": """#!/bin/sh
for word; do
    shift
    [ "$word" = -mcpu=native ] && word=-mcpu=neoverse-n1
    set -- "$@" "$word"
done
exec aarch64-linux-gnu-g++ "$@"
""",
    # QEMU is called by this script's name, which Python starts again if a program wants more processes.
    "python": f"""#!/bin/sh
unset CXX
arm='{ARM_DIR}'
export PATH="$arm/bin:$PATH" XDG_CACHE_HOME="$arm/cache" OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
exec qemu-aarch64-static -cpu neoverse-n1 -L "$arm/root" -0 "$arm/bin/python" \\
    "$arm/root/usr/bin/python{PYTHON_VERSION}" "$@"
""",
}
EXCERPT_SIZES = {"everyday": 100, "train": 1000, "valid": 10}  # lines of each file
TRAIN_ARGUMENTS = "-m minitrans train --config configs/en-zh.yaml --data.path {made} --run-dir {made}/run"
TRAIN_ARGUMENTS += " --tokenizer.vocab_size 2000 --data.batch_tokens 256 --model.n_layers 1 --trainer.max_steps 20"
TRAIN_ARGUMENTS += " --trainer.val_check_interval 20 --compiled "
CHECKS = {
    "translate": "-m minitrans translate {run} --compiled require --input {made}/everyday.en --output {made}/arm",
    "verify": "-m minitrans verify --compiled require",
    "train compiled": TRAIN_ARGUMENTS + "require",
    "train plain": TRAIN_ARGUMENTS + "off",
    "tests": "-m pytest -p no:faulthandler tests/model tests/compiled",
}


def make_arm_environment() -> None:
    """Make build/arm: a virtual environment of a Python for ARM."""
    shutil.rmtree(ARM_DIR, ignore_errors=True)
    root, packages = ARM_DIR / "root", ARM_DIR / "lib" / f"python{PYTHON_VERSION}" / "site-packages"
    packages.mkdir(parents=True)
    chosen = ["--arch=arm64", "--variant=minbase", "--include=python3,libgomp1", "--download-only"]
    subprocess.run(["debootstrap", *chosen, DEBIAN_RELEASE, root], check=True, stdout=subprocess.DEVNULL)
    for package in root.glob("var/cache/apt/archives/*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    versions = ARM_DIR / "versions.txt"
    versions.write_text(re.sub("(?m)^torch==.*", f"torch=={TORCH_VERSION}", (ROOT / "constraints.txt").read_text()))
    options = ["--no-deps", "--only-binary=:all:", f"--python-version={PYTHON_VERSION}", f"--target={packages}"]
    options += [f"--platform=manylinux{glibc}_aarch64" for glibc in ("_2_28", "_2_17", "2014")]
    environment = os.environ | {"PIP_CONSTRAINT": ""}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *options, f"--requirement={versions}"]
    subprocess.run(pip, check=True, env=environment)
    (packages / "minitrans.pth").write_text(f"{ROOT}\n")
    (ARM_DIR / "pyvenv.cfg").write_text(f"home = {root}/usr/bin\n")
    (ARM_DIR / "bin").mkdir()
    for name, script in WRAPPER_SCRIPTS.items():  # python is the last one: if it is there, all are
        path = ARM_DIR / "bin" / name
        path.write_text(script)
        path.chmod(0o755)


def run_check(check: str, run: Path) -> bool:
    """Run one of the checks, and show what it says."""
    with tempfile.TemporaryDirectory() as made:
        for name, lines in ((f"{split}.{lang}", n) for split, n in EXCERPT_SIZES.items() for lang in ("en", "zh")):
            with open(ROOT / "data" / "en-zh" / name, encoding="utf-8") as whole:
                Path(made, name).write_text("".join(islice(whole, lines)), encoding="utf-8")
        arguments = [word.format(run=run, made=made) for word in CHECKS[check].split()]
        ended = subprocess.run([ARM_DIR / "bin" / "python", *arguments], cwd=ROOT)
        if ended.returncode or check != "translate":
            return not ended.returncode
        here = [word.replace(f"{made}/arm", f"{made}/here") for word in arguments]
        subprocess.run([sys.executable, *here], cwd=ROOT, check=True)
        return Path(made, "arm").read_bytes() == Path(made, "here").read_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Set up what is missing, and run the checks; return 0 if all pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", nargs="?", type=Path, default=ROOT / "runs" / "en-zh", help="run folder that translates")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), help="which checks")
    args = parser.parse_args(argv)
    os.environ["PATH"] += ":/usr/sbin"  # where Debian has debootstrap
    if lacking := {tool: package for tool, package in PACKAGE_BY_TOOL.items() if not shutil.which(tool)}:
        sys.exit(f"arm.py: no {', '.join(lacking)} here; apt-get install {' '.join(lacking.values())}")
    if "translate" in args.only and not (args.run / "model.json").is_file():
        sys.exit(f"arm.py: {args.run} is not a run folder; `make demo` trains one")
    failed = False
    try:
        if not (ARM_DIR / "bin" / "python").is_file():
            make_arm_environment()
        for check in args.only:
            began = time.monotonic()
            passed = run_check(check, args.run.resolve())
            print(f"{check}: {'passed' if passed else 'failed'} in {time.monotonic() - began:.0f} s", flush=True)
            failed |= not passed
    except subprocess.CalledProcessError as error:
        sys.exit(f"arm.py: {error.cmd[0]} ended with code {error.returncode}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
