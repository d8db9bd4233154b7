"""The loss of a training step is that of the plain formula in any precision, and few logits exist at a time."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ATOL, PAD, needs_compiled, random_model, worst_deviation
from fake_processes import run_as_processes
from loss_cases import BATCH_IDS, make_loss
from torch import Tensor

from minitrans.data.batching import Batch
from minitrans.data.process_group import sum_over_processes
from minitrans.model.loss import CHUNK_ROWS, label_smoothed_cross_entropy
from minitrans.model.transformer import Transformer
from minitrans.training.config import TrainingConfig
from minitrans.training.module import TranslationModule
from minitrans.translate.backend import CompiledMode

BATCH = Batch(*BATCH_IDS)
N_TOKENS = 12
with_and_without_compiled = pytest.mark.parametrize("way", [pytest.param("require", marks=needs_compiled), "off"])


class LogRecordingModule(TranslationModule):
    """Records what is logged, because there is no Trainer."""

    def __init__(self, model: Transformer, way: CompiledMode) -> None:
        super().__init__(model, TrainingConfig(label_smoothing=0.3), make_loss(model, way))
        self.logged: dict[str, Tensor] = {}

    def log(self, name: str, value: Any, *arguments: Any, **settings: Any) -> None:
        self.logged[name] = value


def plain_loss(model: Transformer, smoothing: float) -> Tensor:
    return label_smoothed_cross_entropy(model(BATCH.src_ids, BATCH.tgt_in), BATCH.tgt_out, PAD, smoothing) / N_TOKENS


@with_and_without_compiled
def test_a_step_minimises_the_smoothed_loss_per_token(way: CompiledMode) -> None:
    module = LogRecordingModule(random_model(0), way)
    loss, want = module.training_step(BATCH, 0), plain_loss(module.model, 0.3)
    assert loss.item() == pytest.approx(want.item(), abs=ATOL)
    assert (module.step_loss, module.step_loss.requires_grad, module.tgt_tokens) == (loss, False, N_TOKENS)
    parameters = list(module.parameters())
    assert worst_deviation(*(torch.autograd.grad(x, parameters) for x in (loss, want))) <= ATOL
    module.training_step(BATCH, 1)
    assert module.tgt_tokens == 2 * N_TOKENS


def test_the_mean_loss_is_over_the_tokens_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has five tokens, whose loss is 70: DDP averages the gradients of the two shares."""

    def sum_up(numbers: list[float], device: torch.device) -> list[float]:
        return [mine + others for mine, others in zip(numbers, (70.0, 5.0), strict=True)]

    module = LogRecordingModule(random_model(0), "off")
    total = plain_loss(module.model, 0.3).item() * N_TOKENS
    monkeypatch.setattr("minitrans.training.module.n_processes", lambda: 2)
    monkeypatch.setattr("minitrans.training.module.sum_over_processes", sum_up)
    scaled_loss = module.training_step(BATCH, 0)
    assert scaled_loss.item() / 2 == pytest.approx(total / (N_TOKENS + 5))
    assert module.step_loss.item() == pytest.approx((total + 70) / (N_TOKENS + 5))
    assert module.tgt_tokens == N_TOKENS + 5
    assert torch.autograd.grad(scaled_loss, list(module.parameters()))


def test_the_numbers_of_several_processes_are_added_up_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 2.0**25 + 1  # not exact in float32
    assert run_as_processes(3, lambda: sum_over_processes([many, 0.5], torch.device("cpu"))) == [[3 * many, 1.5]] * 3
    with pytest.raises(NotImplementedError, match="meta tensor"):  # summed on the given device, which holds no data
        run_as_processes(3, lambda: sum_over_processes([many], torch.device("meta")))
    # A PyTorch built without distributed training has no other function.
    monkeypatch.setattr("minitrans.data.process_group.dist", SimpleNamespace(is_available=lambda: False))
    assert sum_over_processes([many], torch.device("cpu")) == [many]


@pytest.mark.parametrize("n", [2, 200])
def test_each_process_draws_its_own_random_numbers_and_resumes_with_them(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, states, seeds = LogRecordingModule(random_model(0), "off"), list[dict[str, Any]](), list[int]()
    monkeypatch.setattr("minitrans.training.module.n_processes", lambda: n)
    cuda_states = list[list[str]]()  # saved with two GPUs, resumed with one
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.set_rng_state_all", cuda_states.append)
    for rank in (*range(n), *range(n)):
        monkeypatch.setattr("minitrans.training.module.rank", lambda rank=rank: rank)
        torch.manual_seed(1)
        module.setup("fit")
        if len(states) >= n:  # resumed
            module.on_load_checkpoint({"rng_states": [state | {"cuda": ["a", "b"]} for state in states[:n]]})
        saved: dict[str, Any] = {}
        module.on_save_checkpoint(saved)
        states += saved["rng_states"]
        seeds.append(torch.initial_seed())
    assert len({*seeds[:n]}) == n
    assert seeds[n:] == seeds[:n]
    assert cuda_states == [["a"]] * n


@with_and_without_compiled
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_under_autocast_loss_and_gradients_stay_in_float32(tie_embeddings: bool, way: CompiledMode) -> None:
    module = LogRecordingModule(random_model(0, tie_embeddings=tie_embeddings).float(), way)
    want = plain_loss(module.model, 0.3)
    with torch.autocast("cpu", torch.bfloat16):
        loss = module.training_step(BATCH, 0)
        with torch.no_grad():
            module.validation_step(BATCH, 0)
    assert loss.dtype == module.logged["val_loss"].dtype == torch.float32
    assert loss.item() == pytest.approx(want.item(), rel=0.02)
    for gradient in torch.autograd.grad(loss, list(module.parameters())):
        assert gradient.dtype == torch.float32
        assert gradient.any()


def test_logits_are_made_for_a_few_rows_at_a_time() -> None:
    module, made = LogRecordingModule(random_model(0), "off"), []
    module.model.output.register_forward_hook(lambda _, inputs, logits: made.append(len(logits)))
    module.training_step(BATCH, 0)
    assert made == [CHUNK_ROWS]
