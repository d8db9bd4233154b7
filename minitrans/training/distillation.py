"""Train a model on a corpus and on translations of it by other models, all with the same settings.

Teachers are trained first: three in the direction of the model, and three in the opposite direction. Each translates
the training sentences in its source language by beam search, which gives one more corpus. Students are trained on all
of these and on the real corpus. They then agree on a translation of every source sentence, and of new source sentences
that the backward teachers sample: of all candidates that the students find, they choose the one that most students, and
a backward teacher, find likely. The model starts from a student, and is trained on what they agreed on. No other text
is used, and no test set is looked at.

All of that is kept in a folder beside the run folder, RUN_DIR-teachers. What already exists is not made again, and an
interrupted training is resumed.

Sources: Kim and Rush 2016, sequence-level knowledge distillation; Nguyen et al. 2020, data diversification; Yee et al.
2019, noisy channel reranking; He et al. 2022, generate, annotate, learn.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from minitrans.data.batching import collate_rows, id_rows, plan_batches, row_lengths
from minitrans.data.corpus import load_corpus
from minitrans.errors import UserError
from minitrans.files import make_folder, write_file
from minitrans.model.decoding import token_log_probs
from minitrans.text.lines import read_lines
from minitrans.text.reading import clean
from minitrans.training.config import RunConfig
from minitrans.training.precision import precision_and_reason
from minitrans.training.run import is_first_process, train
from minitrans.training.run_folder import claim_run, is_trained, with_resume_or_overwrite
from minitrans.translate.bundle import METADATA
from minitrans.translate.metrics import Scores
from minitrans.translate.translator import Translator

SEEDS = 1, 2, 3  # of the teachers in each direction, and of the students, whatever the model's seed is
TEACHER_STEPS, STUDENT_STEPS, MODEL_STEPS = 2 / 3, 2, 2 / 3  # of `trainer.max_steps`: a teacher need not be perfect
FINAL_MODEL_LR_FACTOR = 1 / 2  # of `training.learning_rate`: the model starts from trained weights
BEAM_SIZE = 5
SAMPLING_TOP_K = 10  # likeliest tokens from which each token of a new source is drawn
# A model writes shorter texts than it is taught, so long targets are favoured; sources need no help.
PENALTY_BY_DIRECTION = {"forward": 3.0, "backward": 1.0}
VOTE_WEIGHT, BACKWARD_WEIGHT, LENGTH_WEIGHT = 2.0, 0.3, 0.4  # see `rerank_translations`
SCORING_TOKENS = 1024  # in a batch to score, all of whose logits are held in memory


def distill(config: RunConfig) -> Iterator[tuple[RunConfig, dict[str, Scores]]]:
    """Make the teachers, the students, their translations, and the model of `config`.

    Yields:
        The settings and scores of each model, once it has been trained.

    Raises:
        UserError: A fault in the settings or the corpus, or an existing model was trained with other settings.
        KeyboardInterrupt: Stopped by a signal.
    """
    if config.run_dir.name in ("", ".."):  # the working folder, or one above it
        config = replace(config, run_dir=config.run_dir.resolve())
    folder = config.run_dir.with_name(f"{config.run_dir.name}-teachers")
    model = final_config(config, folder)
    if not is_trained(model) and is_first_process():
        with contextlib.ExitStack() as held:  # report a fault of its folder before the teachers are trained
            claim_run(with_resume_or_overwrite(model), held)
    try:
        yield from make_distillation_inputs(config, folder)
        yield from train_unless_done(model)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("run the same `minitrans distill` command to resume") from error


def make_distillation_inputs(config: RunConfig, folder: Path) -> Iterator[tuple[RunConfig, dict[str, Scores]]]:
    """Make what the model of `config` learns from, except what already exists; yields and raises as `distill` does."""
    corpus = folder / "corpus"
    source, target = config.data.source, config.data.target
    write_train_and_valid_pairs(config, corpus)
    teachers = [f"{direction}{seed}" for seed in SEEDS for direction in PENALTY_BY_DIRECTION]
    for name in (*teachers, *(f"student{seed}" for seed in SEEDS)):
        if not (folder / name / METADATA).is_file():  # also remove what a removed model has written
            for text in (*corpus.glob(f"{name}.*"), *corpus.glob("agreed*")):
                text.unlink()
    for seed in SEEDS:
        for direction, (given, written) in {"forward": (source, target), "backward": (target, source)}.items():
            run = folder / f"{direction}{seed}"
            teacher = derive_stage_config(config, run, corpus, ["train"], TEACHER_STEPS, seed=seed)
            yield from train_unless_done(replace(teacher, data=replace(teacher.data, source=given, target=written)))
            write_file(corpus / f"{run.name}.{given}", (corpus / f"train.{given}").read_bytes())
            search = partial(Translator.translate, beam=BEAM_SIZE, length_penalty=PENALTY_BY_DIRECTION[direction])
            translate_unless_done(teacher, corpus / f"train.{given}", corpus / f"{run.name}.{written}", search)

    texts = ["train", *teachers]
    for seed in SEEDS:
        student = derive_stage_config(config, folder / f"student{seed}", corpus, texts, STUDENT_STEPS, seed=seed)
        yield from train_unless_done(student)

    write_file(corpus / f"agreed0.{source}", (corpus / f"train.{source}").read_bytes())
    for seed in SEEDS:
        teacher = replace(config, run_dir=folder / f"backward{seed}")
        sample = partial(Translator.sample, top=SAMPLING_TOP_K, seed=seed)
        translate_unless_done(teacher, corpus / f"train.{target}", corpus / f"agreed{seed}.{source}", sample)
    students = [Translator.load(folder / f"student{seed}", compiled=config.compiled) for seed in SEEDS]
    backward = Translator.load(folder / "backward1", compiled=config.compiled)
    for n in (0, *SEEDS):
        if not (output := corpus / f"agreed{n}.{target}").is_file():
            agreed = rerank_translations(students, backward, read_lines(corpus / f"agreed{n}.{source}"))
            write_file(output, "".join(f"{line}\n" for line in agreed))


def final_config(config: RunConfig, folder: Path) -> RunConfig:
    """The settings of the model that learns from what `make_distillation_inputs` makes in a folder."""
    texts = ["train", *(f"backward{seed}" for seed in SEEDS), *(f"agreed{n}" for n in (0, *SEEDS))]
    student = folder / f"student{SEEDS[(config.seed - 1) % len(SEEDS)]}"
    learning_rate = config.training.learning_rate * FINAL_MODEL_LR_FACTOR
    training = replace(config.training, init_from=str(student), learning_rate=learning_rate)
    model = derive_stage_config(config, config.run_dir, folder / "corpus", texts, MODEL_STEPS, seed=config.seed)
    return replace(model, training=training)


def rerank_translations(students: Sequence[Translator], backward: Translator, sources: Sequence[str]) -> list[str]:
    """For each source, the translation that the students together and a teacher of the other direction rank highest.

    Candidates are the BEAM_SIZE best of each student. They are ranked by a sum: the mean log-probability from the
    students that found them, VOTE_WEIGHT for each of these students, BACKWARD_WEIGHT times the log-probability that the
    teacher gives the source, and LENGTH_WEIGHT for each token.
    """
    candidates: list[dict[str, list[float]]] = [{} for _ in sources]
    for student in students:
        for row, n_best in zip(candidates, student.n_best(sources, BEAM_SIZE, length_penalty=0), strict=True):
            for translation in n_best:
                row.setdefault(translation.text, []).append(translation.score)
    given = [source for source, row in zip(sources, candidates, strict=True) for _ in row]
    targets = [target for row in candidates for target in row]
    likes = np.array([np.mean(log_ps) + VOTE_WEIGHT * len(log_ps) for row in candidates for log_ps in row.values()])
    likes += BACKWARD_WEIGHT * target_log_probs(backward, targets, given)
    likes += LENGTH_WEIGHT * np.array([len(ids) for ids in students[0].bundle.tokenizer.encode_batch(targets)])
    ends = np.cumsum([len(row) for row in candidates])
    return [[*row][np.argmax(own)] for row, own in zip(candidates, np.split(likes, ends[:-1]), strict=True)]


@torch.inference_mode()
def target_log_probs(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> npt.NDArray[np.float64]:
    """The log-probability of each target, EOS included, as the translation of its source; what is too long is cut."""
    model, tokenizer = translator.bundle.model, translator.bundle.tokenizer
    longest = model.config.max_len - 1
    sides = tokenizer.reader.preprocess_pairs(sources, targets)
    src, tgt = (id_rows([ids[:longest] for ids in tokenizer.encode_batch(lines)]) for lines in sides)
    totals = np.zeros(len(sources))
    quick = precision_and_reason("auto", "cpu")[0] == "bf16"
    for rows in plan_batches(row_lengths(src) + 1, row_lengths(tgt) + 1, SCORING_TOKENS, None):
        batch = collate_rows(src.take(rows), tgt.take(rows), *tokenizer.pad_bos_eos_ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=quick):
            log_p = token_log_probs(model(batch.src_ids, batch.tgt_in), batch.tgt_out)
        totals[rows] = log_p.masked_fill(batch.tgt_out == tokenizer.pad_id, 0).sum(1).double()
    return totals


def derive_stage_config(
    config: RunConfig, run: Path, corpus: Path, train_splits: Sequence[str], steps_fraction: float, seed: int
) -> RunConfig:
    """The settings of a model that trains on splits of `corpus`, for a fraction of `max_steps` if set."""
    splits = {"train": "+".join(train_splits), "valid": "valid"}
    data = replace(config.data, path=str(corpus), splits=splits, name=None, source_column=None, target_column=None)
    if train_splits != ["train"]:  # the teachers have shown both directions
        data = replace(data, reversed_epochs=0)
    steps = config.trainer["max_steps"]
    trainer = config.trainer | ({"max_steps": max(1, round(steps * steps_fraction))} if steps > 0 else {})
    return replace(config, run_dir=run, data=data, trainer=trainer, seed=seed)


def write_train_and_valid_pairs(config: RunConfig, folder: Path) -> None:
    """Write the training and validation pairs as files of lines.

    Raises:
        UserError: A fault in the corpus, or the folder already has other pairs.
    """
    splits = load_corpus(config.data)
    make_folder(folder, "give another --run-dir")
    for split in ("train", "valid"):
        for column, language in (("source", config.data.source), ("target", config.data.target)):
            file = folder / f"{split}.{language}"
            lines = "".join(f"{clean(line)}\n" for line in splits[split][column][:])
            if not file.is_file():
                write_file(file, lines)
            elif file.read_bytes() != lines.encode():
                raise UserError(f"{file} belongs to another corpus; remove {folder.parent}, or give another --run-dir")


def train_unless_done(config: RunConfig) -> Iterator[tuple[RunConfig, dict[str, Scores]]]:
    """Train a model, unless that has been done; an interrupted training is resumed.

    Yields:
        Its settings and scores, if it was trained now.

    Raises:
        UserError: The existing model was trained with other settings.
        SystemExit: This is one of several processes that train, and not the first: the next training starts new ones.
    """
    if is_trained(config):
        return
    environment = dict(os.environ)
    scores = train(with_resume_or_overwrite(config))
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    if not scores:
        raise SystemExit(0)
    os.environ.clear()  # remove the variables by which this training's processes found each other
    os.environ.update(environment)
    yield config, scores


def translate_unless_done(teacher: RunConfig, file: Path, output: Path, work: Callable[..., Iterable[str]]) -> None:
    """Have a teacher translate a file by `work`, unless that has been done."""
    if output.is_file():
        return
    translator = Translator.load(teacher.run_dir, compiled=teacher.compiled)
    write_file(output, "".join(f"{line}\n" for line in work(translator, read_lines(file))))
