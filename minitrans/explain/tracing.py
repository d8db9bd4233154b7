"""What an explanation of a translation shows, as numbers.

Shapes: `S` source length, `T` target length, `L` layers, `H` heads, `V` vocabulary. All results are on the CPU.
"""

import logging
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import Module

from minitrans.errors import UserError
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.decoding import likeliest_tokens, token_log_probs
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.translate.bundle import Bundle
from minitrans.translate.translator import AttentionWeights, Translation, Translator, stack_layers, traced_full_pass

ATTENTION_KINDS = "encoder", "decoder", "cross"
N_PADDING_PIECES = 2  # pieces of padding after the source, as if a longer sentence stood in the same batch
N_LIKELIEST = 5

logger = logging.getLogger("minitrans")


class TracedStep(NamedTuple):
    """One step of a decode from the cache, next to the same row of the full masked pass.

    Attributes:
        top_pieces: The likeliest next pieces and their log-probabilities, the best first.
        taken_logp: Log-probability of the piece that was taken.
        n_keys_read: How many keys, and as many values, each layer's self-attention read.
        n_keys_held_before: How many of them each layer's cache held before the step.
        source_kept: Whether keys and values of the source are still, bit for bit, what they were at first.
        logit_difference: Largest difference between cache and full pass over the logits.
        weight_difference: The same over the decoder's attention weights, of both kinds, in all layers and heads; the
            translation's `attention` has those of the full pass.
    """

    top_pieces: list[tuple[str, float]]
    taken_logp: float
    n_keys_read: int
    n_keys_held_before: int
    source_kept: bool
    logit_difference: float
    weight_difference: float


@dataclass(frozen=True)
class TracedTranslation:
    """A text, its translation, and how that came about.

    Attributes:
        text: The source.
        translation: What `Translator.translations` gives, its attention included.
        config: The model's sizes.
        languages: The source's and the translation's.
        log_prob: Log-probability of the target pieces, in nats.
        n_padded: Pieces of padding that steps and full pass had after the source.
        max_forbidden_weight: Largest weight of a key that a mask forbids, the future or padding.
        stepwise_decoder: (L, H, T, T) self-attention's weights, step by step from the cache; 0 for later keys.
        stepwise_cross: (L, H, T, S) cross-attention's weights, likewise.
        steps: One for each of the T target pieces.
        head_ablation_log_probs: For each kind (L, H): log-probability of the same translation with a head switched off.
    """

    text: str
    translation: Translation
    config: TransformerConfig
    languages: tuple[str, str]
    log_prob: float
    n_padded: int
    max_forbidden_weight: float
    stepwise_decoder: Tensor
    stepwise_cross: Tensor
    steps: list[TracedStep]
    head_ablation_log_probs: dict[str, Tensor]

    @property
    def attention(self) -> AttentionWeights:
        """The translation's attention weights."""
        return cast(AttentionWeights, self.translation.attention)


def translate_sentences(
    translator: Translator, texts: Sequence[str], limit: int | None = None
) -> Iterator[tuple[str, Translation]]:
    """Translate the texts' sentences greedily, at most `limit`: each sentence, and its translation with attention.

    A sentence without words is left out; raises UserError where none is left.
    """
    n_found = 0
    for number, sentence in ((n, each) for n, text in enumerate(texts, 1) for each in translator.to_sentences(text)):
        if n_found == limit:
            break
        (translation,) = translator.translations([sentence], attention=True, first_line=number, split=False)
        if translation.attention is None:
            logger.info("text %d: a sentence without words is left out", number)
        else:
            n_found += 1
            yield sentence, translation
    if not n_found:
        raise UserError("there is no text to explain; give one with words")


