"""What a user can do wrong, and what is reported: one line, exit code 2, and nothing printed, made or changed."""

import gzip
import io
import json
import logging
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from command_helpers import copy_run, parquet_bytes, refusal_message, write_files
from safetensors.torch import load_file, save_file
from torch import Tensor

from minitrans.cli.arguments import N_CORES
from minitrans.translate.bundle import METADATA, TOKENIZER, WEIGHTS, WORDS

# What a case sets up: files by their names, or a change of the folder `run`.
FilesOrRunEdit = Mapping[str, str | bytes] | Callable[[Path], object]

# -- Commands; RUN is a run, which `run` is a copy of -----------------------------------------------------------------

WORKING_DIR_FILES: dict[str, str | bytes] = {
    "one": "a\n",
    "two": "a\nb\n",
    "gap": "a\n\n",
    "empty": "",
    "invalid": b"fine\nnot \xff fine\n",
    "long.partial": "a\nb\nc\n",
}
NO_RUN_MESSAGE = "model.json, model.safetensors, tokenizer.model is missing"
BAD_COMMANDS = [
    ("", "the following arguments are required: COMMAND; see minitrans --help"),
    ("evalute x", "there is no command evalute (see minitrans --help); the nearest is evaluate"),
    ("--versio", "there is no flag --versio (see minitrans --help); the nearest is --version"),
    ("translate", "the following arguments are required: RUN; see minitrans translate --help"),
    ("evaluate RUN", "the following arguments are required: --source, --reference; see minitrans evaluate --help"),
    ("translate RUN --bee 3", "there is no flag --bee (see minitrans translate --help); the nearest is --"),
    ("train --debgu", "there is no flag --debgu (see minitrans train --help); the nearest is --debug"),
    ("explain RUN a -output d", "there is no flag -output (see minitrans explain --help); the nearest is --output"),
    ("explain RUN '-only this' -o d", "there is no flag -only this (see minitrans explain --help); the nearest is -"),
    ("export RUN -output=d", "there is no flag -output (see minitrans export --help); the nearest is --output"),
    ("serve RUN -host 0.0.0.0", "there is no flag -host (see minitrans serve --help); the nearest is --host"),
    ("distill --resume", "there is no flag --resume (see minitrans distill --help); the nearest is "),
    ("distill --seed -1", "--seed is -1; it must be a whole number from 0 to 4294967295"),
    ("export RUN -o d --compiled off", "there is no flag --compiled "),
    ("verify RUN more", "more is one argument too many; see minitrans verify --help"),
    ("translate RUN --beam", "argument --beam: expected one argument; see minitrans translate --help"),
    ("translate RUN a --compiled no", "argument --compiled: invalid choice: 'no' (choose from "),
    ("verify ''", "argument RUN: it is empty; leave it out, or give a value; see minitrans verify --help"),
    *((f"verify --{flag} ''", f"argument --{flag}: it is empty; ") for flag in ("model", "data", "sabotage", "report")),
    ("translate RUN a --input ''", "argument --input: it is empty; "),
    ("serve RUN '' --port 0", "argument RUN: it is empty; "),
    ("translate RUN a --beam 0", "argument --beam: it must be a whole number from 1 to 200 (time and memory grow quad"),
    ("translate RUN a --beam 201", "argument --beam: it must be a whole number from 1 to 200 (time and memory grow qu"),
    ("translate RUN a --sample 0", "argument --sample: it must be a whole number from 1 to 2147483647, not 0"),
    (f"translate RUN a --sample {'9' * 30}", "argument --sample: it must be a whole number from 1 to 2147483647, not"),
    ("translate RUN a --seed -1", "argument --seed: it must be a whole number from 0 to 4294967295, not -1"),
    ("translate RUN a --threads 0", f"--threads: it must be a whole number from 1 to {N_CORES} (this machine's"),
    ("translate RUN a --threads 100000", f"--threads: it must be a whole number from 1 to {N_CORES} (this machine's"),
    ("translate RUN a --length-penalty nan", "--length-penalty: it must be a number from -10 to 10 (beyond these, rou"),
    ("translate RUN a --length-penalty 1e30", "--length-penalty: it must be a number from -10 to 10 (beyond these, ro"),
    ("translate RUN a --batch-tokens many", "argument --batch-tokens: it must be a whole number from 1 to 2147483647"),
    *((f"translate RUN a --device {name}", f"--device {name}: ") for name in ("abacus", "hpu", "privateuseone")),
    ("translate RUN a --beam 2 --n-best 3", "--n-best 3 is more than --beam 2; search with as many beams"),
    ("translate RUN a --sample 5 --beam 2", "--sample does not go together with --beam or --n-best; give one of them"),
    ("translate RUN a --sample 5 --n-best 1", "--sample does not go together with --beam or --n-best; give one of the"),
    ("translate RUN a --no-cache --compiled require", "--no-cache computes in PyTorch, and --compiled require asks fo"),
    ("translate RUN a --scores --sample 2", "--scores does not go together with --sample or --n-best, which has score"),
    ("translate RUN a --scores --n-best 1", "--scores does not go together with --sample or --n-best, which has score"),
    ("translate RUN --input invalid --output d", "invalid, line 2: byte 5 is not valid UTF-8"),
    ("translate . --input one", NO_RUN_MESSAGE),
    ("evaluate . --source one --reference one", NO_RUN_MESSAGE),
    ("verify .", NO_RUN_MESSAGE),
    ("export . -o d", NO_RUN_MESSAGE),
    ("serve . --port 0", NO_RUN_MESSAGE),
    ("translate 'gone\x1b[2J\n' a", "gone\\x1b[2J is not a folder; give the run folder that `minitrans train` wrote"),
    (f"translate {'a' * 10_000} a", "is not a folder; give the run folder that `minitrans train` wrote"),
    ("translate RUN a --input f", "texts and --input are both given; give one"),
    *(
        (f"translate RUN --input one --part {text}", f"--part: it must be K/N, as 2/8, with K from 1 to N, not {text};")
        for text in ("0/2", "3/2", "2", "/", "1/x", "1/2/3", "1.0/2")
    ),
    ("translate RUN --part 1/2", "--part and --resume read a regular file; give its path with --input"),
    ("translate RUN a --part 1/2", "--part and --resume read a regular file; give its path with --input"),
    ("translate RUN --input pipe --part 1/2", "--part and --resume read a regular file; give its path with --input"),
    ("translate RUN --input . --output d --resume", "--part and --resume read a regular file; give its path with --in"),
    ("translate RUN --input one --resume", "--resume needs --output, and one line for each input line, so no --n-best"),
    ("translate RUN --input one --output d --resume --n-best 1", "--resume needs --output, and one line for each inpu"),
    ("translate RUN --input one --output pipe --resume", "--resume writes a regular file; give another --output"),
    ("translate RUN --input one --output ./one --resume", "--output is --input, which --resume would take for finishe"),
    ("translate RUN --input one --output /dev/stdout --resume", "--resume writes a regular file; give another --ou"),
    ("translate RUN --input two --output long --resume", "long.partial has 3 lines for 2 of text; remove it"),
    ("translate RUN --input two --output long --resume --part 1/2", "long.partial has 3 lines for 1 of text; remove"),
    ("evaluate RUN --source two --reference one", "two has 2 lines, one has 1; make them equal"),
    ("evaluate RUN --source two --reference two --reference one", "two has 2 lines, one has 1; make them equal"),
    ("evaluate RUN --source empty --reference empty", "empty is empty; there is nothing to score"),
    ("evaluate RUN --source two --reference gap --reference two", "gap, line 2 is empty; the first of several refere"),
    ("explain RUN", "there is no text to explain; give one after RUN, or --input"),
    ("explain RUN a --input one", "texts and --input are both given; give one"),
    ("explain RUN '' ▁ ?", "there is no text to explain; give one with words"),
    ("explain RUN a -o gone/page.html", "cannot write gone/page.html: No such file or directory"),
    ("explain RUN a -o one/page.html", "cannot write one/page.html: Not a directory"),
    ("explain RUN --input .", "cannot read .: Is a directory; give the path of a readable text file"),
    ("explain RUN --input gone", "cannot read gone: No such file or directory; give the path of a readable text file"),
    ("verify RUN --report one/proof", "cannot write one/proof: Not a directory; name another folder"),
    ("verify RUN --report one", "cannot write one: File exists; name another folder"),
    ("verify gone --report a/proof", "gone is not a folder; give the run folder"),
    ("verify --sabotage position.restart", "no sabotage position.restart (see --list); the nearest is positions.resta"),
    ("verify --sabotage mask.leak run", "--sabotage breaks a fresh model: give no RUN, --data, --self-test or --repo"),
    ("verify --sabotage mask.leak --self-test", "--sabotage breaks a fresh model: give no RUN, --data, --self-test or"),
    ("verify --sabotage mask.leak --report proof", "--sabotage breaks a fresh model: give no RUN, --data, --self-test"),
    ("verify --data one", "--data is a run's corpus: give RUN too"),
    ("verify RUN --data gone", "cannot read data.path gone: No such file or directory; give a folder with"),
    ("verify RUN --data memory://b", "cannot read data.path memory://b"),
    ("export RUN -o d --source one", "--source and --reference go together; give both or neither"),
    ("export RUN -o d --source one --reference gone", "cannot read gone: No such file or directory"),
    ("export RUN -o d --license mit", "--license is for a model card; give --format transformers with it"),
    ("export RUN -o one", "one already exists; remove it or name another folder"),
    ("export RUN -o run", "run already exists; remove it or name another folder"),
    ("export RUN -o one/d", "cannot write the folder one/d: Not a directory; name another one"),
    ("serve RUN run --port 0", "run translates en to zh, as ... does; give one of them"),
    ("serve RUN --cors https://a.org/", "argument --cors: it must be a site without a path, such as https://example.o"),
    ("serve RUN --cors https://*.a.org", "argument --cors: it must be a site without a path, such as https://example."),
    ("serve RUN --host 203.0.113.1 --port 0", "cannot listen on 203.0.113.1, port 0: "),
]

