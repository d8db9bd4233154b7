"""Train a model on a corpus and on its own teachers' translations of it, with the flags of `minitrans train`.

Two teachers are trained first, of the same settings and in two thirds of the steps: one translates as the model is to,
one the other way. What they find by beam search for the training sentences, each of its own language, makes two more
corpora, which the model is trained on beside the real one. No other text is used, and no test set is looked at.

All but the run folder itself is in a folder beside it, RUN_DIR-teachers. What is there is not made again, and a
training that was interrupted goes on.

Sources: Kim and Rush 2016, sequence-level knowledge distillation; Nguyen et al. 2020, data diversification.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from minitrans import cli
from minitrans.data.corpus import load_corpus
from minitrans.errors import UserError
from minitrans.files import write_file
from minitrans.text import clean, read_lines
from minitrans.training.config import RunConfig, parse_config

BEAM = 5
# A model writes less than it is taught: targets are to be long, while sources need no help.
LENGTH_PENALTY = {"forward": 3.0, "backward": 1.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the corpus, the teachers, their translations, and the model; the exit code is the first that is not 0."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        config = parse_config(argv)
        return distill(argv, config)
    except UserError as error:
        print(f"distill.py: error: {error}", file=sys.stderr)
        return 2


def distill(argv: Sequence[str], config: RunConfig) -> int:
    """Do all that is not done yet.

    Args:
        argv: Flags of `minitrans train`.
        config: What they say.
    """
    folder = teachers(config.run_dir)
    corpus = folder / "corpus"
    source, target = config.data.source, config.data.target
    write_corpus(config, corpus)
    argv = [*argv, "--data.path", str(corpus)]
    argv += [f"--data.{name}=null" for name in ("name", "source_column", "target_column")]
    for name, (given, found) in {"forward": (source, target), "backward": (target, source)}.items():
        run = ["--run-dir", str(folder / name), "--data.source", given, "--data.target", found, splits("train")]
        if config.trainer["max_steps"] > 0:
            run += ["--trainer.max_steps", str(max(1, config.trainer["max_steps"] * 2 // 3))]
        if code := train([*argv, *run]):
            return code
        if not (output := corpus / f"{name}.{found}").is_file():
            sentences = corpus / f"train.{given}"
            write_file(corpus / f"{name}.{given}", sentences.read_bytes())
            flags = ["--input", str(sentences), "--output", str(output)]
            flags += ["--beam", str(BEAM), "--length-penalty", str(LENGTH_PENALTY[name])]
            if code := cli.main(["translate", str(folder / name), *flags]):
                return code
    return train([*argv, splits("train+forward+backward")])


def splits(train: str) -> str:
    """The flag that says what to train on."""
    return f'--data.splits={{"train": "{train}", "valid": "valid"}}'


def teachers(run: Path) -> Path:
    """Where all goes that a run is made from."""
    return run.with_name(f"{run.name}-teachers")


def write_corpus(config: RunConfig, folder: Path) -> None:
    """Write the training and validation pairs as files of lines, unless they are there."""
    if (folder / f"valid.{config.data.target}").is_file():
        return
    splits = load_corpus(config.data)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid"):
        for column, language in (("source", config.data.source), ("target", config.data.target)):
            lines = "".join(f"{clean(line)}\n" for line in splits[split][column][:])
            write_file(folder / f"{split}.{language}", lines)


def train(argv: Sequence[str]) -> int:
    """Train a model, unless it is there; one that was interrupted goes on.

    Raises:
        UserError: What is there was made with other settings.
    """
    config = parse_config(argv)
    run = config.run_dir
    if (run / "model.json").is_file():
        if yaml.safe_load("\n".join(read_lines(run / "config.yaml"))) != yaml.safe_load(config.text):
            raise UserError(f"{run} was trained with other settings; remove it, or give another --run-dir")
        return 0
    resumed = any((run / "checkpoints").glob("*.ckpt"))
    return cli.main(["train", *argv, "--resume" if resumed else "--overwrite"])


if __name__ == "__main__":
    sys.exit(main())
