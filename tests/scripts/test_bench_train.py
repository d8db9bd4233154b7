"""The benchmark is fair and complete: same batches and sizes for all, every number it promises. No time is asserted."""

import json
import resource
import sys
from pathlib import Path

import bench_train
import numpy as np
import pytest
import torch
from bench_helpers import INSTALLED_PEERS, interrupted_output, needs_transformers, refusal_line
from bench_train import BenchTrainer, Contender, Settings, Workload
from lightning.pytorch import LightningModule, Trainer

from minitrans.data.batching import Batch

TINY_SETTINGS = Settings(
    pairs=300, batch_tokens=200, vocab_size=150, n_layers=1, d_model=16, d_ff=24, n_heads=2, minutes=0.0, threads=1
)
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in vars(TINY_SETTINGS).items() if value is not None]
THIS_MACHINE = bench_train.describe_machine() if "transformers" in INSTALLED_PEERS else {}
BF16_CPU_FLAGS, NO_BF16_CPU_FLAGS = ["avx2", "amx_bf16"], ["avx2"]  # with bfloat16, and without


class BatchRecorder(BenchTrainer):
    """Makes no step, but records which batches it is given."""

    def __init__(self, name: str) -> None:
        self.contender = Contender(name, "fp32")
        self.seen: list[int] = []

    def step(self, batch: Batch) -> float:
        self.seen.append(id(batch))
        return 0.0


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return bench_train.make_workload(TINY_SETTINGS, tmp_path_factory.mktemp("bench"))


def test_made_up_lengths_are_like_those_of_captions() -> None:
    source, target = bench_train.made_up_pair_lengths(20_000, 15.5, np.random.default_rng(0))
    assert source.min() >= 1
    assert target.min() >= 1
    assert target.mean() == pytest.approx(15.5, abs=0.3)
    assert target.std() == pytest.approx(5.7, abs=0.5)
    assert target.mean() - 1.5 < source.mean() < target.mean()
    assert source.std() == pytest.approx(5, abs=0.5)
    assert np.corrcoef(source, target)[0, 1] == pytest.approx(0.84, abs=0.03)
    assert target.max() < 5 * 15.5


def test_batches_hold_the_made_up_ids(workload: Workload) -> None:
    config = workload.config
    assert len(workload.batches) == bench_train.MIN_MAX_STEPS[1]
    for batch in workload.batches:
        assert max(batch.src_ids.numel(), batch.tgt_in.numel()) <= TINY_SETTINGS.batch_tokens
        assert (batch.tgt_in[:, 0] == config.bos_id).all()
        assert ((batch.src_ids == config.eos_id).sum(1) == 1).all()
        assert int(batch.src_ids.max()) < TINY_SETTINGS.vocab_size


def test_the_same_settings_give_the_same_batches(workload: Workload, tmp_path: Path) -> None:
    again = bench_train.make_workload(TINY_SETTINGS, tmp_path)
    torch.testing.assert_close(workload.batches, again.batches, rtol=0, atol=0)


def test_all_contenders_get_the_same_batches_in_the_same_order(workload: Workload) -> None:
    recorders = [BatchRecorder(name) for name in ("a", "b", "c")]
    _, seconds = bench_train.time_steps(recorders, workload.batches, range(2))
    assert set(seconds) == {recorder.contender for recorder in recorders}
    for recorder in recorders:
        assert recorder.seen == 2 * [id(batch) for batch in workload.batches]


@pytest.mark.parametrize("steps", [1, 4, 5])
def test_the_bare_loop_makes_every_step_of_the_trainer(steps: int, workload: Workload) -> None:
    recorder = BatchRecorder("a")
    in_turn = bench_train.BareLoopTimer(recorder, steps)
    batches = [Batch(*batch) for batch in 3 * workload.batches][: steps + 1]
    trainer, module = Trainer.__new__(Trainer), LightningModule()
    for batch in batches[:-1]:
        in_turn.on_train_batch_start(trainer, module, batch, 0)
    with pytest.raises(bench_train.AllStepsMeasuredError):
        in_turn.on_train_batch_start(trainer, module, batches[-1], 0)
    assert recorder.seen == [id(batch) for batch in batches[:-1]]
    assert len(in_turn.bare) == len(in_turn.trainer) == steps


@needs_transformers
@pytest.mark.parametrize("precision", bench_train.PRECISIONS)
@pytest.mark.parametrize("name", bench_train.MODEL_BUILDERS)
def test_every_contender_learns(workload: Workload, name: str, precision: str) -> None:
    bench = BenchTrainer(Contender(name, precision), workload.config)
    losses = [bench.step(workload.batches[0]) for _ in range(20)]
    assert losses[-1] < losses[0]


def test_nn_transformer_ignores_padding_and_the_future(workload: Workload) -> None:
    torch.manual_seed(0)
    model = bench_train.TorchTransformer(workload.config).train(False)
    src = torch.tensor([[7, 8, 2, 0], [9, 7, 8, 2]])
    tgt = torch.tensor([[1, 7, 8], [1, 9, 9]])
    logits = model(src, tgt)
    shorter = model(src[:1, :3], tgt[:1, :2])
    torch.testing.assert_close(logits[:1, :2], shorter, rtol=1e-4, atol=1e-5)