# -- Settings of a training: a file, and flags ------------------------------------------------------------------------

TRAIN = "train --run-dir new --data.path gone --data.source en --data.target zh --trainer.max_steps 1"
BAD_SETTINGS = [
    ("model: {d_modl: 3}", "there is no setting model.d_modl; the nearest is model.d_model"),
    ("modl: {d_model: 3}", "there is no setting modl.d_model; the nearest is model.d_model"),
    ("compield: off", "there is no setting compield; the nearest is compiled"),
    ("trainer: {precision: 32-true}", "there is no setting trainer.precision; the nearest is training.precision"),
    ("config: other.yaml", "there is no setting config; the nearest is compiled"),
    ("3: 4", "there is no setting 3; the nearest is "),
    ("seed: 1.5", "seed is 1.5; it must be a whole number from 0 to 4294967295"),
    ("model: {d_model: wide}", "model.d_model is wide; it must be a whole number"),
    ("model: {d_model: null}", "model.d_model is None; it must be a whole number"),
    ("data: {max_length: 0}", "data.max_length is 0; it must be a whole number from 1 to 2147483647 or null"),
    ("data: {splits: {train: 3}}", "data.splits is {'train': 3}; it must be a mapping of texts or null"),
    ("data: {noise: {typo: -0.1}}", "data.noise is {'typo': -0.1}; it must be a mapping of numbers from 0 to below 1"),
    ("model: 3", "model is 3; it must hold settings, such as model.tie_embeddings"),
    (f"model: {[*range(10_000)]}", "model is [0, 1, 2, "),
    ("- model", " holds no settings; write them as `name: value`"),
    ("data: {source: no}", "data.source is False; it must be text; YAML takes on, off, yes and no for truth values; p"),
    ("compiled: off", "compiled is False; it must be auto or off or require; YAML takes on, off, yes and no for truth"),
    ("model: [1, 2", "line 1"),
    ("seed: !!int x", " is not YAML: "),
    (f"seed: {'9' * 5000}", " is not YAML: "),
    ("a: &a [x, x, x]\nb: &b [*a, *a, *a]\ndata: {splits: *b}", "settings have no aliases, such as *a"),
    ("model: {d_model: 8}\nmodel: {d_model: 16}", " is not YAML: model is given twice; correct it"),
    ("data: {max_length: 8, path: x, max_length: 16}", " is not YAML: max_length is given twice; correct it"),
    ("data: " + "[" * 21 + "]" * 21, "it is nested more than 20 deep"),
    ("data: " + "[" * 60_000, " is not YAML: "),
    ("data: {path: " + "x" * 70_000 + "}", " has more than 65536 bytes"),
]
STREAM = "--data.streaming true --trainer.val_check_interval 500"
BAD_FLAGS = [
    ("--trainer.max_step 3", "there is no flag --trainer.max_step (see minitrans train --help); the nearest is --trai"),
    ("--modle.d_ff=3", "there is no flag --modle.d_ff (see minitrans train --help); the nearest is --model.d_ff"),
    ("--model.d_model.x 3", "there is no flag --model.d_model.x (see minitrans train --help); the nearest is --model."),
    ("--trainer.precision 32-true", "; the nearest is --training.precision"),
    ("--seed", "argument --seed: expected one argument; see minitrans train --help"),
    ("here", "here is one argument too many; see minitrans train --help"),
    ("--config gone.yaml", "cannot read gone.yaml: No such file or directory; give the path of a YAML file"),
    ("--config pipe", "cannot read pipe: it is not a regular file; give the path of a YAML file"),
    # Of the wrong kind
    ("--compiled maybe", "--compiled is maybe; it must be auto or off or require"),
    ("--training.precision 33", "--training.precision is 33; it must be auto or bf16 or fp32 or fp16"),
    ("--tokenizer.model_type word", "--tokenizer.model_type is word; it must be unigram or bpe"),
    ("--trainer.strategy fsdp", "--trainer.strategy is fsdp; it must be auto or ddp"),
    ("--data 3", "--data is 3; it must hold settings, such as data.noise"),
    ("--data.splits.train.x [1] --data.splits 3", "--data.splits is 3; it must be a mapping of texts or null"),
    ("--data.noise.typo .1 --data.noise.item 1", "--data.noise is {'typo': '.1', 'item': '1'}; it must be a mapping"),
    # Beyond its bounds
    ("--seed -1", "--seed is -1; it must be a whole number from 0 to 4294967295"),
    ("--seed 4294967296", "--seed is 4294967296; it must be a whole number from 0 to 4294967295"),
    (f"--seed 0x{'f' * 5000}", f"--seed is 0x{'f' * 75}...; it must be a whole number from 0"),
    (f"--model.d_model 0x{'f' * 5000}", "model.d_model is far too large; it must fit into 32 bits"),
    (f"--trainer.max_steps {'9' * 20}", f"trainer.max_steps is {'9' * 20}; it must fit into 32 bits"),
    ("--trainer.max_steps 0", "neither trainer.max_steps nor trainer.max_epochs says how long to train; set one"),
    ("--trainer.max_steps -1", "neither trainer.max_steps nor trainer.max_epochs says how long to train; set one"),
    *(
        (
            f"--trainer.{name} {value}",
            f"trainer.{name} is {value.strip('.')}; it must be a share up to 1 or a whole number, above 0",
        )
        for name in ("limit_val_batches", "val_check_interval")
        for value in ("0", "1.5", ".inf", ".nan")
    ),
    ("--trainer.accumulate_grad_batches 0", "--trainer.accumulate_grad_batches is 0; it must be a whole number from 1"),
    ("--trainer.gradient_clip_val 0", "--trainer.gradient_clip_val is 0; it must be a finite number above 0 or null"),
    ("--tokenizer.vocab_size 100", "tokenizer.vocab_size is 100; it must be at least 262 (4 special ids, 256 bytes"),
    ("--tokenizer.character_coverage 0.5", "tokenizer.character_coverage is 0.5; it must be from 0.98 to 1"),
    ("--tokenizer.character_coverage .nan", "tokenizer.character_coverage is nan; it must be from 0.98 to 1"),
    ("--training.ema_decay 1", "--training.ema_decay is 1; it must be a number from 0 to below 1"),
    ("--training.label_smoothing -0.1", "--training.label_smoothing is -0.1; it must be a number from 0 to below 1"),
    ("--training.learning_rate 0", "--training.learning_rate is 0; it must be a finite number above 0"),
    ("--training.learning_rate .inf", "--training.learning_rate is .inf; it must be a finite number above 0"),
    ("--training.weight_decay .nan", "--training.weight_decay is .nan; it must be a finite number from 0"),
    ("--training.patience 3 --training.patience x", "--training.patience is x; it must be a whole number"),
    ("--training.patience 0", "--training.patience is 0; it must be a whole number from 1 to 2147483647"),
    ("--training.warmup_steps -1", "--training.warmup_steps is -1; it must be a whole number from 0 to 2147483647"),
    ("--data.batch_tokens 0", "--data.batch_tokens is 0; it must be a whole number from 1 to 2147483647"),
    ("--data.min_length 0", "--data.min_length is 0; it must be a whole number from 1 to 2147483647"),
    ("--data.shuffle_buffer 0", "--data.shuffle_buffer is 0; it must be a whole number from 1 to 2147483647"),
    ("--data.max_length_ratio 0.5", "--data.max_length_ratio is 0.5; it must be a finite number from 1 or null"),
    ("--model.d_model 0", "model.d_model must be at least 1, got 0"),
    ("--model.n_heads 5", "not divisible"),
    # That do not go together
    ("--resume --overwrite", "--resume and --overwrite exclude each other; give one"),
    ("--data.path ''", "data.path is empty; give a path"),
    ("--run-dir ''", "run_dir is empty; give a path"),
    ("--data.source ''", "data.source is empty; give one"),
    ("--data.target ''", "data.target is empty; give one"),
    ("--data.target en", "data.source and data.target are both en; they must differ"),
    ("--data.target_column en", "the columns of source and target are both en; they must differ"),
    ("--data.noise.lowr 0.1", "data.noise has no lowr; the nearest is lower"),
    ("--data.noise.typo 0.6 --data.noise.item 0.5", "data.noise add up to 1.1; they must add up to less than 1"),
    ("--data.noise.typo 0.8 --data.noise.item 0.2", "data.noise add up to 1; they must add up to less than 1"),
    (
        "--data.streaming true",
        "with data.streaming, set trainer.val_check_interval to a number of batches, such as 500",
    ),
    (f"{STREAM} --trainer.val_check_interval 0.5", "with data.streaming, set trainer.val_check_interval to a number"),
    (f"{STREAM} --trainer.check_val_every_n_epoch 2", "no end: set trainer.check_val_every_n_epoch to null"),
    (f"{STREAM} --trainer.max_epochs 3", "an epoch has no end: set trainer.max_steps, and not trainer.max_epochs"),
    (f"{STREAM} --trainer.max_epochs 3 --trainer.max_steps -1", "set trainer.max_steps, and not trainer.max_epochs"),
    (f"{STREAM} --data.splits.train valid[:1]", "data.splits.train is valid[:1]; with data.streaming it must be a who"),
    (f"{STREAM} --data.splits.train train+valid", "data.splits.train is train+valid; with data.streaming it must be "),
    ("--training.precision fp16 --trainer.accelerator cpu", "training.precision is fp16, which works only on a GPU; "),
    # Beyond the machine
    ("--model.d_model 1000000000", "parameters take "),
    ("--model.n_layers 1000000", "parameters take "),
    ("--tokenizer.vocab_size 1000000000", "parameters take "),
    ("--model.max_len 65536 --model.d_model 512", "model.max_len is 65536, and model.d_model 512; their product must"),
    (
        "--trainer.devices 99999 --trainer.accelerator cpu",
        f"trainer.devices is 99999; this machine has {N_CORES} cores",
    ),
    ("--trainer.devices \"'99999999999'\"", "trainer: "),
    (f"--trainer.devices {'9' * 5000}", "trainer.devices is 9999 ... ; this machine has"),
    ("--trainer.devices 0", "trainer: "),
    ("--trainer.devices []", "trainer: "),
    ("--trainer.accelerator abacus", "trainer: "),
    ("--trainer.accelerator os.path", "trainer: "),
    ("--trainer.num_nodes 2 --trainer.accelerator cpu", "no MASTER_ADDR in the environment says where"),
]
INCOMPLETE_COMMANDS = [
    ("train --run-dir new", "--data.path, --data.source, --data.target must be given; see minitrans train --help"),
    ("train --run-dir new --data.path gone --data.target zh", "--data.source must be given; see minitrans train"),
    (TRAIN.replace("--run-dir new ", ""), "neither --config nor --run-dir is given; give one of them"),
]

