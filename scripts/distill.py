"""Train a model on a corpus and on teachers' translations of it, with the flags of `minitrans train`.

Teachers of the same settings are trained first: TEACHERS that translate as the model is to, and as many the other way.
What each finds by beam search for the training sentences of its own language makes one more corpus, and the model is
trained on all of them beside the real one. No other text is used, and no test set is looked at.

Teachers and corpora are in a folder beside the run folder, RUN_DIR-teachers. What is there is not made again, and a
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

TEACHERS = 3  # of each direction; their seeds are 1, 2, ..., whatever that of the model
TEACHER_STEPS, MODEL_STEPS = 2 / 3, 2  # of `trainer.max_steps`: a teacher need not be perfect, the model has more text
BEAM = 5
# A model writes less than it is taught: targets are to be long, while sources need no help.
LENGTH_PENALTY = {"forward": 3.0, "backward": 1.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the corpora, the teachers, their translations, and the model; the exit code is the first that is not 0."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        run = parse_config(argv).run_dir
        folder = run.with_name(f"{run.name}-teachers")
        return teach(argv, folder) or learn(argv, folder)
    except UserError as error:
        print(f"distill.py: error: {error}", file=sys.stderr)
        return 2


def teach(argv: Sequence[str], folder: Path) -> int:
    """Train the teachers and let them translate, as far as it is not done yet.

    Args:
        argv: Flags of `minitrans train`, of the model.
        folder: Where the teachers go, and the corpora, into `corpus`.
    """
    config = parse_config(argv)
    corpus = folder / "corpus"
    write_corpus(config, corpus)
    source, target = config.data.source, config.data.target
    for seed in range(1, TEACHERS + 1):
        for direction, (given, found) in {"forward": (source, target), "backward": (target, source)}.items():
            name = f"{direction}{seed}"
            flags = ["--data.source", given, "--data.target", found, "--run-dir", str(folder / name)]
            flags += ["--seed", str(seed), *data(corpus, ["train"]), *steps(config, TEACHER_STEPS)]
            if code := train([*argv, *flags]):
                return code
            if not (output := corpus / f"{name}.{found}").is_file():
                sentences = corpus / f"train.{given}"
                write_file(corpus / f"{name}.{given}", sentences.read_bytes())
                flags = ["--input", str(sentences), "--output", str(output)]
                flags += ["--beam", str(BEAM), "--length-penalty", str(LENGTH_PENALTY[direction])]
                if code := cli.main(["translate", str(folder / name), *flags]):
                    return code
    return 0


def learn(argv: Sequence[str], folder: Path) -> int:
    """Train the model on what `teach` made.

    Args:
        argv: Flags of `minitrans train`, of the model.
        folder: Where the corpora are, in `corpus`.
    """
    made = [f"{direction}{seed}" for seed in range(1, TEACHERS + 1) for direction in LENGTH_PENALTY]
    return train([*argv, *data(folder / "corpus", ["train", *made]), *steps(parse_config(argv), MODEL_STEPS)])


def data(corpus: Path, train: Sequence[str]) -> list[str]:
    """The flags that say what to train on: the splits `train` of the folder `corpus`."""
    flags = ["--data.path", str(corpus), f'--data.splits={{"train": "{"+".join(train)}", "valid": "valid"}}']
    return flags + [f"--data.{name}=null" for name in ("name", "source_column", "target_column")]


def steps(config: RunConfig, share: float) -> list[str]:
    """The flag for a share of the configured steps, if they are limited."""
    whole = config.trainer["max_steps"]
    return ["--trainer.max_steps", str(max(1, round(whole * share)))] if whole > 0 else []


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
