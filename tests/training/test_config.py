from pathlib import Path

import pytest
import yaml

from minitrans import cli
from minitrans.errors import UserError
from minitrans.model.transformer import Transformer
from minitrans.training.config import parse_config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
DATA = ["--data.path", "p", "--data.source", "en", "--data.target", "zh"]
MINIMAL = ["--run-dir", "r", *DATA, "--trainer.max_steps", "1"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_makes_a_model_and_comments_every_key(path: Path) -> None:
    config = parse_config(["--config", str(path)])
    Transformer(config.transformer(vocab_size=config.tokenizer.vocab_size, pad_id=0, bos_id=1, eos_id=2))
    assert config.run_dir == Path("runs") / path.stem
    for line in path.read_text().splitlines():
        if ":" in line and not line.startswith("#") and not line.rstrip().endswith(":"):
            assert "  # " in line, f"{path.name}: no comment on {line!r}"


def test_there_are_configs() -> None:
    assert {"en-zh", "multi30k-en-de", "tatoeba-en-zh"} <= {path.stem for path in CONFIGS}


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model:\n  d_model: 64\n  n_layers: 5\ndata: {path: p, source: en, target: zh}\n")
    config = parse_config(["--config", str(path), "--model.d_model", "32", "--trainer.max_steps", "7"])
    sizes = config.transformer(vocab_size=300, pad_id=0, bos_id=1, eos_id=2)
    assert (sizes.d_model, sizes.n_layers, config.trainer["max_steps"]) == (32, 5, 7)


def test_the_merged_settings_can_be_used_again(tmp_path: Path) -> None:
    config = parse_config([*MINIMAL, "--model.dropout", "0.25", "--compiled", "off"])
    path = tmp_path / "config.yaml"
    path.write_text(config.text)
    again = parse_config(["--config", str(path), "--run-dir", "r"])
    assert again == config
    assert (again.model["dropout"], again.compiled) == (0.25, "off")


def test_print_config_prints_the_merged_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["train", *MINIMAL, "--model.d_ff", "77", "--print-config"])
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["model"]["d_ff"] == 77
    assert found["training"]["label_smoothing"] == 0.1
    assert found["compiled"] == "auto"