# -- The corpus of a training, and the corpus that a run names --------------------------------------------------------

TSV = "en\tzh\none\t一\n"
JSONL = '{"en": "one", "zh": "一"}\n'
PARQUET_BYTES = parquet_bytes(en=["a"], zh=["a"])
BAD_PARQUET = parquet_bytes(en=pa.array([b"\xff"]).view(pa.string()), zh=["a"])
GZIP_BYTES = gzip.compress(b"one\n" * 50)
OTHER_FILES = {"train.zh": "a\n" * 50, "valid.tsv": TSV}
GZIP_MESSAGE = "train.en.gz: damaged gzip file ("
BAD_CORPORA: list[tuple[Mapping[str, str | bytes], str]] = [
    ({"valid.tsv": TSV}, "corpus has no train split, only: valid; add train.en and train.zh, or train.tsv"),
    ({"train.tsv": TSV, "test.tsv": TSV}, "corpus has no valid split, only: test, train; add valid.en"),
    ({"notes": ""}, "corpus has no train split, only: nothing"),
    ({"train.en": "a\n"}, "train.zh is missing, the other side of ... train.en; add it, ... or move"),
    ({"train.zh": "a\n"}, "train.en is missing, the other side of ... train.zh"),
    ({"train.en": "a\nb\n", "train.zh": "a\n"}, "train.en has 2 lines but train.zh has 1"),
    ({"train.en": "a\n", "train.zh": "a\nb\n"}, "train.en has 1 lines but train.zh has 2"),
    ({"train.en": "", "train.zh": ""}, "corpus holds no sentences for train"),
    ({"train.en": "\n", "train.zh": "a\n", "valid.tsv": TSV}, "every training pair is left out: one side is empty"),
    ({"train.en": b"a\n\xff\n", "train.zh": "a\nb\n"}, "train.en, line 2: byte 1 is not valid UTF-8"),
    ({"train.en": "a\n", "train.zh": "a\n", "train.tsv": TSV}, "train.tsv: train exists in another format"),
    ({"train.csv": "en,zh\na,b\n", "train.tsv": TSV}, "train.tsv: train exists in another format"),
    ({"train.tsv": "en\tzh\n"}, "corpus holds no sentences for train"),
    ({"train.tsv": ""}, "train.tsv: no column en, only: nothing"),
    ({"train.tsv": "en\tde\na\tb\n"}, "train.tsv: no column zh, only: en, de; set data.source and data.target"),
    ({"train.tsv": TSV + "two\n"}, "train.tsv, line 3: 1 fields, but the header has 2"),
    ({"train.tsv": TSV + "a\tb\tc\n"}, "train.tsv, line 3: 3 fields, but the header has 2"),
    ({"train.tsv": TSV.encode() + b"\xff\tb\n"}, "train.tsv, line 3: byte 1 is not valid UTF-8"),
    ({"train.tsv": "e\rn\t\u2028\t" + "a" * 10_000}, "train.tsv: no column en, only: e n, , [...];"),
    ({"train.csv": "en,zh\na\n"}, "train.csv, line 2: 1 fields, but the header has 2"),
    ({"train.csv": 'en,zh\na,"b\n'}, "train.csv, line 2: unexpected end of data; check the quotation marks"),
    ({"train.jsonl": JSONL + "{\n"}, "train.jsonl, line 2: not JSON"),
    ({"train.jsonl": "[" * 100_000}, "train.jsonl, line 1: not JSON"),
    ({"train.jsonl": "3\n"}, "train.jsonl, line 1: no column en, only: nothing"),
    ({"train.jsonl": JSONL + '{"en": "a"}\n'}, "train.jsonl, line 2: no column zh, only: en"),
    ({"train.jsonl": '{"en": 3, "zh": "a"}\n'}, "train.jsonl, line 1: en and zh must both be strings"),
    ({"train.jsonl": '{"en": "\\ud800", "zh": "a"}\n'}, "train.jsonl, line 1: ... half a surrogate pair"),
    ({"train.jsonl": JSONL + json.dumps({"en": "\ud800" * 9_999, "zh": ""})}, "train.jsonl, line 2: ... hold"),
    ({"train.tsv": TSV, "train.tsv.gz": GZIP_BYTES}, "train.tsv.gz: there is also train.tsv; keep one of them"),
    ({"train-1.tsv": TSV, "train-2.csv": TSV}, "train-2.csv differs in format from train-1.tsv; give all parts"),
    ({"train.1.tsv": TSV, "train.2.tsv": TSV + "two\n"}, "train.2.tsv, line 3: 1 fields, but the header has 2"),
    ({"train.1.en": "a\n", "train.1.zh": "a\n", "train.2.en": "a\n"}, "train.2.zh is missing, the other side"),
    ({"train.1.parquet": PARQUET_BYTES, "train.2.parquet": b"PAR1"}, "train.2.parquet: not a readable Parquet file"),
    ({"train.1.parquet": PARQUET_BYTES, "train.2.parquet": BAD_PARQUET}, "/train.2.parquet: not a readable Parquet"),
    ({"train.parquet.gz": gzip.compress(PARQUET_BYTES)}, "train.parquet.gz: not a readable Parquet file ("),
    ({"train.parquet": parquet_bytes(en=[1], zh=["a"])}, "train.parquet: column en holds int64, not text"),
    ({"train.parquet": parquet_bytes(en=["a"], de=["a"])}, "train.parquet: no column zh, only: en, de;"),
    ({"train.parquet": BAD_PARQUET}, "train.parquet: not a readable Parquet file ... UTF8"),
    ({"train.parquet": BAD_PARQUET.replace(b"zh", b"z\xe8")}, "train.parquet: not a readable Parquet file ... decode"),
    (OTHER_FILES | {"train.en.gz": b"one\ntwo\n"}, f"{GZIP_MESSAGE} ... ); copy it again, or unpack it"),
    (OTHER_FILES | {"train.en.gz": GZIP_BYTES[:-12]}, GZIP_MESSAGE),
    (OTHER_FILES | {"train.en.gz": GZIP_BYTES[:-6] + b"x" + GZIP_BYTES[-5:]}, f"{GZIP_MESSAGE}CRC"),
    (OTHER_FILES | {"train.en.gz": GZIP_BYTES[:10] + b"\x07" + GZIP_BYTES[11:]}, f"{GZIP_MESSAGE} ... block"),
    (OTHER_FILES | {"train.en.gz": gzip.compress(bytes(1 << 23))}, "train.en.gz, line 1: it has more than 4194304 by"),
]
BAD_SPLIT_SLICES = [
    *((part, f"there is no split {part}, only: all; or") for part in ("half", "all[", "all[::2]", "all[0.5:]")),
    *((part, f"{part} holds no pairs; all has 2") for part in ("all[2:]", "all[-1:1]", "all[:10%]", "all[-10%:]")),
]
NON_FOLDER_PATHS = ["corpus", "./corpus", "../corpus", "/nowhere/corpus", "run/corpus", "a/b/corpus", "one"]
BAD_RUN_CONFIGS = [
    *((text, "run/config.yaml is not YAML: ") for text in ("data: [", "[" * 10_000, "data: !!int x")),
    ("", "run/config.yaml: no usable data section"),
    ("data: {path: 3, source: a, target: b}", "run/config.yaml: no usable data section"),
    ("data: {path: x, source: a, target: b, min_length: 1.5}", "run/config.yaml: no usable data section"),
    ("data: {path: x}", "run/config.yaml: no usable data section"),
    ("data: {path: x, source: a, target: b, sauce: c}", "run/config.yaml: no usable data section"),
    ("data: {path: gone, source: en, target: zh}", "; if the run's corpus has moved, say where it is with --data"),
    ("data: {path: 'memory://a', source: en, target: zh}", "its corpus is at memory://a; to read it there, give --dat"),
    ("data: {path: 'memory:/a', source: en, target: zh}", "its corpus is at memory:/a; to read it there, give --dat"),
]

