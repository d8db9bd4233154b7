"""Many heads: one projection cut into pieces, an attention for each, and a matrix that mixes the answers."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.cachecheck.measurement import MIN_FAULT, deviation, new_check_group, worst
from minitrans.model import reference
from minitrans.model.attention import (
    MultiHeadAttention,
    attention_scores,
    attention_weights,
    scaled_dot_product_attention,
)
from minitrans.model.masks import causal_mask, padding_mask
from minitrans.model.transformer import Transformer
from minitrans.verify.model_and_pairs import ModelAndPairs
from minitrans.verify.oracles import numpy_weights, torch_multi_head

claim, CHECKS = new_check_group("Many heads")


def attention_modules(model: Transformer) -> list[MultiHeadAttention]:
    """Every attention in the model."""
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


def model_or_random_stand_in(model: Transformer) -> Transformer:
    """The model, or one with random weights of the same sizes where its heads do not fill d_model as PyTorch's do."""
    config = model.config
    if config.n_heads * config.head_size == config.d_model:
        return model
    n_heads = math.gcd(config.d_model, config.n_heads)
    return Transformer(replace(config, n_heads=n_heads, d_head=None)).to(model.output.weight.dtype).eval()


@claim("C9", "packed q, k and v of every attention, against products with slices; PyTorch's weights read and written")
def packed_matches_separate(subject: ModelAndPairs) -> float:
    """W_q, W_k and W_v packed in one matrix give what three products give; the layout is PyTorch's in_proj_weight."""
    deviations = []
    for attention in attention_modules(subject.model):
        x = subject.randn(2, 5, attention.w_o.out_features, seed=9)
        size = attention.n_heads * attention.d_head
        for i, packed in enumerate(attention.project(x, 0, 3)):
            rows = slice(i * size, (i + 1) * size)
            separate = x @ attention.w_qkv.weight[rows].T + attention.w_qkv.bias[rows]
            for h in range(attention.n_heads):
                head = separate[:, :, h * attention.d_head : (h + 1) * attention.d_head]
                deviations.append(deviation(packed[:, h], head))
        (q,), (k, v) = attention.project(x, 0, 1), attention.project(x, 1, 3)
        deviations += [deviation(a, b) for a, b in zip((q, k, v), attention.project(x, 0, 3), strict=True)]
    for attention in attention_modules(model_or_random_stand_in(subject.model)):
        x = subject.randn(2, 5, attention.w_o.out_features, seed=9)
        torch_module = torch_multi_head(attention)  # written
        reread = MultiHeadAttention(attention.w_o.out_features, attention.n_heads).to(subject.dtype).eval()
        reread.w_qkv.weight.copy_(torch_module.in_proj_weight)
        reread.w_qkv.bias.copy_(torch_module.in_proj_bias)
        reread.w_o.load_state_dict(torch_module.out_proj.state_dict())
        deviations += [deviation(a, torch_module(x, x, x)[0]) for a in (attention(x, x, x)[0], reread(x, x, x)[0])]
    return worst(deviations)


