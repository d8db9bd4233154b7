"""The LightningModule: one training step, one validation step, the optimizer and its schedule."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from minitrans.data.batching import Batch
from minitrans.data.process_group import all_gather, n_processes, rank, sum_over_processes
from minitrans.model.loss import BatchLossFn
from minitrans.model.transformer import Transformer
from minitrans.training.config import TrainingConfig


def warmup_cosine(step: int, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak learning rate at an optimizer step: up linearly, then down to 0 along a half cosine."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


class TranslationModule(LightningModule):
    """Trains a Transformer with teacher forcing: the whole target goes in at once, and each position predicts the next.

    Attributes:
        model: The model that is trained.
        tgt_tokens: Target tokens, padding excluded, that the training steps of all processes have seen since this one
            started.
        step_loss: Loss of the last training step's batch, in nats a token, averaged as in `training_step`.
    """

    step_loss: Tensor

    def __init__(self, model: Transformer, config: TrainingConfig, batch_loss: BatchLossFn) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.batch_loss = batch_loss
        self.tgt_tokens = 0

    def setup(self, stage: str) -> None:
        """Let each of several processes drop different elements: so far their random numbers are the same."""
        if n_processes() > 1:
            torch.manual_seed(int(torch.randint(2**62, (n_processes(),))[rank()]))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The smoothed loss in nats a token, averaged over the real target tokens of the batches of all processes.

        Returns:
            This process's share of that loss, times the number of processes, because DDP averages their gradients.
        """
        scaled_loss, loss, n_tokens = self._scaled_and_mean_loss(batch, self.config.label_smoothing)
        self.tgt_tokens += n_tokens
        self.step_loss = loss.detach()  # not by `log`, which takes longer than an update of the weights
        return scaled_loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the plain cross entropy in nats a token over the whole split."""
        _, loss, n_tokens = self._scaled_and_mean_loss(batch, smoothing=0.0)
        self.log("val_loss", loss, batch_size=n_tokens, sync_dist=True)  # the same number in all processes

    def _scaled_and_mean_loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor, int]:
        """The loss to minimise (see `training_step`), its mean over all processes' real tokens, and their number."""
        pad_id = self.model.config.pad_id
        n_tokens = int((batch.tgt_out != pad_id).sum())
        loss = self.batch_loss(batch.src_ids, batch.tgt_in, batch.tgt_out, smoothing)
        if n_processes() == 1:
            loss = loss / n_tokens
            return loss, loss, n_tokens
        total, of_all = sum_over_processes([loss.item(), n_tokens], loss.device)
        return loss / (of_all / n_processes()), loss.new_tensor(total / of_all), int(of_all)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW with the warm-up and cosine schedule, moved at every optimizer step."""
        config = self.config
        optimizer = torch.optim.AdamW(
            self.parameters(),
            lr=config.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=config.weight_decay,
            fused=None if self.trainer.precision == "16-mixed" else True,  # fused unscales gradients too late to clip
        )
        total_steps = int(self.trainer.estimated_stepping_batches)
        scheduler = LambdaLR(optimizer, lambda step: warmup_cosine(step, config.warmup_steps, total_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the norm of the whole gradient. Lightning's own method refuses fused optimizers under autocast."""
        if gradient_clip_val is not None:
            torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], gradient_clip_val)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the state of the random numbers of each process, so that a resumed run drops the same elements."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        checkpoint["rng_states"] = all_gather({"torch": torch.get_rng_state(), "cuda": cuda})  # nothing else draws any

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state of the random numbers."""
        state = checkpoint["rng_states"][rank()]
        torch.set_rng_state(state["torch"])
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])  # fewer GPUs may be seen now