# -- The folder of a training -----------------------------------------------------------------------------------------


def make_link(name: str) -> FilesOrRunEdit:
    """Replace what a run holds by this name with a link."""

    def given(run: Path) -> None:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).unlink(missing_ok=True)
        Path("elsewhere").touch()
        (run / name).symlink_to(Path("elsewhere").absolute())

    return given


RETRAIN = "train --config run/config.yaml --run-dir"
INIT_FROM = f"{RETRAIN} new --training.init_from"
SETTINGS_DIFFER_MESSAGE = "run/config.yaml and the settings given differ in "
NOT_MARKED_MESSAGE = "is not marked as a run folder by a file .minitrans, so it is not overwritten"
PROJECT_FILES = {f"project/{name}": "years: of work" for name in ("config.yaml", "README.md", "main.c")}
RUN_DIR_REFUSALS: list[tuple[FilesOrRunEdit, str, str]] = [
    ({}, f"{RETRAIN} run", "run is not empty; give --resume, --overwrite or another --run-dir"),
    ({}, f"{RETRAIN} run --resume", "run/checkpoints holds no checkpoint to resume from; train again with --overwrite"),
    ({}, f"{RETRAIN} run --resume --model.d_ff 64", f"{SETTINGS_DIFFER_MESSAGE}model"),
    ({}, f"{RETRAIN} run --resume --seed 64", f"{SETTINGS_DIFFER_MESSAGE}seed"),
    ({}, f"{RETRAIN} run --resume --training.patience 3", f"{SETTINGS_DIFFER_MESSAGE}training"),
    ({}, f"{RETRAIN} run --resume --compiled off", f"{SETTINGS_DIFFER_MESSAGE}compiled"),
    ({}, f"{RETRAIN} run --resume --data.batch_tokens 999", f"{SETTINGS_DIFFER_MESSAGE}data"),
    *(
        ({}, f"{RETRAIN} run --resume --trainer.{name} 9", SETTINGS_DIFFER_MESSAGE + name)
        for name in ("max_steps", "max_epochs", "accumulate_grad_batches", "gradient_clip_val")
    ),
    ({}, f"{RETRAIN} new --resume", "new holds nothing to resume: config.yaml is missing; train without --resume"),
    *(({}, f"{RETRAIN} {name}", f"cannot use {name}: Not a directory; give another") for name in ("one", "one/new")),
    *(({}, f"{RETRAIN} {name}", f"run_dir is {name}; give a folder on this") for name in ("s3://a/run", "de::en")),
    ({}, f"{RETRAIN} {'a' * 300}", "aaa: File name too long; give another --run-dir"),
    ({}, f"{RETRAIN} r\udcfc", "run_dir is r\\udcfc, which is not UTF-8; rename it"),
    ({}, f"{RETRAIN} r --data.path r\udcfc", "data.path is r\\udcfc, which is not UTF-8; rename it"),
    (PROJECT_FILES, f"{RETRAIN} project", "project is not empty; give --resume, --overwrite or another --run-dir"),
    (PROJECT_FILES, f"{RETRAIN} project --overwrite", NOT_MARKED_MESSAGE),
    ({"desk/thesis.doc": "years of work"}, f"{RETRAIN} desk --overwrite", NOT_MARKED_MESSAGE),
    (lambda run: Path("link").symlink_to("gone"), "export RUN -o link", "link already exists; remove it or name"),
    (
        lambda run: Path("link").symlink_to(run),
        f"{RETRAIN} link --overwrite",
        "link is a link, so what it leads to is ",
    ),
    *(
        (make_link(n), f"{RETRAIN} run {flag}", f"run/{n} is a link, and nothing is written through links; remove it")
        for n in ("checkpoints", "tensorboard", "metrics.csv", "tensorboard/hparams.yaml", ".minitrans")
        for flag in ("--resume", "--overwrite")
    ),
    ({}, f"{INIT_FROM} gone", "gone is not a folder; give the run folder that `minitrans train` wrote"),
    ({}, f"{RETRAIN} run --overwrite --training.init_from ./run", "training.init_from is the run folder itself; give"),
    ({}, f"{INIT_FROM} run --model.d_ff 64", "model.d_ff is 64, and 48 in the run of training.init_from; give it the"),
    ({}, f"{INIT_FROM} run --model.n_layers 2", "model.n_layers is 2, and 1 in the run of training.init_from"),
    ({}, f"{INIT_FROM} run --model.n_heads 1", "model.n_heads is 1, and 2 in the run of training.init_from"),
    ({}, f"{INIT_FROM} run --model.tie_embeddings false", "model.tie_embeddings is False, and True in the run of "),
    (
        {},
        f"{RETRAIN} new --trainer.val_check_interval 9999 --trainer.check_val_every_n_epoch 1",
        "trainer.val_check_interval is 9999, and an epoch has only ... batches; make it smaller, or set",
    ),
]