FILES = [
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
    (
        "data: {noise: {typo: -0.1}}",
        "data.noise is {'typo': -0.1}; it must be a mapping of numbers from 0 to below 1 or",
    ),
    ("model: 3", "model is 3; it must hold settings, such as model.tie_embeddings"),
    (f"model: {[*range(10_000)]}", "model is [0, 1, 2, "),
    ("- model", " holds no settings; write them as `name: value`"),
    ("data: {source: no}", "data.source is False; it must be text; YAML takes on, off, yes and no for truth values, p"),
    ("compiled: off", "compiled is False; it must be auto or off or require; YAML takes on, off, yes and no for truth"),
    ("model: [1, 2", "line 1"),
    ("seed: !!int x", " is not YAML: "),
    (f"seed: {'9' * 5000}", " is not YAML: "),
    ("a: &a [x, x, x]\nb: &b [*a, *a, *a]\ndata: {splits: *b}", "settings have no aliases, such as *a"),
    ("data: " + "[" * 21 + "]" * 21, "it nests more than 20 deep"),
    ("data: " + "[" * 60_000, " is not YAML: "),
    ("data: {path: " + "x" * 70_000 + "}", " has more than 65536 bytes"),
]
STREAM = "--data.streaming true --trainer.val_check_interval 500"
FLAGS = [
    ("--trainer.max_step 3", "there is no flag --trainer.max_step (see minitrans train --help); the nearest is --trai"),
    ("--modle.d_ff=3", "there is no flag --modle.d_ff (see minitrans train --help); the nearest is --model.d_ff"),
    ("--trainer.precision 32-true", "; the nearest is --training.precision"),
    ("--seed", "argument --seed: expected one argument; see minitrans train --help"),
    ("here", "here is one argument too many; see minitrans train --help"),
    ("--compiled maybe", "--compiled is maybe; it must be auto or off or require"),
    ("--data.splits.train.x [1] --data.splits 3", "--data.splits is 3; it must be a mapping of texts or null"),
    (
        "--model.d_model.x 3",
        "there is no flag --model.d_model.x (see minitrans train --help); the nearest is --model.d_m",
    ),
    ("--data 3", "--data is 3; it must hold settings, such as data.noise"),
    ("--training.precision 33", "--training.precision is 33; it must be auto or bf16 or fp32 or fp16"),
    ("--tokenizer.model_type word", "--tokenizer.model_type is word; it must be unigram or bpe"),
    ("--trainer.strategy fsdp", "--trainer.strategy is fsdp; it must be auto or ddp"),
    ("--seed -1", "--seed is -1; it must be a whole number from 0 to 4294967295"),
    ("--seed 4294967296", "--seed is 4294967296; it must be a whole number from 0 to 4294967295"),
    (f"--seed 0x{'f' * 5000}", f"--seed is 0x{'f' * 75}...; it must be a whole number from 0"),
    (f"--model.d_model 0x{'f' * 5000}", "model.d_model is far too large; it must fit into 32 bits"),
    (f"--trainer.max_steps {'9' * 20}", f"trainer.max_steps is {'9' * 20}; it must fit into 32 bits"),
    ("--trainer.max_steps 0", "neither trainer.max_steps nor trainer.max_epochs says how long to train; set one"),
    ("--trainer.max_steps -1", "neither trainer.max_steps nor trainer.max_epochs says how long to train; set one"),
    ("--trainer.limit_val_batches 0", "trainer.limit_val_batches is 0; it must be above 0"),
    ("--trainer.val_check_interval 0", "trainer.val_check_interval is 0; it must be above 0"),
    ("--trainer.accumulate_grad_batches 0", "--trainer.accumulate_grad_batches is 0; it must be a whole number from 1"),
    ("--trainer.gradient_clip_val 0", "--trainer.gradient_clip_val is 0; it must be a finite number above 0 or null"),
    ("--tokenizer.vocab_size 100", "tokenizer.vocab_size is 100; it must be at least 262 ("),
    ("--tokenizer.character_coverage 0.5", "tokenizer.character_coverage is 0.5; it must be from 0.98 to 1"),
    ("--training.ema_decay 1", "--training.ema_decay is 1; it must be a number from 0 to below 1"),
    ("--training.label_smoothing -0.1", "--training.label_smoothing is -0.1; it must be a number from 0 to below 1"),
    ("--training.learning_rate 0", "--training.learning_rate is 0; it must be a finite number above 0"),
    ("--training.learning_rate .inf", "--training.learning_rate is .inf; it must be a finite number above 0"),
    ("--training.weight_decay .nan", "--training.weight_decay is .nan; it must be a finite number from 0"),
    ("--training.patience 0", "--training.patience is 0; it must be a whole number from 1 to 2147483647"),
    ("--training.warmup_steps -1", "--training.warmup_steps is -1; it must be a whole number from 0 to 2147483647"),
    ("--data.batch_tokens 0", "--data.batch_tokens is 0; it must be a whole number from 1 to 2147483647"),
    ("--data.min_length 0", "--data.min_length is 0; it must be a whole number from 1 to 2147483647"),
    ("--data.shuffle_buffer 0", "--data.shuffle_buffer is 0; it must be a whole number from 1 to 2147483647"),
    ("--data.max_length_ratio 0.5", "--data.max_length_ratio is 0.5; it must be a finite number from 1 or null"),
    (
        "--data.noise.typo .1 --data.noise.item 1",
        "--data.noise is {'typo': '.1', 'item': '1'}; it must be a mapping of n",
    ),
    ("--data.noise.lowr 0.1", "data.noise has no lowr; the nearest is lower"),
    (
        "--data.noise.typo 0.6 --data.noise.item 0.5",
        "data.noise add up to 1.1; they must add up to less than 1",
    ),
    (
        "--data.noise.typo 0.7 --data.noise.item 0.2 --data.noise.title 0.1",
        "add up to 1; they must add up to less than 1",
    ),
    ("--data.streaming true", "with data.streaming, set trainer.val_check_interval to a number of steps, such as 500"),
    (
        f"{STREAM} --trainer.val_check_interval 0.5",
        "with data.streaming, set trainer.val_check_interval to a number",
    ),
    (f"{STREAM} --trainer.max_epochs 3", "an epoch has no end: set trainer.max_steps, and not trainer.max_epochs"),
    (f"{STREAM} --trainer.max_epochs 3 --trainer.max_steps -1", "set trainer.max_steps, and not trainer.max_epochs"),
    ("--data.target en", "data.source and data.target are both en; they must differ"),
    ("--config gone.yaml", "cannot read gone.yaml: No such file or directory; give the path of a YAML file"),
]
LACKING = [
    (["--run-dir", "r"], "--data.path, --data.source, --data.target must be given; see minitrans train --help"),
    ([*MINIMAL[:4], *MINIMAL[6:]], "--data.source must be given; see minitrans train --help"),
    (MINIMAL[2:], "neither --config nor --run-dir is given; give one of them"),
]


@pytest.mark.parametrize(
    ("argv", "text", "told"),
    [
        *(([*MINIMAL, "--config", "c.yaml"], text, told) for text, told in FILES),
        *(([*MINIMAL, *flags.split()], "", told) for flags, told in FLAGS),
        *((argv, "", told) for argv, told in LACKING),
    ],
    ids=lambda value: str(value)[-50:],
)
def test_a_wrong_setting_is_named_on_one_line(
    argv: list[str], text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(text + "\n")
    with pytest.raises(UserError) as error:
        parse_config(argv)
    assert told in str(error.value)
    assert not text or str(error.value).startswith("c.yaml")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "flags",
    [
        ["--data.splits", '{"train": "train[100:]", "valid": "train[:100]"}'],
        ["--data.splits.train", "train[100:]", "--data.splits.valid=train[:100]"],
    ],
)
def test_splits_are_a_setting_and_each_is_a_flag(flags: list[str]) -> None:
    assert parse_config([*MINIMAL, *flags]).data.splits == {"train": "train[100:]", "valid": "train[:100]"}


@pytest.mark.parametrize(
    "flags", [["--data.noise", '{"lower": 0.1}'], ["--data.noise.lower", "0.1"], ["--config=c.yaml"]]
)
def test_noise_is_a_setting_and_each_kind_is_a_flag(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("data: {noise: {lower: 0.1}}")
    assert parse_config([*MINIMAL, *flags]).data.noise == {"lower": 0.1}
    assert parse_config(MINIMAL).data.noise is None


@pytest.mark.parametrize(
    ("noise", "told"), [("lowr: 0.1", "has no lowr; the nearest is lower"), ("lower: 0.6, typo: 0.5", "add up to 1.1;")]
)
def test_shares_of_noise_in_a_file_are_checked(tmp_path: Path, noise: str, told: str) -> None:
    (tmp_path / "c.yaml").write_text(f"data: {{path: p, source: en, target: zh, noise: {{{noise}}}}}")
    with pytest.raises(UserError, match=told):
        parse_config([f"--config={tmp_path}/c.yaml", "--trainer.max_steps=1"])
