"""Faults of layers, embeddings, training, and what is saved."""

from typing import Any

import torch
from torch import Tensor

from minitrans.data.batching import Batch, TokenBatchSampler, collate
from minitrans.model.dropout import Dropout, dropout
from minitrans.model.layers import EncoderLayer, FeedForward, LayerTrace
from minitrans.model.loss import ROWS, linear_cross_entropy
from minitrans.model.transformer import Decoder, Transformer
from minitrans.verify.sabotage import Patch, sabotage


@sabotage("layer.post-norm", "The encoder normalises after each sub-layer, and the final norm comes on top.")
def layer_post_norm(patch: Patch) -> None:
    def post_norm(self: EncoderLayer, x: Tensor, src_mask: Tensor, need_weights: bool) -> LayerTrace:
        attended, weights = self.self_attn(x, x, x, src_mask, need_weights)
        x = self.self_norm(x + attended)
        return LayerTrace(self.ff_norm(x + self.ff(x)), weights, None)

    patch(EncoderLayer, "forward", post_norm)


@sabotage("layer.no-residual", "The feed-forward network of the encoder replaces the stream instead of adding to it.")
def layer_no_residual(patch: Patch) -> None:
    def no_residual(self: EncoderLayer, x: Tensor, src_mask: Tensor, need_weights: bool) -> LayerTrace:
        h = self.self_norm(x)
        attended, weights = self.self_attn(h, h, h, src_mask, need_weights)
        return LayerTrace(self.ff(self.ff_norm(x + attended)), weights, None)

    patch(EncoderLayer, "forward", no_residual)


@sabotage("layer.no-relu", "The feed-forward network is linear.")
def layer_no_relu(patch: Patch) -> None:
    patch(FeedForward, "forward", lambda self, x: self.w_2(self.w_1(x)))


@sabotage("embedding.unscaled", "Token vectors are not multiplied by sqrt(d_model).")
def embedding_unscaled(patch: Patch) -> None:
    def unscaled(self: Transformer, embedding: torch.nn.Embedding, ids: Tensor, offset: int) -> Tensor:
        return embedding(ids) + self.positions[offset : offset + ids.size(1)]

    patch(Transformer, "embed", unscaled)


@sabotage("dropout.always", "Dropout acts in eval mode too.")
def dropout_always(patch: Patch) -> None:
    patch(Dropout, "forward", lambda self, x: dropout(x, self.p, training=True))


@sabotage("gradient.detached", "No gradient flows from the decoder to the encoder.")
def gradient_detached(patch: Patch) -> None:
    forward = Decoder.forward

    def detached(self: Decoder, x: Tensor, memory: Tensor | None, *rest: Any) -> tuple[Tensor, list[LayerTrace]]:
        return forward(self, x, None if memory is None else memory.detach(), *rest)

    patch(Decoder, "forward", detached)


@sabotage("state.incomplete", "The norms are left out when weights are loaded.")
def state_incomplete(patch: Patch) -> None:
    load = Transformer.load_state_dict

    def without_norms(self: Transformer, state: dict[str, Tensor]) -> None:
        load(self, {name: tensor for name, tensor in state.items() if "norm" not in name}, strict=False)

    patch(Transformer, "load_state_dict", without_norms)


@sabotage("loss.padding", "The loss counts padding.")
def loss_padding(patch: Patch) -> None:
    def counting(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
        return linear_cross_entropy(hidden, weight, tgt_out, -1, smoothing)

    patch.everywhere(linear_cross_entropy, counting)


@sabotage("loss.first-chunk", "The loss stops after the first chunk of positions.")
def loss_first_chunk(patch: Patch) -> None:
    def first(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
        here = (tgt_out != pad_id).flatten().cumsum(0).view_as(tgt_out) <= ROWS
        return linear_cross_entropy(hidden, weight, tgt_out.where(here, pad_id), pad_id, smoothing)

    patch.everywhere(linear_cross_entropy, first)


@sabotage("loss.sharp-gradient", "The loss is smoothed, its gradient is not.")
def loss_sharp_gradient(patch: Patch) -> None:
    def sharp(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
        smoothed, plain = (linear_cross_entropy(hidden, weight, tgt_out, pad_id, e) for e in (smoothing, 0.0))
        return plain + (smoothed - plain).detach()

    patch.everywhere(linear_cross_entropy, sharp)


@sabotage("target.unshifted", "The decoder reads the very tokens that it has to predict: the target is not shifted.")
def target_unshifted(patch: Patch) -> None:
    def unshifted(*arguments: object, **ids: int) -> Batch:
        batch = collate(*arguments, **ids)  # type: ignore[arg-type]
        return batch._replace(tgt_in=batch.tgt_out)

    patch.everywhere(collate, unshifted)


def resume_at(patch: Patch, shift: int) -> None:
    """Go on `shift` batches beside the saved place."""
    load = TokenBatchSampler.load_state_dict

    def beside(self: TokenBatchSampler, state: dict[str, int]) -> None:
        load(self, {**state, "position": (state["position"] + shift) % len(self)})

    patch(TokenBatchSampler, "load_state_dict", beside)


@sabotage("batches.replayed", "A resumed run replays the last batch.")
def batches_replayed(patch: Patch) -> None:
    resume_at(patch, -1)


@sabotage("batches.skipped", "A resumed run skips a batch.")
def batches_skipped(patch: Patch) -> None:
    resume_at(patch, 1)


@sabotage("batches.restarted", "A resumed run starts its epoch again.")
def batches_restarted(patch: Patch) -> None:
    load = TokenBatchSampler.load_state_dict
    patch(TokenBatchSampler, "load_state_dict", lambda self, state: load(self, {**state, "position": 0}))
