"""Train a model on a corpus and on what other models make of it, with the flags of `minitrans train`.

Teachers of the same settings are trained first: three that translate as the model is to, and three the other way.
What each finds by beam search for the training sentences of its own language makes one more corpus. Students are
trained on all of them beside the real one, and agree on a translation of every source sentence, and of new ones that
the teachers of the other direction sample: of what the students find, the one that most of them, and a teacher of the
other direction, think likely. The model goes on from a student, on what they agreed on. No other text is used, and no
test set is looked at.

All of that is in a folder beside the run folder, RUN_DIR-teachers. What is there is not made again, and a training that
was interrupted goes on.

Sources: Kim and Rush 2016, sequence-level knowledge distillation; Nguyen et al. 2020, data diversification; Yee et al.
2019, noisy channel reranking; He et al. 2022, generate, annotate, learn.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import yaml
from torch.nn import functional as F

from minitrans import cli
from minitrans.data.batching import collate, plan_batches
from minitrans.data.corpus import load_corpus
from minitrans.errors import UserError
from minitrans.files import write_file
from minitrans.text.lines import clean, read_lines
from minitrans.training.config import RunConfig, parse_config
from minitrans.training.precision import choose_precision
from minitrans.serving.translator import Translator

SEEDS = 1, 2, 3  # of the teachers of each direction, and of the students, whatever that of the model
TEACHER_STEPS, STUDENT_STEPS, MODEL_STEPS = 2 / 3, 2, 2 / 3  # of `trainer.max_steps`: a teacher need not be perfect
MODEL_RATE = 1 / 2  # of `training.learning_rate`: the model goes on
BEAM = 5
SAMPLE = 10  # likeliest tokens from which those of new sources are drawn
# A model writes less than it is taught: targets are to be long, while sources need no help.
LENGTH_PENALTY = {"forward": 3.0, "backward": 1.0}
VOTE, BACKWARD, LENGTH = 2.0, 0.3, 0.4  # see `agree`
BATCH_TOKENS, ROWS = 4096, 512  # in a batch to score; tokens whose logits are held at a time


def main(argv: Sequence[str] | None = None) -> int:
    """Make the teachers, the students, what they translate, and the model; the exit code is the first that is not 0."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        run = parse_config(argv).run_dir
        folder = run.with_name(f"{run.name}-teachers")
        teach(argv, folder)
        learn(argv, folder)
    except UserError as error:
        print(f"distill.py: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as stop:
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print("distill.py: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


def teach(argv: Sequence[str], folder: Path) -> None:
    """Make all that the model learns from, as far as it is not there yet.

    Args:
        argv: Flags of `minitrans train`, of the model.
        folder: Where teachers and students go, and the corpora, into `corpus`.

    Raises:
        SystemExit: A command has failed, with its exit code.
    """
    config = parse_config(argv)
    corpus = folder / "corpus"
    source, target = config.data.source, config.data.target
    write_corpus(config, corpus)
    for seed in SEEDS:
        for direction, (given, found) in {"forward": (source, target), "backward": (target, source)}.items():
            teacher = folder / f"{direction}{seed}"
            flags = ["--data.source", given, "--data.target", found, "--run-dir", str(teacher), "--seed", str(seed)]
            train([*argv, *flags, *data(corpus, ["train"]), *steps(config, TEACHER_STEPS)])
            copy(corpus / f"train.{given}", corpus / f"{teacher.name}.{given}")
            beams = ["--beam", str(BEAM), "--length-penalty", str(LENGTH_PENALTY[direction])]
            translate(teacher, corpus / f"train.{given}", corpus / f"{teacher.name}.{found}", *beams)

    texts = ["train", *(f"{direction}{seed}" for seed in SEEDS for direction in LENGTH_PENALTY)]
    for seed in SEEDS:
        flags = ["--run-dir", str(folder / f"student{seed}"), "--seed", str(seed), *data(corpus, texts)]
        train([*argv, *flags, *steps(config, STUDENT_STEPS)])

    copy(corpus / f"train.{source}", corpus / f"agreed0.{source}")
    for seed in SEEDS:
        sampling = ["--sample", str(SAMPLE), "--seed", str(seed)]
        translate(folder / f"backward{seed}", corpus / f"train.{target}", corpus / f"agreed{seed}.{source}", *sampling)
    students = [Translator.load(folder / f"student{seed}") for seed in SEEDS]
    backward = Translator.load(folder / "backward1")
    for n in (0, *SEEDS):
        if not (output := corpus / f"agreed{n}.{target}").is_file():
            agreed = agree(students, backward, read_lines(str(corpus / f"agreed{n}.{source}")))
            write_file(output, "".join(f"{line}\n" for line in agreed))


def learn(argv: Sequence[str], folder: Path) -> None:
    """Train the model on what `teach` made; the arguments and faults are the same."""
    config = parse_config(argv)
    texts = ["train", *(f"backward{seed}" for seed in SEEDS), *(f"agreed{n}" for n in (0, *SEEDS))]
    flags = ["--training.init_from", str(folder / f"student{SEEDS[(config.seed - 1) % len(SEEDS)]}")]
    flags += ["--training.learning_rate", str(config.training.learning_rate * MODEL_RATE)]
    train([*argv, *flags, *data(folder / "corpus", texts), *steps(config, MODEL_STEPS)])


def agree(students: Sequence[Translator], teacher: Translator, sources: Sequence[str]) -> list[str]:
    """For each source the translation that the students together and a teacher of the other direction like best.

    Candidates are the BEAM best of each student. They are ranked by the mean log-probability that those who found them
    give them, VOTE for each of these, BACKWARD times the log-probability that the teacher gives the source, and LENGTH
    for each token.
    """
    candidates: list[dict[str, list[float]]] = [{} for _ in sources]
    for student in students:
        for row, found in zip(candidates, student.n_best(sources, BEAM, length_penalty=0), strict=True):
            for text, log_p in {t.text: t.score for t in reversed(found)}.items():  # the best of equal texts
                row.setdefault(text, []).append(log_p)
    given = [source for source, row in zip(sources, candidates, strict=True) for _ in row]
    targets = [target for row in candidates for target in row]
    likes = np.array([np.mean(log_ps) + VOTE * len(log_ps) for row in candidates for log_ps in row.values()])
    likes += BACKWARD * log_probs(teacher, targets, given)
    likes += LENGTH * np.array([len(ids) for ids in students[0].bundle.tokenizer.encode_batch(targets)])
    ends = np.cumsum([len(row) for row in candidates])
    return [[*row][np.argmax(own)] for row, own in zip(candidates, np.split(likes, ends[:-1]), strict=True)]


@torch.inference_mode()
def log_probs(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> npt.NDArray[np.float64]:
    """The log-probability of each target, EOS included, as the translation of its source; what is too long is cut."""
    model, tokenizer = translator.bundle.model, translator.bundle.tokenizer
    longest = model.config.max_len - 1
    src, tgt = ([ids[:longest] for ids in tokenizer.encode_batch(lines)] for lines in (sources, targets))
    src_lengths, tgt_lengths = (np.array([len(ids) + 1 for ids in rows]) for rows in (src, tgt))
    found = np.zeros(len(src))
    quick = choose_precision("auto", "cpu").name == "bf16"
    for rows in plan_batches(src_lengths, tgt_lengths, BATCH_TOKENS, None):
        special = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
        batch = collate([src[i] for i in rows], [tgt[i] for i in rows], *special)
        real = batch.tgt_out != tokenizer.pad_id
        with torch.autocast("cpu", torch.bfloat16, enabled=quick):
            hidden = model.hidden(batch.src_ids, batch.tgt_in)[real]
            chunks = zip(hidden.split(ROWS), batch.tgt_out[real].split(ROWS), strict=True)
            loss = torch.cat([F.cross_entropy(model.output(h).float(), y, reduction="none") for h, y in chunks])
        found[rows] = -torch.zeros(real.shape).masked_scatter(real, loss).sum(1).double()
    return found


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


def train(argv: Sequence[str]) -> None:
    """Train a model, unless it is there; one that was interrupted goes on.

    Raises:
        UserError: What is there was made with other settings.
        SystemExit: The training has failed or was stopped.
    """
    config = parse_config(argv)
    run = config.run_dir
    if (run / "model.json").is_file():
        if yaml.safe_load("\n".join(read_lines(run / "config.yaml"))) != yaml.safe_load(config.text):
            raise UserError(f"{run} was trained with other settings; remove it, or give another --run-dir")
        return
    resumed = any((run / "checkpoints").glob("*.ckpt"))
    command(["train", *argv, "--resume" if resumed else "--overwrite"])


def translate(run: Path, sentences: Path, output: Path, *flags: str) -> None:
    """Translate a file, unless that has been done."""
    if not output.is_file():
        command(["translate", str(run), "--input", str(sentences), "--output", str(output), *flags])


def command(argv: Sequence[str]) -> None:
    """Run a command of `minitrans`; unless its exit code is 0, end with it."""
    if code := cli.main(argv):
        raise SystemExit(code)


def copy(file: Path, other: Path) -> None:
    """Copy a file, unless that has been done."""
    if not other.is_file():
        write_file(other, file.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
