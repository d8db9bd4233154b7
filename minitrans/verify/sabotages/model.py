"""Faults of layers, embeddings, training, and what is saved."""

from typing import Any

import torch
from torch import Tensor

from minitrans.data.batching import Batch, TokenBatchSampler, collate
from minitrans.model.dropout import Dropout, dropout
from minitrans.model.layers import EncoderLayer, FeedForward, LayerTrace
from minitrans.model.loss import ROWS, linear_cross_entropy
from minitrans.model.transformer import Decoder, Transformer
from minitrans.verify.sabotage import Sabotage, into

SABOTAGES: list[Sabotage] = []
sabotage = into(SABOTAGES)

# The right ones, which wrong ones call.
decode, load_weights, resume = Decoder.forward, Transformer.load_state_dict, TokenBatchSampler.load_state_dict


@sabotage(
    "layer.post-norm",
    "The encoder normalises after each sub-layer, and the final norm comes on top.",
    EncoderLayer,
    "forward",
)
def layer_post_norm(self: EncoderLayer, x: Tensor, src_mask: Tensor, need_weights: bool) -> LayerTrace:
    attended, weights = self.self_attn(x, x, x, src_mask, need_weights)
    x = self.self_norm(x + attended)
    return LayerTrace(self.ff_norm(x + self.ff(x)), weights, None)


@sabotage(
    "layer.no-residual",
    "The feed-forward network of the encoder replaces the stream instead of adding to it.",
    EncoderLayer,
    "forward",
)
def layer_no_residual(self: EncoderLayer, x: Tensor, src_mask: Tensor, need_weights: bool) -> LayerTrace:
    h = self.self_norm(x)
    attended, weights = self.self_attn(h, h, h, src_mask, need_weights)
    return LayerTrace(self.ff(self.ff_norm(x + attended)), weights, None)


@sabotage("layer.no-relu", "The feed-forward network is linear.", FeedForward, "forward")
def layer_no_relu(self: FeedForward, x: Tensor) -> Tensor:
    return self.w_2(self.w_1(x))


@sabotage("embedding.unscaled", "Token vectors are not multiplied by sqrt(d_model).", Transformer, "embed")
def embedding_unscaled(self: Transformer, embedding: torch.nn.Embedding, ids: Tensor, offset: int) -> Tensor:
    return embedding(ids) + self.positions[offset : offset + ids.size(1)]


@sabotage("dropout.always", "Dropout acts in eval mode too.", Dropout, "forward")
def dropout_always(self: Dropout, x: Tensor) -> Tensor:
    return dropout(x, self.p, training=True)


@sabotage("gradient.detached", "No gradient flows from the decoder to the encoder.", Decoder, "forward")
def gradient_detached(self: Decoder, x: Tensor, memory: Tensor | None, *rest: Any) -> tuple[Tensor, list[LayerTrace]]:
    return decode(self, x, None if memory is None else memory.detach(), *rest)


@sabotage("state.incomplete", "The norms are left out when weights are loaded.", Transformer, "load_state_dict")
def state_incomplete(self: Transformer, state: dict[str, Tensor]) -> None:
    load_weights(self, {name: tensor for name, tensor in state.items() if "norm" not in name}, strict=False)


@sabotage("loss.padding", "The loss counts padding.", linear_cross_entropy)
def loss_padding(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    return linear_cross_entropy(hidden, weight, tgt_out, -1, smoothing)


@sabotage("loss.first-chunk", "The loss stops after the first chunk of positions.", linear_cross_entropy)
def loss_first_chunk(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    here = (tgt_out != pad_id).flatten().cumsum(0).view_as(tgt_out) <= ROWS
    return linear_cross_entropy(hidden, weight, tgt_out.where(here, pad_id), pad_id, smoothing)


@sabotage("loss.sharp-gradient", "The loss is smoothed, its gradient is not.", linear_cross_entropy)
def loss_sharp_gradient(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    smoothed, plain = (linear_cross_entropy(hidden, weight, tgt_out, pad_id, e) for e in (smoothing, 0.0))
    return plain + (smoothed - plain).detach()


@sabotage(
    "target.unshifted", "The decoder reads the very tokens that it has to predict: the target is not shifted.", collate
)
def target_unshifted(*arguments: Any, **ids: Any) -> Batch:
    batch = collate(*arguments, **ids)
    return batch._replace(tgt_in=batch.tgt_out)


def resume_beside(sampler: TokenBatchSampler, state: dict[str, int], shift: int) -> None:
    """Go on `shift` batches beside the saved place."""
    resume(sampler, {**state, "position": (state["position"] + shift) % len(sampler)})


@sabotage("batches.replayed", "A resumed run replays the last batch.", TokenBatchSampler, "load_state_dict")
def batches_replayed(self: TokenBatchSampler, state: dict[str, int]) -> None:
    resume_beside(self, state, -1)


@sabotage("batches.skipped", "A resumed run skips a batch.", TokenBatchSampler, "load_state_dict")
def batches_skipped(self: TokenBatchSampler, state: dict[str, int]) -> None:
    resume_beside(self, state, 1)


@sabotage("batches.restarted", "A resumed run starts its epoch again.", TokenBatchSampler, "load_state_dict")
def batches_restarted(self: TokenBatchSampler, state: dict[str, int]) -> None:
    resume(self, {**state, "position": 0})