@torch.no_grad()
def trace_translation(bundle: Bundle, text: str, translation: Translation) -> TracedTranslation:
    """Trace how a sentence got its translation, which has to hold its attention."""
    model, tokenizer, attention = bundle.model, bundle.tokenizer, cast(AttentionWeights, translation.attention)
    source, target = attention.source_ids, attention.target_ids
    shown = dict(zip((*source, *target), (*attention.source, *attention.target), strict=True))
    padding = [tokenizer.pad_id] * min(N_PADDING_PIECES, model.config.max_len - len(source))
    sides = source + padding, target[:-1], target[1:]
    src_ids, tgt_in, tgt_out = (torch.tensor([ids], device=model.positions.device) for ids in sides)

    memory, src_mask, hidden, kinds = traced_full_pass(model, src_ids, tgt_in)
    logits = model.logits(hidden)  # (1, T, V)
    among, within, across = (stack_layers(kind)[:, 0] for kind in kinds)
    n, length = len(source), tgt_in.size(1)

    cache = model.init_cache(memory, src_mask, length)
    at_first = [(layer.source.k.clone(), layer.source.v.clone()) for layer in cache.layers]
    stepwise_decoder, stepwise_cross = torch.zeros_like(within), torch.zeros_like(across)
    steps = []
    for t in range(length):
        held = cache.length
        hidden, traces = model.run_decoder(tgt_in[:, t : t + 1], None, src_mask, cache, need_weights=True)
        of_step = model.logits(hidden)  # (1, 1, V)
        of_self = stack_layers(trace.self_weights for trace in traces)[:, 0, :, 0]
        stepwise_decoder[:, :, t, : of_self.size(-1)] = of_self
        stepwise_cross[:, :, t] = stack_layers(trace.cross_weights for trace in traces)[:, 0, :, 0]
        log_p, ids = likeliest_tokens(of_step[:, 0], N_LIKELIEST, model.config)
        of_decoder = stepwise_decoder[:, :, t] - attention.decoder[:, :, t]
        of_cross = stepwise_cross[:, :, t, :n] - attention.cross[:, :, t]
        steps.append(
            TracedStep(
                top_pieces=[
                    (shown.get(id_) or tokenizer.pieces[id_], p)
                    for id_, p in zip(ids[0].tolist(), log_p[0].tolist(), strict=True)
                ],
                taken_logp=float(token_log_probs(of_step, tgt_out[:, t : t + 1])),
                n_keys_read=of_self.size(-1),
                n_keys_held_before=held,
                source_kept=all(
                    torch.equal(layer.source.k, k) and torch.equal(layer.source.v, v)
                    for layer, (k, v) in zip(cache.layers, at_first, strict=True)
                ),
                logit_difference=_largest_absolute_value(of_step[:, 0] - logits[:, t]),
                weight_difference=_largest_absolute_value(of_decoder, of_cross),
            )
        )
    forbidden = among[..., :n, n:], across[..., n:], within.triu(1), stepwise_cross[..., n:]
    return TracedTranslation(
        text=text,
        translation=translation,
        config=model.config,
        languages=(bundle.source, bundle.target),
        log_prob=float(token_log_probs(logits, tgt_out).sum()),
        n_padded=len(padding),
        max_forbidden_weight=_largest_absolute_value(*forbidden),
        stepwise_decoder=stepwise_decoder,
        stepwise_cross=stepwise_cross[..., :n],
        steps=steps,
        head_ablation_log_probs=_head_ablation_log_probs(model, src_ids, tgt_in, tgt_out),
    )


def _head_ablation_log_probs(model: Transformer, src_ids: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> dict[str, Tensor]:
    """For each kind (L, H): log-probability of int64 (1, T) `tgt_out` with one head switched off."""
    model = deepcopy(model)  # it gets hooks, and others may be translating with it
    encoder, decoder = cast(list[EncoderLayer], model.encoder.layers), cast(list[DecoderLayer], model.decoder.layers)
    of_kind: dict[str, list[MultiHeadAttention]] = {
        "encoder": [layer.self_attn for layer in encoder],
        "decoder": [layer.self_attn for layer in decoder],
        "cross": [layer.cross_attn for layer in decoder],
    }
    n = model.config.n_heads
    src_ids, tgt_in, tgt_out = (ids.expand(n, -1) for ids in (src_ids, tgt_in, tgt_out))  # row h: head h is off
    off = torch.eye(n, dtype=torch.bool, device=src_ids.device)[:, None, :, None]

    def switch_off(_: Module, inputs: tuple[Tensor]) -> Tensor:
        return inputs[0].unflatten(-1, (n, -1)).masked_fill(off, 0.0).flatten(-2)

    def log_probs(attention: MultiHeadAttention) -> Tensor:
        handle = attention.w_o.register_forward_pre_hook(switch_off)
        totals = token_log_probs(model(src_ids, tgt_in), tgt_out).sum(1)
        handle.remove()
        return totals.cpu()

    return {kind: torch.stack([log_probs(each) for each in attentions]) for kind, attentions in of_kind.items()}


def _largest_absolute_value(*tensors: Tensor) -> float:
    """The largest absolute value in all of them, NaN if one is NaN; 0 if they are empty."""
    return float(torch.cat([torch.zeros(1, device="cpu"), *(x.abs().flatten().cpu() for x in tensors)]).max())