# -- Damaged runs -----------------------------------------------------------------------------------------------------


def edit_metadata(**changes: object) -> FilesOrRunEdit:
    """Change fields of `model.json`; of a dictionary in it, only the given entries."""

    def given(run: Path) -> None:
        fields = json.loads((run / METADATA).read_text())
        for name, value in changes.items():
            fields[name] = fields[name] | value if name in ("model", "sha256") else value
        (run / METADATA).write_text(json.dumps(fields))

    return given


def edit_config(**changes: object) -> FilesOrRunEdit:
    return edit_metadata(model=changes)


def edit_weights(change: Callable[[dict[str, Tensor]], object]) -> FilesOrRunEdit:
    def given(run: Path) -> None:
        tensors = load_file(run / WEIGHTS)
        change(tensors)
        save_file(tensors, run / WEIGHTS)

    return given


def resize_file(name: str, n: int) -> FilesOrRunEdit:
    """Cut a file, or extend it with zeros, which take no room on the disk."""
    return lambda run: os.truncate(run / name, n)


def remove_file(name: str) -> FilesOrRunEdit:
    return lambda run: (run / name).unlink()


def claim_billion_layers(run: Path) -> None:
    """Number the only layer as the last of a billion, and set `n_layers` to a billion."""
    tensors = load_file(run / WEIGHTS)
    save_file({name.replace("layers.0.", "layers.999999999."): tensors[name] for name in tensors}, run / WEIGHTS)
    (run / METADATA).write_text((run / METADATA).read_text().replace('"n_layers": 1', '"n_layers": 1000000000'))


