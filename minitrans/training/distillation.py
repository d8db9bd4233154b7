"""Train a model on a corpus and on translations of it by other models, all with the same settings.

Three teachers are trained first, in both directions: on every pair, and on every pair reversed. Each translates the
targets back, which gives new sources. Together the teachers agree on a translation of every source: of those that they
propose, they choose the one that most of them, and one of them in the opposite direction, think likely. With all of
that each teacher is trained on, and is then called a student. Students agree in the same way, on better translations,
and the model is a student that has been trained on these. No other text is used, and no test set is looked at.

All of that is in a folder beside the run folder, RUN_DIR-teachers. What is there already is not made again, and an
interrupted training is resumed.

Sources: Kim and Rush 2016, sequence-level knowledge distillation; Nguyen et al. 2020, data diversification; Yee et al.
2019, noisy channel reranking; Ding et al. 2021, both directions.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import yaml
from torch import distributed

from minitrans.data.batching import collate, plan_batches
from minitrans.data.corpus import load_corpus
from minitrans.errors import UserError
from minitrans.files import write_file
from minitrans.model.decoding import token_log_probs
from minitrans.model.loss import CHUNK_ROWS
from minitrans.text.lines import read_lines
from minitrans.text.reading import clean
from minitrans.training.config import RunConfig, saved_settings
from minitrans.training.precision import choose_precision
from minitrans.training.run import train
from minitrans.translate.scoring import Scores
from minitrans.translate.translator import Translator

SEEDS = 1, 2, 3  # of the teachers and of the students, whatever the model's seed is
TEACHER_STEPS, STUDENT_STEPS, MODEL_STEPS = 3 / 5, 1 / 2, 1 / 3  # of `trainer.max_steps`
CONTINUED_RATE_FACTOR = 1 / 2  # of `training.learning_rate`, for what starts from trained weights
BEAM_SIZE = 5  # for the sources that teachers write
N_CANDIDATES = 2  # translations that each teacher or student proposes; with five they agree on no better ones
VOTE_WEIGHT, BACKWARD_WEIGHT, LENGTH_WEIGHT = 2.0, 0.3, 0.4  # see `rerank_candidates`
BATCH_TOKENS = 4096  # in a batch to score


def distill(config: RunConfig) -> Iterator[tuple[RunConfig, dict[str, Scores]]]:
    """Make the teachers, the students, their translations, and the model of `config`.

    Yields:
        Each model's settings and scores when it has been trained.

    Raises:
        UserError: A fault in the settings or the corpus, or a model that is there was trained with other settings.
        KeyboardInterrupt: Stopped by a signal.
    """
    folder = config.run_dir.with_name(f"{config.run_dir.name}-teachers")
    try:
        yield from make_training_data(config, folder)
        yield from train_final_model(config, folder)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("run the same `minitrans distill` command to resume") from error


def make_training_data(config: RunConfig, folder: Path) -> Iterator[tuple[RunConfig, dict[str, Scores]]]:
    """Make everything that the model of `config` learns from, in a folder, except what is there already.

    It yields and raises as `distill` does.
    """
    corpus, target = folder / "corpus", config.data.target
    write_original_pairs(config, corpus)
    for seed in SEEDS:
        run = folder / f"teacher{seed}"
        yield from train_unless_done(derive_run_config(config, run, folder, ["train", "reversed"], TEACHER_STEPS, seed))
        if not (corpus / f"backward{seed}.{target}").is_file():
            targets = read_lines(corpus / f"train.{target}")
            sources = Translator.load(run, compiled=config.compiled).translate(targets, beam=BEAM_SIZE)
            write_pairs(config, corpus / f"backward{seed}", sources, targets)
    agree_on_translations(config, folder, "teacher")
    for seed in SEEDS:
        yield from train_unless_done(
            derive_continued_run_config(config, folder / f"student{seed}", folder, "teacher", STUDENT_STEPS, seed)
        )
    agree_on_translations(config, folder, "student")


def train_final_model(config: RunConfig, folder: Path) -> Iterator[tuple[RunConfig, dict[str, Scores]]]:
    """Train the model on what `make_training_data` made; it takes, yields and raises the same."""
    yield from train_unless_done(
        derive_continued_run_config(config, config.run_dir, folder, "student", MODEL_STEPS, config.seed)
    )


def agree_on_translations(config: RunConfig, folder: Path, role: str) -> None:
    """Write the training sources with the translations that teachers or students agree on, unless they are there."""
    corpus = folder / "corpus"
    if not (corpus / f"{role}s_agreed.{config.data.target}").is_file():
        models = [Translator.load(folder / f"{role}{seed}", compiled=config.compiled) for seed in SEEDS]
        teacher = Translator.load(folder / f"teacher{SEEDS[0]}", compiled=config.compiled)
        sources = read_lines(corpus / f"train.{config.data.source}")
        write_pairs(config, corpus / f"{role}s_agreed", sources, rerank_candidates(models, teacher, sources))


def rerank_candidates(models: Sequence[Translator], teacher: Translator, sources: Sequence[str]) -> list[str]:
    """For each source the translation that models together, and a teacher in the opposite direction, like best.

    Candidates are the N_CANDIDATES best of each model. They are ranked by a sum: the mean log-probability from the
    models that found them, VOTE_WEIGHT for each of these models, BACKWARD_WEIGHT times the log-probability that the
    teacher gives the source, and LENGTH_WEIGHT for each token.
    """
    candidates: list[dict[str, list[float]]] = [{} for _ in sources]
    for model in models:
        for row, n_best in zip(candidates, model.n_best(sources, N_CANDIDATES, length_penalty=0), strict=True):
            for text, log_p in {t.text: t.score for t in reversed(n_best)}.items():  # the best of equal texts
                row.setdefault(text, []).append(log_p)
    given = [source for source, row in zip(sources, candidates, strict=True) for _ in row]
    targets = [target for row in candidates for target in row]
    likes = np.array([np.mean(log_ps) + VOTE_WEIGHT * len(log_ps) for row in candidates for log_ps in row.values()])
    likes += BACKWARD_WEIGHT * pair_log_probs(teacher, targets, given)
    likes += LENGTH_WEIGHT * np.array([len(ids) for ids in models[0].bundle.tokenizer.encode_batch(targets)])
    ends = np.cumsum([len(row) for row in candidates])
    return [[*row][np.argmax(own)] for row, own in zip(candidates, np.split(likes, ends[:-1]), strict=True)]


@torch.inference_mode()
def pair_log_probs(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> npt.NDArray[np.float64]:
    """The log-probability of each target, EOS included, as the translation of its source; what is too long is cut."""
    model, tokenizer = translator.bundle.model, translator.bundle.tokenizer
    longest = model.config.max_len - 1
    sides = tokenizer.reader.preprocess_pairs(sources, targets)
    src, tgt = ([ids[:longest] for ids in tokenizer.encode_batch(lines)] for lines in sides)
    src_lengths, tgt_lengths = (np.array([len(ids) + 1 for ids in rows]) for rows in (src, tgt))
    totals = np.zeros(len(src))
    quick = choose_precision("auto", "cpu")[0] == "bf16"
    for rows in plan_batches(src_lengths, tgt_lengths, BATCH_TOKENS, None):
        batch = collate([src[i] for i in rows], [tgt[i] for i in rows], *tokenizer.special_ids)
        real = batch.tgt_out != tokenizer.pad_id
        with torch.autocast("cpu", torch.bfloat16, enabled=quick):
            hidden = model.hidden_states(batch.src_ids, batch.tgt_in)[real]
            chunks = zip(hidden.split(CHUNK_ROWS), batch.tgt_out[real].split(CHUNK_ROWS), strict=True)
            log_p = torch.cat([token_log_probs(model.output(h), y) for h, y in chunks])
        totals[rows] = torch.zeros(real.shape).masked_scatter(real, log_p).sum(1).double()
    return totals


def derive_run_config(
    config: RunConfig, run: Path, folder: Path, texts: Sequence[str], fraction: float, seed: int
) -> RunConfig:
    """The settings of a model that trains on the splits `texts` of the corpus, for a fraction of `max_steps` if set."""
    splits = {"train": "+".join(texts), "valid": "valid"}
    data = replace(config.data, path=str(folder / "corpus"), splits=splits, reversed_epochs=0)
    data = replace(data, name=None, source_column=None, target_column=None)
    steps = config.trainer["max_steps"]
    trainer = config.trainer | ({"max_steps": max(1, round(steps * fraction))} if steps > 0 else {})
    return replace(config, run_dir=run, data=data, trainer=trainer, seed=seed)


def derive_continued_run_config(
    config: RunConfig, run: Path, folder: Path, role: str, fraction: float, seed: int
) -> RunConfig:
    """The settings of a model that starts from a teacher or student, and trains on what all of these wrote."""
    texts = ["train", *(f"backward{n}" for n in SEEDS), f"{role}s_agreed"]
    training = replace(
        config.training,
        init_from=str(folder / f"{role}{SEEDS[(seed - 1) % len(SEEDS)]}"),
        learning_rate=config.training.learning_rate * CONTINUED_RATE_FACTOR,
    )
    return replace(derive_run_config(config, run, folder, texts, fraction, seed), training=training)


def write_original_pairs(config: RunConfig, folder: Path) -> None:
    """Write the validation pairs, and the training pairs in both directions, unless they are there."""
    if (folder / f"valid.{config.data.target}").is_file():
        return
    splits = load_corpus(config.data)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid"):
        sides = [[clean(line) for line in splits[split][column][:]] for column in ("source", "target")]
        if split == "train":
            write_pairs(config, folder / "reversed", *reversed(sides))
        write_pairs(config, folder / split, *sides)


def write_pairs(config: RunConfig, place: Path, sources: Iterable[str], targets: Iterable[str]) -> None:
    """Write two files of lines, PLACE.source and then PLACE.target, each whole or not at all."""
    for language, lines in ((config.data.source, sources), (config.data.target, targets)):
        write_file(place.with_name(f"{place.name}.{language}"), "".join(f"{line}\n" for line in lines))


def train_unless_done(config: RunConfig) -> Iterator[tuple[RunConfig, dict[str, Scores]]]:
    """Train a model, unless that has been done; an interrupted training is resumed.

    Yields:
        Its settings and scores, if it has been trained.

    Raises:
        UserError: The model that is there was trained with other settings.
        SystemExit: This is one of several processes that train, and not the first: the next training starts new ones.
    """
    run = config.run_dir
    if (run / "model.json").is_file():
        if saved_settings(run) != yaml.safe_load(config.yaml_text):
            raise UserError(f"{run} was trained with other settings; remove it, or give another --run-dir")
        return
    resume = any((run / "checkpoints").glob("*.ckpt"))
    environment = dict(os.environ)
    scores = train(replace(config, resume=resume, overwrite=not resume))
    if distributed.is_initialized():
        distributed.destroy_process_group()
    if not scores:
        raise SystemExit(0)
    os.environ.clear()  # remove the variables by which this training's processes met
    os.environ.update(environment)
    yield config, scores
