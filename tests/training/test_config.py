from pathlib import Path
from typing import get_args

import pytest
import yaml
from jsonargparse import ArgumentParser

from minitrans import cli
from minitrans.admission import Mode
from minitrans.arguments import make_parser
from minitrans.errors import UserError
from minitrans.model.transformer import Transformer
from minitrans.training.config import RunConfig, add_settings, parse_config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
MINIMAL = [
    "--run-dir",
    "r",
    "--data.path",
    "p",
    "--data.source",
    "en",
    "--data.target",
    "zh",
    "--trainer.max_steps",
    "1",
]


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
    config = parse_config([*MINIMAL, "--model.dropout", "0.25"])
    path = tmp_path / "config.yaml"
    path.write_text(config.text)
    again = parse_config(["--config", str(path), "--run-dir", "r"])
    assert again == config
    assert yaml.safe_load(config.text)["model"]["dropout"] == 0.25


def test_print_config_prints_the_merged_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["train", *MINIMAL, "--model.d_ff", "77", "--print-config"])
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["model"]["d_ff"] == 77
    assert found["training"]["label_smoothing"] == 0.1
    assert found["compiled"] == "auto"


def parse(*argv: str, text: str | None = None, folder: Path | None = None) -> RunConfig:
    if text is None or folder is None:
        return parse_config([*MINIMAL, *argv])
    path = folder / "c.yaml"
    path.write_text(text)
    return parse_config(["--config", str(path), *MINIMAL, *argv])


@pytest.mark.parametrize(
    ("argv", "text", "message"),
    [
        ((), "model:\n  d_modl: 3\n", "c.yaml: there is no setting model.d_modl; the nearest is model.d_model$"),
        ((), "modl:\n  d_model: 3\n", "c.yaml: there is no setting modl.d_model; the nearest is model.d_model$"),
        ((), "compield: off\n", "c.yaml: there is no setting compield; the nearest is compiled$"),
        ((), "3: 4\n", "c.yaml: there is no setting 3; the nearest is "),
        (
            ("--trainer.max_step", "3"),
            None,
            "there is no flag --trainer.max_step .*; the nearest is --trainer.max_steps$",
        ),
        (("--modle.d_ff=3",), None, "there is no flag --modle.d_ff .*; the nearest is --model.d_ff$"),
        (("--compield", "off"), None, "there is no flag --compield .*; the nearest is --compiled$"),
        (("--seed",), None, "--seed must be given a value; see minitrans train --help$"),
        (("here",), None, "here is one argument too many; see minitrans train --help$"),
        ((), "model:\n  d_model: wide\n", "c.yaml: model.d_model is wide; it must be of type int$"),
        ((), "model:\n  d_model: null\n", "c.yaml: model.d_model is None; it must be of type int$"),
        ((), "model: 3\n", "c.yaml: model is 3; it must hold settings, such as model.d_model$"),
        ((), "- model\n", "c.yaml holds no settings; "),
        ((), "data:\n  source: no\n", "data.source is False; it must be of type str; .* put them in quotes$"),
        ((), "compiled: off\n", "compiled is False; it must be one of auto, off, require; .* put them in quotes$"),
        (("--compiled", "maybe"), None, "--compiled is maybe; it must be one of auto, off, require$"),
        (("--data.splits.train.x", "[1]", "--data.splits", "3"), None, "--data.splits is 3; it must be one of dict"),
        (("--training.precision", "33"), None, "training.precision is 33; it must be one of auto, bf16, fp32, fp16$"),
        (
            ("--trainer.precision", "32-true"),
            None,
            "there is no flag --trainer.precision .*; the nearest is --training.precision$",
        ),
        ((), "trainer:\n  precision: 32-true\n", "no setting trainer.precision; the nearest is training.precision$"),
        ((), "model: [1, 2\n", "line 1"),
        (("--tokenizer.vocab_size", "100"), None, "tokenizer.vocab_size is 100"),
        (("--training.ema_decay", "1"), None, r"training.ema_decay is 1; it must be at most 0.999999 \("),
        (("--training.learning_rate", "0"), None, r"training.learning_rate is 0; it must be at least 1e-38$"),
        (("--training.patience", "0"), None, r"training.patience is 0; it must be at least 1$"),
        (("--training.warmup_steps", "-1"), None, r"training.warmup_steps is -1; it must be at least 0$"),
        (("--data.target", "en"), None, "data.source and data.target are both en"),
    ],
)
def test_a_wrong_setting_is_named_on_one_line(
    argv: tuple[str, ...], text: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse(*argv, text=text, folder=tmp_path)
    assert "\n" not in str(error.value)


def test_missing_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.path"):
        parse_config(["--run-dir", "r"])
    with pytest.raises(UserError, match="neither --config nor --run-dir"):
        parse_config(MINIMAL[2:])
    with pytest.raises(UserError, match=r"neither trainer.max_steps nor trainer.max_epochs"):
        parse_config([*MINIMAL, "--trainer.max_steps", "-1"])
    with pytest.raises(UserError, match=r"^--data.source must be given; see minitrans train --help$"):
        parse_config([*MINIMAL[:4], *MINIMAL[6:]])
    with pytest.raises(
        UserError, match=r"^cannot read .*gone.yaml: No such file or directory; give the path of a YAML file$"
    ):
        parse_config(["--config", str(tmp_path / "gone.yaml")])


def test_sizes_that_do_not_fit_are_the_users_error() -> None:
    config = parse("--model.d_model", "30", "--model.n_heads", "4")
    with pytest.raises(UserError, match=r"model.d_model \(30\) is not divisible by model.n_heads \(4\)"):
        config.transformer(vocab_size=300, pad_id=0, bos_id=1, eos_id=2)


def test_a_stream_has_no_epochs() -> None:
    stream = ("--data.streaming", "true", "--trainer.val_check_interval", "500")
    assert parse(*stream).data.streaming
    for flags in (("--trainer.max_steps", "-1", "--trainer.max_epochs", "3"), ("--trainer.max_epochs", "3")):
        with pytest.raises(
            UserError, match=r"with data\.streaming.* set trainer\.max_steps, and not trainer\.max_epochs"
        ):
            parse(*stream, *flags)
    for interval in ((), ("--trainer.val_check_interval", "0.5")):
        with pytest.raises(
            UserError, match=r"with data\.streaming, set trainer\.val_check_interval to a number of steps"
        ):
            parse(*stream[:2], *interval)


def test_compiled_is_a_setting_of_the_run(tmp_path: Path) -> None:
    assert parse().compiled == "auto"
    assert yaml.safe_load(parse().text)["compiled"] == "auto"
    off = parse("--compiled", "off")
    assert off.compiled == "off"
    assert parse(text=off.text, folder=tmp_path) == off
    assert parse(text="compiled: require\n", folder=tmp_path).compiled == "require"
    (switch,) = [action for action in parser()._actions if action.dest == "compiled"]
    assert get_args(getattr(switch, "_typehint", None)) == get_args(Mode)


def parser() -> ArgumentParser:
    made = make_parser("minitrans train", "")
    add_settings(made)
    return made


def test_a_part_of_a_mapping_is_a_flag() -> None:
    assert parse("--data.splits.train", "a", "--data.splits.valid=b").data.splits == {"train": "a", "valid": "b"}


def test_splits_are_settings() -> None:
    flag = '{"train": "train[100:]", "valid": "train[:100]"}'
    splits = parse("--data.splits", flag).data.splits
    assert splits == {"train": "train[100:]", "valid": "train[:100]"}
