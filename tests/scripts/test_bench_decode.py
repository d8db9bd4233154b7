"""The benchmark is fair and complete: same weights and ids for all, every number it promises. No time is asserted."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import bench_decode
import bench_train
import pytest
import torch
from bench_decode import CT2, HF, OURS, IdLists
from bench_helpers import interrupted_output, needs_ctranslate2, needs_peers, needs_transformers, refusal_line
from conftest import randomize
from time_budget import TimeBudget

from minitrans.model.decoding import CachedStepper, greedy_decode
from minitrans.model.transformer import Transformer, TransformerConfig

MODEL_CONFIG = TransformerConfig(
    vocab_size=150, pad_id=0, bos_id=1, eos_id=2, d_model=16, n_heads=2, d_ff=24, n_layers=2, max_len=32
)
FLAGS = ["--sentences", "12", "--single", "3", "--minutes", "0", "--threads", "1"]
PEER_PARAMS = [pytest.param(HF, marks=needs_transformers), pytest.param(CT2, marks=needs_ctranslate2)]


@pytest.fixture(scope="module")
def model() -> Transformer:
    """A model whose outputs end, some sooner than others."""
    return randomize(Transformer(MODEL_CONFIG), 5).float()


@pytest.fixture(scope="module")
def sources() -> IdLists:
    numbers = torch.Generator().manual_seed(3)
    rows = [torch.randint(4, MODEL_CONFIG.vocab_size, (length,), generator=numbers).tolist() for length in range(1, 25)]
    return [[*row, MODEL_CONFIG.eos_id] for row in rows]


@pytest.fixture(scope="module")
def greedy_outputs(model: Transformer, sources: IdLists) -> IdLists:
    return [greedy_decode(CachedStepper(model), torch.tensor([source]))[0].ids for source in sources]


@pytest.fixture
def patch_for_quick_comparison(monkeypatch: pytest.MonkeyPatch, model: Transformer, sources: IdLists) -> None:
    """Make the comparison take only seconds."""
    monkeypatch.setattr(bench_decode, "make_model_and_sources", lambda *arguments: (model, sources))
    monkeypatch.setattr(bench_decode, "peak_memory", lambda *arguments: 123.0)
    monkeypatch.setattr(bench_decode, "SENTENCE_LENGTHS", (8, 16))
    monkeypatch.setattr(bench_train, "BF16_CPU_FLAGS", bench_train.describe_machine()["flags"])


@pytest.mark.parametrize("name", [OURS, "minitrans, plain", "minitrans, no cache", *PEER_PARAMS])
def test_all_contenders_decode_the_same(
    name: str, model: Transformer, sources: IdLists, greedy_outputs: IdLists, tmp_path: Path
) -> None:
    assert len({len(ids) for ids in greedy_outputs}) > 5
    decode = bench_decode.DECODER_BUILDERS[name](model, tmp_path)
    assert decode(sources) == greedy_outputs
    assert [decode([source])[0] for source in sources] == greedy_outputs


@pytest.mark.parametrize("name", PEER_PARAMS)
def test_peers_search_with_beams(name: str, model: Transformer, sources: IdLists, tmp_path: Path) -> None:
    own, other = (bench_decode.DECODER_BUILDERS[who](model, tmp_path)(sources, 5) for who in (OURS, name))
    assert other != bench_decode.DECODER_BUILDERS[name](model, tmp_path)(sources)
    assert sum(a == b for a, b in zip(own, other, strict=True)) > len(sources) / 2  # they end a search differently


def test_a_model_is_trained_and_its_sources_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny = bench_train.Settings(
        pairs=300, batch_tokens=400, vocab_size=150, n_layers=1, d_model=16, d_ff=24, n_heads=2, mean_length=5
    )
    monkeypatch.setattr(bench_train, "Settings", lambda batch_tokens: tiny)
    monkeypatch.setattr(bench_decode, "MIN_MAX_TRAINING_STEPS", (2, 2))
    model, sources = bench_decode.make_model_and_sources(tmp_path, TimeBudget("test", 0))
    assert not model.training
    assert len(sources) == 300
    assert {source[-1] for source in sources} == {model.config.eos_id}


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own(model: Transformer, sources: IdLists, tmp_path: Path) -> None:
    assert 50 < bench_decode.peak_memory(OURS, model, sources, tmp_path) < 5000


@needs_peers
@pytest.mark.usefixtures("patch_for_quick_comparison")
def test_json_holds_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_decode.main(["--json", *FLAGS]) == 0
    result = json.loads(capsys.readouterr().out)
    ratios = {f"ratio_to_{peer}_{kind}" for peer in ("hf", "ct2") for kind in ("batched", "single", "beams")}
    names = "machine settings sentences mean_length parameters contenders lengths left_out rounds interrupted"
    assert set(result) == {*ratios, *names.split()}
    assert result["rounds"] == {"batched": 3, "beams": 3, "single": 3}
    assert min(result[ratio] for ratio in ratios) > 0
    assert result["sentences"] == 12
    rows = {row["name"]: row for row in result["contenders"]}
    assert [*rows] == [*bench_decode.DECODER_BUILDERS]
    assert {row["different"] for name, row in rows.items() if name not in bench_decode.LESS_EXACT} == {0}
    own, hf = (rows[name]["sentences_per_second"] for name in (OURS, HF))
    assert result["ratio_to_hf_batched"] == pytest.approx(own / hf)
    for row in rows.values():
        assert list(row["latency_ms"].values()) == sorted(row["latency_ms"].values())
    for row in result["lengths"]:
        assert set(row["tokens_per_second"]) == set(bench_decode.LENGTH_CONTENDERS)
        assert set(row["different"].values()) == {0}
    bench_decode.print_comparison(result)
    assert "speed over CTranslate2's in float32: batched" in capsys.readouterr().out


@needs_peers
@pytest.mark.usefixtures("patch_for_quick_comparison")
def test_a_peer_that_differs_is_reported_and_one_sentence_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode = Mock(side_effect=lambda sources, beam: [[] for _ in sources])
    monkeypatch.setitem(bench_decode.DECODER_BUILDERS, HF, lambda model, folder: decode)
    assert bench_decode.main([*FLAGS, "--single", "1"]) == 1
    printed = capsys.readouterr()
    assert f"{HF} does not decode what" in printed.err
    assert f"| {HF} |" in printed.out


@pytest.mark.parametrize(
    ("name", "n_sentences", "n_at_length", "named"),
    [
        ("minitrans, plain", 11, 0, True),
        (bench_decode.OURS_NO_CACHE, 0, 2, True),
        (HF, 10, 1, False),
        *((name, 900, 0, False) for name in bench_decode.LESS_EXACT),
    ],
)
def test_differences_beyond_rounding_are_named(name: str, n_sentences: int, n_at_length: int, named: bool) -> None:
    lengths = [{"different": {name: n}} for n in (n_at_length, 0, 0, 0, 0, 0)]
    result = {"sentences": 1000, "contenders": [{"name": name, "different": n_sentences}], "lengths": lengths}
    assert bench_decode.differing_contenders(result) == [name] * named


def test_a_round_times_every_contender_once(sources: IdLists) -> None:
    decoders = Mock()
    decoders.a.side_effect = decoders.b.side_effect = lambda batch, beam: [[7]] * len(batch)
    batches = [sources[:2], sources[2:3]]
    *_, timings = bench_decode.time_decoders({"a": decoders.a, "b": decoders.b}, batches, range(4), beam=4)
    calls = [(name, len(batch), beam) for name, (batch, beam), _ in decoders.mock_calls]
    assert sorted(calls[4:]) == sorted([("a", 2, 4), ("a", 1, 4), ("b", 2, 4), ("b", 1, 4)] * 3)
    assert {name for name, _, _ in calls[4:8]} == {"a", "b"}
    assert timings["a"].outputs == [[7]] * 3
    assert len(timings["a"].median_batch_seconds) == 2


def test_decoding_without_a_cache_is_timed_once_if_slow(monkeypatch: pytest.MonkeyPatch, sources: IdLists) -> None:
    time_batch = Mock(return_value=(9.0, [[7]]))
    monkeypatch.setattr(bench_decode, "time_batch", time_batch)
    decoders: Any = {name: name for name in (HF, bench_decode.OURS_NO_CACHE)}
    *_, timings = bench_decode.time_decoders(decoders, [sources], range(4))
    timed = [call.args[0] for call in time_batch.call_args_list]
    assert (timed.count(HF), timed.count(bench_decode.OURS_NO_CACHE)) == (4, 1)
    assert timings[bench_decode.OURS_NO_CACHE] == ([9.0], [[7]])


@needs_peers
@pytest.mark.usefixtures("patch_for_quick_comparison")
def test_an_interrupt_prints_results_and_names_what_was_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_train, "BF16_CPU_FLAGS", ())
    result = json.loads(interrupted_output("peak_memory", bench_decode, ["--json", *FLAGS], monkeypatch, capsys))
    assert result["interrupted"]
    assert bench_decode.OURS_BF16 not in {row["name"] for row in result["contenders"]}
    assert [one["name"] for one in result["left_out"]] == [bench_decode.OURS_BF16]
    bench_decode.print_comparison(result)
    printed = capsys.readouterr().out
    assert f"left out: {bench_decode.OURS_BF16}" in printed
    assert f"| {HF} |" in printed
    nothing = interrupted_output("make_model_and_sources", bench_decode, FLAGS, monkeypatch, capsys)
    assert nothing == "interrupted before anything was measured\n"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [(["--run", "x"], "--run and --source go together"), (["--run", "no/such", "--source", "x"], "no/such")],
)
@needs_peers
def test_bad_usage_ends_in_one_line(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint in refusal_line(bench_decode, [*FLAGS, *flags], capsys)


@pytest.mark.parametrize(
    ("bench", "missing"),
    [(bench_decode, "transformers"), (bench_decode, "ctranslate2"), (bench_train, "transformers")],
)
def test_a_missing_peer_is_reported_with_what_to_install(
    bench: ModuleType, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else 1)
    assert f"{missing} is not installed; pip install -e '.[bench]'" in refusal_line(bench, ["--minutes=0"], capsys)