# The worked example: X = 1..12 as (3, 4), two heads of two, whose matrices are (4, 2) each. All numbers are whole.
X = [[1.0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
W_Q1 = [[1.0, 0], [0, 1], [1, 0], [0, 1]]
W_Q2 = [[2.0, 1], [1, 2], [2, 1], [1, 2]]
Q1 = [[4.0, 6], [12, 14], [20, 22]]
Q2 = [[14.0, 16], [38, 40], [62, 64]]  # some texts print 10, 30, 50 in the first column, which is wrong
SCORES1 = [[52.0, 132, 212], [132, 340, 548], [212, 548, 884]]  # Q1 K1^T, with W_k = W_q
SCORES2 = [[452.0, 1172, 1892], [1172, 3044, 4916], [1892, 4916, 7940]]
UNSPLIT_SCORES = [[504.0, 1304, 2104], [1304, 3384, 5464], [2104, 5464, 8824]]  # Q K^T before the heads are split


def worked_example_queries_keys(subject: ModelAndPairs) -> tuple[Tensor, Tensor]:
    """Queries and keys (1, 2, 3, 2) of the worked example: X projected by an attention of two heads with W_k = W_q."""
    attention = MultiHeadAttention(d_model=4, n_heads=2).to(subject.dtype).eval()
    w_q = torch.cat([torch.tensor(W_Q1), torch.tensor(W_Q2)], dim=1)  # (d_in, H*Dh): a head's columns side by side
    attention.w_qkv.weight[:8] = torch.cat([w_q.T, w_q.T]).to(subject.dtype)
    q, k, _ = attention.project(torch.tensor([X], dtype=subject.dtype), 0, 3)
    return q, k


@claim("C10", "Q_1 and Q_2 of the worked example, against 4 6 12 14 20 22 and 14 16 38 40 62 64", tolerance=0.0)
def joint_projection_matches_heads(subject: ModelAndPairs) -> float:
    """One (d_in, h*d_head) matrix, its product split by columns, equals h separate matrices."""
    # The numbers are whole and small, so they have to be exact in every dtype.
    q, _ = worked_example_queries_keys(subject)
    return deviation(q[0], torch.tensor([Q1, Q2], dtype=torch.float64))


@claim(
    "C11",
    "scores of the worked example times sqrt(d_head), against 52 132 212 ... and 452 1172 1892 ...",
    tolerance=1e-11,
)
def head_scores_match(subject: ModelAndPairs) -> float:
    """Each head has its own scores: Q_1 K_1^T and Q_2 K_2^T."""
    q, k = worked_example_queries_keys(subject)
    want = torch.tensor([SCORES1, SCORES2], dtype=torch.float64)
    return deviation(attention_scores(q, k)[0] * math.sqrt(2), want)


@claim(
    "C12",
    "sum of the heads' scores, against 504 1304 2104 ...; handed to each head, that product must not pass",
    tolerance=1e-11,
)
def heads_are_split_first(subject: ModelAndPairs) -> float:
    """Heads are split before the product: unsplit, Q K^T is the sum over the heads and cannot be split."""
    q, k = worked_example_queries_keys(subject)
    scores = attention_scores(q, k)
    unsplit = scores.sum(1, keepdim=True).expand_as(scores)
    if deviation(unsplit, scores) < MIN_FAULT:
        return math.inf
    return deviation(scores[0].sum(0) * math.sqrt(2), torch.tensor(UNSPLIT_SCORES, dtype=torch.float64))


@claim(
    "C13",
    "parameters of W_q, W_k, W_v and W_o for 1, 2, 4 and 8 heads that share a width of 128, less 8192",
    tolerance=0.0,
    lower=(),
)
def n_parameters_ignores_n_heads(subject: ModelAndPairs) -> float:
    """The number of parameters does not depend on the number of heads: 64 x 8 x 16 = 8192 for each projection."""
    counts = []
    for n_heads in (1, 2, 4, 8):
        attention = MultiHeadAttention(d_model=64, n_heads=n_heads, d_head=128 // n_heads)
        counts += [block.numel() for block in (*attention.w_qkv.weight.chunk(3), attention.w_o.weight)]
    return worst([abs(count - 8192) for count in counts])


@claim("C7", "weights of 3 heads of 4, against softmax(q k^T / sqrt(d_head)) head by head; sqrt(d_model) must not pass")
def scaled_by_the_heads_size(subject: ModelAndPairs) -> float:
    """The divisor is the square root of the head's size, not of the model's."""
    q, k = subject.randn(1, 3, 5, 4, seed=11), subject.randn(1, 3, 7, 4, seed=12)
    want = torch.zeros(1, 3, 5, 7, dtype=torch.float64)
    for h, i in np.ndindex(3, 5):
        keys = k[0, h].double().numpy()
        want[0, h, i] = torch.from_numpy(reference.attend_one_query(q[0, h, i].double().numpy(), keys, values=keys)[1])
    scaled_by_d_model = torch.softmax(q @ k.mT / math.sqrt(3 * 4), -1)
    if deviation(scaled_by_d_model, want) < MIN_FAULT:
        return math.inf
    return deviation(attention_weights(q, k), want)


@claim("C14", "a head as large as the model, against plain attention, and against plain attention times W_o")
def single_head_applies_w_o(subject: ModelAndPairs) -> float:
    """One head is not yet plain self-attention: W_o comes after it. With W_o = I it is."""
    attention = MultiHeadAttention(d_model=6, n_heads=1).to(subject.dtype).eval()
    attention.w_qkv.bias.copy_(subject.randn(18, seed=13))
    attention.w_o.bias.copy_(subject.randn(6, seed=14))
    x = subject.randn(2, 5, 6, seed=15)
    q, k, v = (x @ w.T + b for w, b in zip(attention.w_qkv.weight.chunk(3), attention.w_qkv.bias.chunk(3), strict=True))
    plain = F.scaled_dot_product_attention(q, k, v)
    mixed = attention(x, x, x)[0]
    if deviation(mixed, plain) < MIN_FAULT:
        return math.inf
    after_w_o = deviation(mixed, F.linear(plain, attention.w_o.weight, attention.w_o.bias))
    attention.w_o.weight.copy_(torch.eye(6))
    attention.w_o.bias.zero_()
    return worst([after_w_o, deviation(attention(x, x, x)[0], plain)])


@claim(
    "C16",
    "attentions of the model whose weights are not 2 x 4 (4 x 4 in self-attention) or do not follow their own query",
    tolerance=0.0,
    lower=(),
)
def cross_weights_are_target_by_source(subject: ModelAndPairs) -> float:
    """In cross-attention each target token weighs each source token: 2 queries on 4 keys have 2 x 4 weights a head."""
    # Queries from one sequence, keys and values from the other: only the queries' own rows depend on them.
    n_wrong = 0
    for attention in attention_modules(subject.model):
        d_model = attention.w_o.out_features
        tgt, src = subject.randn(1, 2, d_model, seed=16), subject.randn(1, 4, d_model, seed=17)
        cross, own = (attention(x, src, src, need_weights=True)[1] for x in (tgt, src))
        shapes = (1, attention.n_heads, 2, 4), (1, attention.n_heads, 4, 4)
        other = attention(tgt.flip(1), src, src, need_weights=True)[1]
        n_wrong += (cross.shape, own.shape) != shapes or not deviation(other.flip(2), cross) <= 1e-12
    return float(n_wrong)


@claim("C15.numpy", "output and weights of every attention in the model, against NumPy loops over heads and queries")
def multi_head_matches_numpy(subject: ModelAndPairs) -> float:
    """Multi-head attention is h independent attentions, concatenated, then W_o."""
    weights = numpy_weights(subject.model)
    deviations = []
    for name, module in subject.model.named_modules():
        if not isinstance(module, MultiHeadAttention):
            continue
        x_q = subject.randn(1, 5, module.w_o.out_features, seed=18)
        for x_kv, causal in ((x_q, True), (subject.randn(1, 7, module.w_o.out_features, seed=19), False)):
            mask = causal_mask(5, 5, 0) if causal else None
            output, head_weights = module(x_q, x_kv, x_kv, mask, need_weights=True)
            expected, expected_weights = reference.multi_head_attention(
                weights, name, module.n_heads, x_q[0].double().numpy(), x_kv[0].double().numpy(), causal
            )
            deviations.append(deviation(output[0], torch.from_numpy(expected)))
            deviations.append(deviation(head_weights[0], torch.from_numpy(expected_weights)))
    return worst(deviations)


@claim(
    "C15.torch",
    "output and weights of every attention, against nn.MultiheadAttention and F.scaled_dot_product_attention",
)
def multi_head_matches_torch(subject: ModelAndPairs) -> float:
    """Multi-head attention equals PyTorch's own, with the same weights and a padding mask."""
    src_mask = padding_mask(subject.src_ids, subject.model.config.pad_id)
    batch, src_len = subject.src_ids.shape
    deviations = []
    for attention in attention_modules(model_or_random_stand_in(subject.model)):
        d_model = attention.w_o.out_features
        x_q, x_kv = subject.randn(batch, 4, d_model, seed=20), subject.randn(batch, src_len, d_model, seed=21)
        output, head_weights = attention(x_q, x_kv, x_kv, src_mask, need_weights=True)
        blocked = ~src_mask[:, 0, 0]  # theirs: True = may NOT attend
        expected, expected_weights = torch_multi_head(attention)(x_q, x_kv, x_kv, blocked, average_attn_weights=False)
        deviations += [deviation(output, expected), deviation(head_weights, expected_weights)]
        (q,), (k, v) = attention.project(x_q, 0, 1), attention.project(x_kv, 1, 3)
        own, _ = scaled_dot_product_attention(q, k, v, src_mask)
        deviations.append(deviation(own, F.scaled_dot_product_attention(q, k, v, src_mask)))
    return worst(deviations)


@claim("C24", "output of every attention, against nn.MultiheadAttention(batch_first=False) on transposed input")
def tensors_are_batch_first(subject: ModelAndPairs) -> float:
    """Tensors are batch first, (B, L, D); code in which they are sequence first, (L, B, D), computes the same."""
    # Two rows of five; an attention over the wrong axis would mix the rows.
    deviations = []
    for attention in attention_modules(model_or_random_stand_in(subject.model)):
        x = subject.randn(2, 5, attention.w_o.out_features, seed=24)
        sequence_first = x.transpose(0, 1)
        torch_output, _ = torch_multi_head(attention, batch_first=False)(sequence_first, sequence_first, sequence_first)
        deviations.append(deviation(attention(x, x, x)[0], torch_output.transpose(0, 1)))
    return worst(deviations)
