import resource
from pathlib import Path

import pytest
from conftest import TINY_CONFIG

from minitrans.errors import UserError
from minitrans.model.transformer import Transformer
from minitrans.training.config import check_model_memory, parse_config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
MINIMAL_FLAGS = ["--run-dir=r", "--data.path=p", "--data.source=en", "--data.target=zh", "--trainer.max_steps=1"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_makes_a_model_and_comments_every_key(path: Path) -> None:
    config = parse_config(["--config", str(path)])
    Transformer(config.transformer_config(vocab_size=config.tokenizer.vocab_size, pad_id=0, bos_id=1, eos_id=2))
    assert config.run_dir == Path("runs") / path.stem
    for line in path.read_text().splitlines():
        if ":" in line and not line.startswith("#") and not line.rstrip().endswith(":"):
            assert "  # " in line, f"{path.name}: no comment on {line!r}"


def test_there_are_configs() -> None:
    assert {"en-zh", "multi30k-en-de", "tatoeba-en-zh"} <= {path.stem for path in CONFIGS}


def test_the_merged_settings_can_be_used_again(tmp_path: Path) -> None:
    config = parse_config([*MINIMAL_FLAGS, "--model.dropout", "0.25", "--compiled", "off"])
    path = tmp_path / "config.yaml"
    path.write_text(config.yaml_text)
    again = parse_config(["--config", str(path), "--run-dir", "r"])
    assert again == config
    assert (again.model["dropout"], again.compiled) == (0.25, "off")


def test_a_section_may_be_in_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trainer.yaml").write_text("{max_steps: 7, log_every_n_steps: 3}")
    config = parse_config([*MINIMAL_FLAGS, "--trainer", "trainer.yaml", "--trainer.max_steps", "9"])
    same = parse_config([*MINIMAL_FLAGS, "--trainer.max_steps=9", "--trainer.log_every_n_steps=3"])
    assert config == same
    Path("trainer.yaml").write_text("max_stops: 7")
    with pytest.raises(UserError, match=r"^trainer.yaml: there is no setting trainer.max_stops; the nearest"):
        parse_config([*MINIMAL_FLAGS, "--trainer", "trainer.yaml"])


def test_a_tilde_is_the_home_folder_and_variables_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    flags = ["--run-dir=$HOME/r", "--data.path=~/p", "--data.cache_dir=~/c", "--training.init_from=~/i"]
    config = parse_config([*MINIMAL_FLAGS, *flags])
    paths = str(config.run_dir), config.data.path, config.data.cache_dir, config.training.init_from
    assert paths == ("/h/r", "/h/p", "/h/c", "/h/i")


@pytest.mark.parametrize(
    ("flags", "name", "parsed"),
    [
        (["--data.splits", '{"train": "a[9:]", "valid": "a[:9]"}'], "splits", {"train": "a[9:]", "valid": "a[:9]"}),
        (["--data.splits.train", "a[9:]", "--data.splits.valid=a"], "splits", {"train": "a[9:]", "valid": "a"}),
        (["--data.noise", '{"lower": 0.1}'], "noise", {"lower": 0.1}),
        (["--data.noise.lower", "0.1"], "noise", {"lower": 0.1}),
        (["--config=c.yaml"], "noise", {"lower": 0.1}),
        ([], "noise", None),
    ],
)
def test_splits_and_noise_are_settings_and_each_entry_is_a_flag(
    flags: list[str], name: str, parsed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("data: {noise: {lower: 0.1}}")
    assert getattr(parse_config([*MINIMAL_FLAGS, *flags]).data, name) == parsed


def test_the_lowest_memory_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    check_model_memory(TINY_CONFIG)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10_000, 10_000))  # as under ulimit -v
    with pytest.raises(UserError, match="and this machine has 1e-05 GB"):
        check_model_memory(TINY_CONFIG)


def test_a_whole_number_may_be_written_with_an_exponent() -> None:
    config = parse_config([*MINIMAL_FLAGS, "--trainer.val_check_interval", "1e3"])
    assert str(config.trainer["val_check_interval"]) == "1000"
