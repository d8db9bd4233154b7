#!/usr/bin/env python3
"""Kill a training at random moments, resume it until it ends, and compare it with one that was left alone.

Flags of `minitrans train` may follow after `--`, such as those of a stream read by two processes:

    kill_resume.py --runs 10 -- --trainer.devices=2 --trainer.strategy=ddp --trainer.accelerator=cpu \
        --data.streaming=true --data.shuffle_buffer=3000 --data.splits=null
"""

import argparse
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from minitrans.cli.arguments import positive_int

CORPUS_DIR = Path(__file__).parents[2] / "data" / "en-zh"
COMPARED_FILES = ("model.safetensors", "metrics.csv")


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if runs were killed and all ended with the same weights and the same metrics, else 1."""
    parser = argparse.ArgumentParser(prog="kill_resume.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=positive_int, default=20, help="runs to kill")
    parser.add_argument("--kills", type=positive_int, default=3, help="most kills in one run")
    parser.add_argument("--steps", type=positive_int, default=300, help="optimizer steps of a run")
    parser.add_argument("--seed", type=int, default=1, help="decides when they are killed")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="of `minitrans train`")
    args = parser.parse_args(argv)
    rng = random.Random(args.seed)
    different = kills = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wait_for_success(start_or_resume_run(folder / "unbroken", args.steps, args.flags))
        unbroken = file_digests(folder / "unbroken")
        for number in range(1, args.runs + 1):
            run_dir = folder / str(number)
            steps = sorted(rng.randint(0, args.steps) for _ in range(rng.randint(1, args.kills)))
            killed = []
            for step in steps:
                process = start_or_resume_run(run_dir, args.steps, args.flags)
                while newest_step(run_dir) < step and process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):  # a pipe that nobody reads fills up
                        process.communicate(timeout=0.005)
                time.sleep(rng.uniform(0, 0.5))
                kill_random_process(rng, process)
                process.communicate()
                if process.returncode:
                    killed.append(str(newest_step(run_dir)))
            wait_for_success(start_or_resume_run(run_dir, args.steps, args.flags))
            same = file_digests(run_dir) == unbroken
            print(f"run {number}: killed after step {', '.join(killed)}: {'same' if same else 'DIFFERENT'}", flush=True)
            different += not same
            kills += len(killed)
    print(f"{args.runs} runs, {kills} kills, {different} ended with other weights or metrics than an unbroken run")
    return 0 if kills and not different else 1


def start_or_resume_run(run_dir: Path, steps: int, flags: Sequence[str]) -> "subprocess.Popen[str]":
    """Begin a run, or go on with it if it has a checkpoint."""
    settings = {
        "run-dir": run_dir,
        "data.path": CORPUS_DIR,
        "data.source": "en",
        "data.target": "zh",
        "data.splits": '{"train": "train[:2000]", "valid": "valid[:20]", "test": "test[:20]"}',
        "data.cache_dir": run_dir.parent / "cache",
        "data.batch_tokens": 400,
        "tokenizer.vocab_size": 2000,
        "model.d_model": 32,
        "model.n_heads": 2,
        "model.d_ff": 48,
        "model.n_layers": 1,
        "training.learning_rate": 0.01,
        "training.warmup_steps": 10,
        "training.checkpoint_every": 7,
        "trainer.max_steps": steps,
        "trainer.val_check_interval": 20,
        "trainer.check_val_every_n_epoch": "null",
        "trainer.log_every_n_steps": 5,
    }
    flags = [*(f"--{name}={value}" for name, value in settings.items()), *flags]
    mode = ["--resume"] if newest_step(run_dir) > 0 else ["--overwrite"]
    command = [sys.executable, "-m", "minitrans", "train", *flags, *mode]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill_random_process(rng: random.Random, process: "subprocess.Popen[str]") -> None:
    """Kill the run's first process, or one of those that it has started, which Linux lists."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    started = path.read_text().split() if path.exists() else []
    victim = rng.choice([process.pid, *map(int, started)])
    with contextlib.suppress(ProcessLookupError):  # it has ended
        process.kill() if victim == process.pid else os.kill(victim, signal.SIGKILL)


def newest_step(run_dir: Path) -> int:
    """The step of the newest checkpoint; 0 before there is one, -1 before there is a run."""
    steps = [int(path.stem.removeprefix("step-")) for path in run_dir.glob("checkpoints/step-*.ckpt")]
    return max(steps, default=0 if (run_dir / "config.yaml").is_file() else -1)


def wait_for_success(process: "subprocess.Popen[str]") -> None:
    """Wait for the end of a run; exit if it has failed."""
    _, err = process.communicate()
    if process.returncode:
        sys.exit(f"a run has failed:\n{err}")


def file_digests(run_dir: Path) -> list[str]:
    """SHA-256 of the files that are compared."""
    return [hashlib.sha256((run_dir / name).read_bytes()).hexdigest() for name in COMPARED_FILES]


if __name__ == "__main__":
    sys.exit(main())