BIAS = "encoder.norm.bias"
DAMAGED, NO_FIT = "model.json is damaged (", "does not fit model.json"
HASH_MESSAGE = "does not have the sha256 that model.json gives"
BAD_WORDS_FILE_MESSAGE = "words.txt is missing or damaged"
BAD_THRESHOLDS = [1, {"score": "low", "chrf": None}, {"score": -1, "chrf": []}, {"score": None, "chrf": None}, {"x": 1}]
RUN_DAMAGES: list[tuple[FilesOrRunEdit, str]] = [
    # Files
    *((remove_file(name), f"holds no finished run: {name} is missing") for name in (METADATA, WEIGHTS, TOKENIZER)),
    *((resize_file(name, 50), name) for name in (METADATA, WEIGHTS, TOKENIZER, WORDS)),
    *((resize_file(n, 2**40), f"{n} is damaged (1099511627776 bytes, more") for n in (METADATA, TOKENIZER, WORDS)),
    (remove_file(WORDS), BAD_WORDS_FILE_MESSAGE),
    ({f"run/{WORDS}": b"\xff\n"}, BAD_WORDS_FILE_MESSAGE),
    ({f"run/{WORDS}": b"a\nb\n"}, "words.txt is damaged (2 words, not ... ); train the run again"),
    ({f"run/{WORDS}": "".join(map("{}\n".format, range(9_999)))}, "words.txt is damaged (9999 words, not"),
    # model.json
    ({f"run/{METADATA}": "[" * 100_000}, DAMAGED),
    (
        {f"run/{METADATA}": "{}"},
        "model.json has no 'sha256': another version of minitrans wrote it; train the run again",
    ),
    *((edit_metadata(threshold=threshold), DAMAGED) for threshold in BAD_THRESHOLDS),
    (edit_metadata(target="zh\x1b[2J"), f"{DAMAGED} ... \\x1b"),
    (edit_metadata(sha256={TOKENIZER: "0" * 64}), f"{TOKENIZER} {HASH_MESSAGE}"),
    (edit_config(d_modl=3), f"{DAMAGED} ... d_modl"),
    (edit_config(n_layers=1.0), f"{DAMAGED}n_layers is 1.0"),
    (edit_config(d_head="16"), f"{DAMAGED} ... '<'"),
    (
        edit_config(vocab_size=7),
        "vocab_size is 7 in the model, ... in the tokenizer; the files come from different runs",
    ),
    (edit_config(pad_id=9), "pad_id is 9 in the model, 0 in the tokenizer"),
    (edit_config(bos_id=9), "bos_id is 9 in the model, 1 in the tokenizer"),
    (edit_config(eos_id=9), "eos_id is 9 in the model, 2 in the tokenizer"),
    (edit_config(d_ff=99), f"{NO_FIT}: decoder.layers.0.ff.w_1.bias differs"),
    # Gigantic sizes: allocating their memory would end the process
    (edit_config(d_model=10**9), DAMAGED),
    (edit_config(vocab_size=10**12), f"vocab_size is {10**12} in the model"),
    (edit_config(n_layers=10**9), NO_FIT),
    (claim_billion_layers, f"{NO_FIT}: n_layers differs"),
    (edit_config(n_heads=10**9, d_head=10**9), NO_FIT),  # more bytes than 64 bits can count
    (edit_config(d_ff=10**12), NO_FIT),
    (edit_config(d_ff=10**30), NO_FIT),
    (edit_config(max_len=10**12), f"{DAMAGED}max_len is {10**12}"),
    (edit_config(max_len=1 << 21), f"{DAMAGED}max_len is 2097152"),  # no weight depends on it
    (edit_config(d_model=2**16, n_heads=1, d_head=1, max_len=2**20), f"{DAMAGED}max_len is 1048576, d_model 65536)"),
    # The weights
    (edit_weights(lambda tensors: tensors.pop(BIAS)), f"{BIAS} differs"),
    (edit_weights(lambda tensors: tensors[BIAS][3].fill_(torch.nan)), f"damaged ({BIAS} is not finite)"),
    (edit_weights(lambda tensors: tensors[BIAS][3].fill_(torch.inf)), f"damaged ({BIAS} is not finite)"),
    (edit_weights(lambda tensors: tensors[BIAS].mul_(1.01)), f"{WEIGHTS} {HASH_MESSAGE}"),  # finite, of the right shape
]