def test_the_plain_formulas_give_the_same_losses(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_train, "describe_machine", lambda: THIS_MACHINE | {"flags": BF16_CPU_FLAGS})
    rows = list(bench_train.compare_losses_with_plain(workload, range(1, 51)))
    assert [row["step"] for row in rows] == list(bench_train.SHOWN_LOSS_STEPS)
    for row in rows:
        assert row["fp32"] == pytest.approx(row["plain"], rel=1e-5)
        assert row["bf16"] == pytest.approx(row["plain"], rel=1e-2)
    assert rows[-1]["plain"] < rows[0]["plain"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the unit differs")
def test_peak_memory_is_that_of_a_child(workload: Workload) -> None:
    ballast = torch.ones(2**28, dtype=torch.uint8)  # which the child does not have
    child = bench_train.peak_memory(Contender(bench_train.OURS, "fp32"), workload)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    assert ballast[-1] == 1
    assert 50 < child < own


@needs_transformers
@pytest.mark.parametrize("flags", [BF16_CPU_FLAGS, NO_BF16_CPU_FLAGS])
def test_json_holds_every_number_that_the_processor_can_give(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_train, "describe_machine", lambda: THIS_MACHINE | {"flags": flags})
    monkeypatch.setattr(bench_train, "peak_memory", lambda contender, workload: 123.0)
    precisions = ["fp32", "bf16"] if flags == BF16_CPU_FLAGS else ["fp32"]
    assert bench_train.main(["--json", *FLAGS]) == 0
    result = json.loads(capsys.readouterr().out)
    names = "machine settings contenders ratio_to_best_peer ratio_to_nn_transformer_fp32 lightning"
    assert set(result) == {*names.split(), "losses", "left_out", "rounds", "steps", "interrupted"}
    assert (result["rounds"], result["steps"], result["interrupted"]) == (3, 3, False)
    assert result["settings"] == vars(TINY_SETTINGS)
    rows = result["contenders"]
    assert [(row["name"].split()[0], row["precision"]) for row in rows] == [
        (name, p) for name in ("minitrans", "nn.Transformer", "M2M100") for p in precisions
    ]
    for row in rows:
        assert set(row) == {"name", "precision", "parameters", "ms", "tokens_per_second", "ratio", "peak_mb"}
        assert min(row["ms"], row["tokens_per_second"], row["ratio"]) > 0
    assert len({row["parameters"] for row in rows}) == 1
    assert result["ratio_to_best_peer"] == min(row["ratio"] for row in rows[len(precisions) :])
    assert result["ratio_to_nn_transformer_fp32"] == rows[len(precisions)]["ratio"]
    assert result["lightning"]["efficiency"] > 0
    assert set(result["machine"]) == {"processor", "flags", "threads", "torch", "transformers"}
    assert set(result["losses"][0]) == {"step", "plain", *precisions}
    left_out = [] if flags == BF16_CPU_FLAGS else ["minitrans bf16", "nn.Transformer bf16", "M2M100 bf16"]
    assert [one["name"] for one in result["left_out"]] == left_out
    bench_train.print_comparison(result)
    printed = capsys.readouterr().out
    assert "plain formulas" in printed
    assert ("does not multiply bfloat16" in printed) == (flags == NO_BF16_CPU_FLAGS)


@needs_transformers
def test_an_interrupt_prints_results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "| nn.Transformer fp32 |" in interrupted_output("peak_memory", bench_train, FLAGS, monkeypatch, capsys)
    nothing = interrupted_output("make_workload", bench_train, FLAGS, monkeypatch, capsys)
    assert nothing == "interrupted before anything was measured\n"


@needs_transformers
def test_the_sweep_is_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_train, "peak_memory", lambda contender, workload: 123.0)
    monkeypatch.setattr(bench_train, "SWEEP_VALUES", {"d_model": (8,), "mean_length": (40,)})
    assert bench_train.main(["--sweep", *FLAGS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("|")][2:] == ["d model 8", "mean length 40"]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        pytest.param(["--d-model", "15"], "model.d_model (15) is not divisible", marks=needs_transformers),
        pytest.param(["--data", "no/such/folder", "--source", "en"], "empty", marks=needs_transformers),
        pytest.param(["--mean-length", "0"], "--mean-length must be at least 1", marks=needs_transformers),
        (["--pairs", "0"], "argument --pairs: it must be a whole number from 1 to 2147483647, not 0"),
        (["--minutes=-1"], "argument --minutes: it must be a number from 0"),
        (["--no-such-flag"], "--no-such-flag"),
        pytest.param(["--sweep", "--data", "x"], "give it without --data", marks=needs_transformers),
    ],
)
def test_bad_usage_ends_in_one_line(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint in refusal_line(bench_train, [*FLAGS, *flags], capsys)