# -- All of them ------------------------------------------------------------------------------------------------------

TRAIN_ON_CORPUS = TRAIN.replace("gone", "corpus")
REFUSAL_CASES: list[tuple[FilesOrRunEdit, str, str]] = [
    *(({}, words, said) for words, said in BAD_COMMANDS + INCOMPLETE_COMMANDS),
    *(({"c.yaml": text}, f"{TRAIN} --config c.yaml", f"c.yaml ... {said}") for text, said in BAD_SETTINGS),
    *(({}, f"{TRAIN} {flags}", said) for flags, said in BAD_FLAGS),
    ({}, f"distill{TRAIN[5:]} {STREAM}", "distill keeps what its teachers translate: set data.streaming to false"),
    ({}, f"distill{TRAIN[5:]} --trainer.num_nodes 2", "distill trains on one machine, and starts its processes itself"),
    (
        {"corpus/all.en": "a\nb\n", "corpus/all.zh": "a\nb\n", "new-teachers": ""},
        f"distill{TRAIN_ON_CORPUS[5:]} --data.splits.train all --data.splits.valid all",
        "cannot write new-teachers/corpus: ... ; give another --run-dir",
    ),
    *(({f"corpus/{name}": files[name] for name in files}, TRAIN_ON_CORPUS, said) for files, said in BAD_CORPORA),
    *(
        (
            {"corpus/all.en": "a\nb\n", "corpus/all.zh": "a\nb\n"},
            f"{TRAIN_ON_CORPUS} --data.splits.train all --data.splits.valid {part}",
            f"data.splits.valid is {part}: {said}",
        )
        for part, said in BAD_SPLIT_SLICES
    ),
    *(
        ({}, f"{TRAIN} --data.path {name}", f"cannot read data.path {name}: ... directory; give a folder with")
        for name in NON_FOLDER_PATHS
    ),
    ({}, f"{TRAIN} --data.path S3://a", "cannot read data.path S3://a: ... ; give a folder"),
    ({}, f"{TRAIN} --data.path owner/name", "owner/name is not a folder here, and could not be loaded from"),
    ({}, f"{TRAIN} --data.path owner/name {STREAM}", "owner/name is not a folder here, and could not be loaded from"),
    *(({"run/config.yaml": text}, "verify run", said) for text, said in BAD_RUN_CONFIGS),
    *RUN_DIR_REFUSALS,
    *((damage, "translate run a", said) for damage, said in RUN_DAMAGES),
    (lambda run: run.rename("r\udcfc"), "translate r\udcfc a", "r\\udcfc: its name is not UTF-8; rename it, or go "),
    *(
        (edit_metadata(**{side: "de"}), "evaluate RUN run --source one --reference one", f"{said}, ... en to zh; comp")
        for side, said in (("source", "run translates de to zh"), ("target", "run translates en to de"))
    ),
]


@pytest.mark.usefixtures("offline_cwd")
@pytest.mark.parametrize(
    ("given", "words", "said"), REFUSAL_CASES, ids=[f"{words[-40:]}-{said[:40]}" for _, words, said in REFUSAL_CASES]
)
def test_mistakes_are_reported_in_one_line_and_nothing_else_is_done(
    given: FilesOrRunEdit, words: str, said: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`said` must be in the line; ` ... ` stands for anything."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, WORKING_DIR_FILES)
    os.mkfifo("pipe")
    run = copy_run(tiny_run, Path("run"))
    given(run) if callable(given) else write_files(tmp_path, given)
    said_by_datasets = io.StringIO()
    for handler in logging.getLogger("datasets").handlers:
        monkeypatch.setattr(handler, "stream", said_by_datasets)
    line = refusal_message(*shlex.split(words.replace("RUN", str(tiny_run))), unchanged=tmp_path)
    place = 0
    for part in said.split(" ... "):
        assert part in line[place:]
        place = line.index(part, place) + len(part)
    assert said_by_datasets.getvalue() == ""
