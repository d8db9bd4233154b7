"""The claims, in the order in which they teach attention. Each check returns the worst deviation it found.

Everything is measured in float64 unless the claim says otherwise. Identifiers C1 to C26 number the claims of the
attention literature that this package is held to; the `cache` checks are about decoding step by step.
"""

import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans import reference
from minitrans.attention import MultiHeadAttention, attention_weights, scaled_dot_product_attention
from minitrans.decoding import greedy_decode, length_limit, likeliest_token
from minitrans.layers import LayerTrace
from minitrans.loss import label_smoothed_cross_entropy
from minitrans.masks import causal_mask, padding_mask
from minitrans.model import Transformer
from minitrans.verify.check import Check, deviation, relative_deviation, worst
from minitrans.verify.oracles import torch_attention, torch_multi_head
from minitrans.verify.subject import Subject

FLOAT64_TOLERANCE = 1e-12
FLOAT32_TOLERANCE = 1e-5
INF = float("inf")

CHECKS: list[Check] = []


def check(id_: str, claim: str, tolerance: float) -> Callable[[Callable[[Subject], float]], Callable[[Subject], float]]:
    """Register the decorated function as a check, in the order of the file."""

    def register(measure: Callable[[Subject], float]) -> Callable[[Subject], float]:
        CHECKS.append(Check(id_, claim, tolerance, measure))
        return measure

    return register


def attentions(model: Transformer) -> list[MultiHeadAttention]:
    """Every attention in the model."""
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


def random_input(*shape: int, seed: int) -> Tensor:
    """float64 noise of unit variance."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights_of(model: Transformer) -> dict[str, reference.Array]:
    """The model's weights for the NumPy reference."""
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def real_tokens(ids: Tensor, pad_id: int) -> list[list[int]]:
    """Rows of ids without their padding."""
    return [[i for i in row if i != pad_id] for row in ids.tolist()]


# -- One attention ---------------------------------------------------------------------------------------------------


@check("C9", "W_q, W_k and W_v packed in one matrix give what three separate products give.", FLOAT64_TOLERANCE)
@torch.no_grad()
def packed_projections(subject: Subject) -> float:
    """Split the packed matrix by hand, multiply three times, and cut each product into heads by slicing."""
    deviations = []
    for attention in attentions(subject.model):
        x = random_input(2, 5, attention.w_o.out_features, seed=9)
        size = attention.n_heads * attention.d_head
        for i, packed in enumerate(attention.project_qkv(x)):
            rows = slice(i * size, (i + 1) * size)
            separate = x @ attention.w_qkv.weight[rows].T + attention.w_qkv.bias[rows]
            for h in range(attention.n_heads):
                head = separate[:, :, h * attention.d_head : (h + 1) * attention.d_head]
                deviations.append(deviation(packed[:, h], head))
        q, (k, v) = attention.project_q(x), attention.project_kv(x)
        deviations += [deviation(a, b) for a, b in zip((q, k, v), attention.project_qkv(x), strict=True)]
    return worst(deviations)


@check("C10", "One projection cut into heads equals a separate matrix for each head (worked example).", 0.0)
@torch.no_grad()
def heads_of_one_matrix(subject: Subject) -> float:
    """X = 1..12 as (3, 4), two heads of two: the numbers are whole, so they have to be exact."""
    x = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(1, 3, 4)
    w_q1 = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]], dtype=torch.float64)  # (d_in, d_head)
    w_q2 = torch.tensor([[2.0, 1], [1, 2], [2, 1], [1, 2]], dtype=torch.float64)
    attention = MultiHeadAttention(d_model=4, n_heads=2).double()
    attention.w_qkv.weight[:4] = torch.cat([w_q1, w_q2], dim=1).T
    expected = torch.tensor(
        [[[4.0, 6], [12, 14], [20, 22]], [[14, 16], [38, 40], [62, 64]]], dtype=torch.float64
    )  # (H, T, Dh)
    return deviation(attention.project_q(x)[0], expected)


@check("C15.numpy", "Multi-head attention is h attentions, concatenated, then W_o: NumPy, head by head.", 1e-12)
@torch.no_grad()
def multi_head_is_heads(subject: Subject) -> float:
    """Every attention of the model against the loop over heads and queries, with and without the causal mask."""
    weights = weights_of(subject.model)
    deviations = []
    for name, module in subject.model.named_modules():
        if not isinstance(module, MultiHeadAttention):
            continue
        x_q = random_input(1, 5, module.w_o.out_features, seed=15)
        for x_kv, causal in ((x_q, True), (random_input(1, 7, module.w_o.out_features, seed=16), False)):
            mask = causal_mask(5, 5, 0) if causal else None
            output, head_weights = module(x_q, x_kv, x_kv, mask, need_weights=True)
            expected, expected_weights = reference.multi_head_attention(
                weights, name, module.n_heads, x_q[0].numpy(), x_kv[0].numpy(), causal
            )
            deviations.append(deviation(output[0], torch.from_numpy(expected)))
            deviations.append(deviation(head_weights[0], torch.from_numpy(expected_weights)))
    return worst(deviations)


@check("C15.torch", "Multi-head attention equals PyTorch's own, output and weights, with the same weights.", 1e-12)
@torch.no_grad()
def multi_head_is_torch(subject: Subject) -> float:
    """Against the fused function on projected heads, and against the module with our weights copied in."""
    src_mask = padding_mask(subject.src_ids, subject.model.config.pad_id)
    batch, src_len = subject.src_ids.shape
    deviations = []
    for attention in attentions(subject.model):
        d_model = attention.w_o.out_features
        if attention.n_heads * attention.d_head != d_model:  # theirs cannot hold such weights: take fresh ones
            attention = MultiHeadAttention(d_model, math.gcd(d_model, attention.n_heads)).double().eval()
        x_q, x_kv = random_input(batch, 4, d_model, seed=17), random_input(batch, src_len, d_model, seed=18)
        output, head_weights = attention(x_q, x_kv, x_kv, src_mask, need_weights=True)
        expected, expected_weights = torch_multi_head(attention, x_q, x_kv, src_mask)
        deviations += [deviation(output, expected), deviation(head_weights, expected_weights)]
        q, (k, v) = attention.project_q(x_q), attention.project_kv(x_kv)
        ours, _ = scaled_dot_product_attention(q, k, v, src_mask)
        deviations.append(deviation(ours, torch_attention(q, k, v, src_mask)))
    return worst(deviations)


@check("C15.model", "The whole model, batched and padded, equals the NumPy reference sentence by sentence.", 1e-11)
@torch.no_grad()
def model_is_reference(subject: Subject) -> float:
    """Logits at every real position; the reference knows no batch and no padding."""
    model, pad_id = subject.model, subject.model.config.pad_id
    logits = model(subject.src_ids, subject.tgt_in)
    weights = weights_of(model)
    deviations = []
    for b, (src, tgt) in enumerate(
        zip(real_tokens(subject.src_ids, pad_id), real_tokens(subject.tgt_in, pad_id), strict=True)
    ):
        expected = reference.transformer(weights, model.config.n_heads, src, tgt)
        deviations.append(deviation(logits[b, : len(tgt)], torch.from_numpy(expected)))
    return worst(deviations)


# -- Masks -----------------------------------------------------------------------------------------------------------


@check("C17.zero", "A padded key has weight exactly 0, even where all real scores are as low as -1e6.", 0.0)
@torch.no_grad()
def padded_keys_weigh_nothing(subject: Subject) -> float:
    """The largest weight on a padded key in the model's own attention, and beside scores of about -1e6 and -1e30."""
    model = subject.model
    memory, src_mask, encoder = model.run_encoder(subject.src_ids, need_weights=True)
    _, decoder = model.run_decoder(subject.tgt_in, model.decoder.project_memory(memory), src_mask, need_weights=True)
    if src_mask.all():
        return INF  # nothing is padded, so nothing is shown
    found = [t.self_weights for t in encoder] + [t.cross_weights for t in decoder]
    for score in (-1e6, -1e30):
        q = torch.full((1, 1, 1, 1), score, dtype=torch.float64)
        found.append(
            attention_weights(q.expand(len(src_mask), 1, 2, 1), torch.ones_like(src_mask).double().mT, src_mask)
        )
    return worst([float(w.masked_select(~src_mask).abs().max()) for w in found if w is not None])


@check("C17.ignored", "Padding, and the other sentences of a batch, change nothing in a sentence's result.", 1e-12)
@torch.no_grad()
def padding_changes_nothing(subject: Subject) -> float:
    """Each sentence alone and unpadded against the batch, and the batch again with more columns of padding."""
    model, pad_id = subject.model, subject.model.config.pad_id
    logits = model(subject.src_ids, subject.tgt_in)
    more = min(3, model.config.max_len - subject.src_ids.size(1))
    deviations = [deviation(model(F.pad(subject.src_ids, (0, more), value=pad_id), subject.tgt_in), logits)]
    for b, (src, tgt) in enumerate(
        zip(real_tokens(subject.src_ids, pad_id), real_tokens(subject.tgt_in, pad_id), strict=True)
    ):
        alone = model(torch.tensor([src]), torch.tensor([tgt]))
        deviations.append(deviation(alone[0], logits[b, : len(tgt)]))
    return worst(deviations)


@check("C19.prefix", "What is computed for the first tokens does not change when later tokens are appended.", 1e-12)
@torch.no_grad()
def prefixes_stand(subject: Subject) -> float:
    """Every prefix against the whole target, in every layer; without the mask the same vectors must change."""
    model = subject.model
    memory, src_mask = model.encode(subject.src_ids)
    cross = model.decoder.project_memory(memory)
    logits, traces = model.run_decoder(subject.tgt_in, cross, src_mask)
    deviations = []
    for n in range(1, subject.tgt_in.size(1)):
        prefix_logits, prefix_traces = model.run_decoder(subject.tgt_in[:, :n], cross, src_mask)
        deviations.append(deviation(prefix_logits, logits[:, :n]))
        deviations += [
            deviation(prefix.output, whole.output[:, :n]) for prefix, whole in zip(prefix_traces, traces, strict=True)
        ]
    # Control: the same self-attention without a mask sees the appended tokens.
    attention = attentions(model)[0]
    x = random_input(1, 5, attention.w_o.out_features, seed=19)
    if deviation(attention(x[:, :3], x[:, :3], x[:, :3])[0], attention(x, x, x)[0][:, :3]) < 1e-6:
        return INF
    return worst(deviations)


@check("C19.gradient", "The gradient of output t with respect to every later target token is exactly 0.", 0.0)
def no_gradient_from_the_future(subject: Subject) -> float:
    """The decoder's output at each t, differentiated by its input vectors; towards its own input it must not vanish."""
    model = subject.model
    memory, src_mask = model.encode(subject.src_ids)
    cross = [(k.detach(), v.detach()) for k, v in model.decoder.project_memory(memory)]
    tgt_len = subject.tgt_in.size(1)
    x = random_input(len(memory), tgt_len, memory.size(-1), seed=20).requires_grad_()
    hidden, _ = model.decoder(x, cross, src_mask)
    deviations = []
    for t in range(tgt_len):
        # The sum of a normalised vector is constant, so weigh its elements before summing.
        (gradient,) = torch.autograd.grad((hidden[:, t] * x.detach()[:, t]).sum(), x, retain_graph=True)
        if float(gradient[:, t].abs().min(-1).values.max()) == 0.0:
            return INF
        deviations.append(float(gradient[:, t + 1 :].abs().sum()))
    return worst(deviations)


@check("C25", "A query that may attend to nothing gets 0, and its gradients are finite.", 0.0)
def empty_rows_are_zero(subject: Subject) -> float:
    """The middle query of three sees no key."""
    q, k, v = (random_input(2, 3, 3, 5, seed=seed).requires_grad_() for seed in (25, 26, 27))
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    mask[:, :, 1] = False
    output, weights = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    assert weights is not None
    output.square().sum().backward()
    if not all(x.grad is not None and bool(x.grad.isfinite().all()) for x in (q, k, v)):
        return INF
    if not bool((output[:, :, 0] != 0).all()):
        return INF
    return worst([float(x.detach()[:, :, 1].abs().max()) for x in (output, weights)])


# -- Decoding step by step -------------------------------------------------------------------------------------------


def compare_traces(
    ours: list[LayerTrace], full: list[LayerTrace], start: int, end: int, compare: Callable[[Tensor, Tensor], float]
) -> Iterator[float]:
    """Deviation of every layer's output and weights at target positions start to end."""
    for a, b in zip(ours, full, strict=True):
        assert a.self_weights is not None
        assert b.self_weights is not None
        assert a.cross_weights is not None
        assert b.cross_weights is not None
        yield compare(a.output, b.output[:, start:end])
        yield compare(a.self_weights, b.self_weights[:, :, start:end, :end])
        yield compare(a.cross_weights, b.cross_weights[:, :, start:end])


def cached_against_full(
    model: Transformer,
    src_ids: Tensor,
    tgt_in: Tensor,
    chunks: list[int],
    compare: Callable[[Tensor, Tensor], float] = deviation,
) -> float:
    """Feed the target through a cache in chunks of the given sizes; compare all that is computed with the full pass."""
    memory, src_mask = model.encode(src_ids)
    cross = model.decoder.project_memory(memory)
    full_logits, full = model.run_decoder(tgt_in, cross, src_mask, need_weights=True)
    deviations = []
    probe, cache = model.init_cache(memory, src_mask), model.init_cache(memory, src_mask)
    start = 0
    for size in chunks:
        end = start + size
        deviations.append(compare(model.step(tgt_in[:, start:end], cache), full_logits[:, start:end]))
        _, traces = model.run_decoder(tgt_in[:, start:end], cross, src_mask, probe, need_weights=True)
        deviations += compare_traces(traces, full, start, end, compare)
        start = end
    return worst(deviations) if start == tgt_in.size(1) else INF


@check(
    "cache.steps",
    "Decoding step by step from the cache gives what the full masked pass gives: logits, layers, weights.",
    FLOAT64_TOLERANCE,
)
@torch.no_grad()
def steps_are_full_pass(subject: Subject) -> float:
    """One token at a time, at every position."""
    return cached_against_full(subject.model, subject.src_ids, subject.tgt_in, [1] * subject.tgt_in.size(1))


@check(
    "cache.float32",
    "The same in float32, relative to the largest element of each tensor where that is above 1.",
    FLOAT32_TOLERANCE,
)
@torch.no_grad()
def steps_are_full_pass_float32(subject: Subject) -> float:
    """One token at a time, at every position."""
    model = copy.deepcopy(subject.model).float()
    steps = [1] * subject.tgt_in.size(1)
    return cached_against_full(model, subject.src_ids, subject.tgt_in, steps, relative_deviation)


@check("cache.chunks", "The same for chunks of any size: a prompt of many tokens, then few at a time.", 1e-12)
@torch.no_grad()
def chunks_are_full_pass(subject: Subject) -> float:
    """All ways to cut off one chunk at the front, and alternating chunks of two and one."""
    tgt_len = subject.tgt_in.size(1)
    ways = [[n, tgt_len - n] for n in range(1, tgt_len)]
    ways.append(([2, 1] * tgt_len)[: 2 * (tgt_len // 3)] + [1] * (tgt_len % 3))
    return worst([cached_against_full(subject.model, subject.src_ids, subject.tgt_in, way) for way in ways])


@check("cache.rows", "Rows of the cache can be reordered, dropped and repeated in mid-decode.", FLOAT64_TOLERANCE)
@torch.no_grad()
def rows_can_be_selected(subject: Subject) -> float:
    """After each selection the decode goes on exactly as the full pass on the selected rows; they really swap."""
    model, tgt_in = subject.model, subject.tgt_in
    batch = len(tgt_in)
    memory, src_mask = model.encode(subject.src_ids)
    full = model.decode(tgt_in, memory, src_mask)
    deviations = []
    for selection in (list(range(batch))[::-1], [1, 0, 1, 1], [batch - 1]):
        rows = torch.tensor(selection)
        cache = model.init_cache(memory, src_mask)
        model.step(tgt_in[:, :2], cache)
        cache.select_rows(rows)
        deviations.append(deviation(model.step(tgt_in[rows, 2:], cache), full[rows, 2:]))
    return worst(deviations)


@check("cache.two", "Two caches in use at once on one model do not mix.", FLOAT64_TOLERANCE)
@torch.no_grad()
def two_caches_do_not_mix(subject: Subject) -> float:
    """Two decodes take turns, the second on the rows in reverse."""
    model, src_ids, tgt_in = subject.model, subject.src_ids, subject.tgt_in
    caches = [model.init_cache(*model.encode(ids)) for ids in (src_ids, src_ids.flip(0))]
    targets = [tgt_in, tgt_in.flip(0)]
    full = [model(ids, tgt) for ids, tgt in zip((src_ids, src_ids.flip(0)), targets, strict=True)]
    deviations = []
    for t in range(tgt_in.size(1)):
        for i in (0, 1):
            logits = model.step(targets[i][:, t : t + 1], caches[i])
            deviations.append(deviation(logits, full[i][:, t : t + 1]))
    return worst(deviations)


@check("C20", "The loss of one teacher-forced pass is the sum of the losses of feeding it token by token.", 1e-10)
@torch.no_grad()
def teacher_forcing_is_stepwise(subject: Subject) -> float:
    """Summed over all real target tokens, in nats, relative to the loss; tgt_out must be tgt_in moved by one."""
    model, pad_id = subject.model, subject.model.config.pad_id
    shifted = subject.tgt_out[:, :-1].masked_fill(subject.tgt_in[:, 1:] == pad_id, pad_id)
    if not torch.equal(shifted, subject.tgt_in[:, 1:]):
        return INF
    loss = label_smoothed_cross_entropy(model(subject.src_ids, subject.tgt_in), subject.tgt_out, pad_id, smoothing=0.0)
    cache = model.init_cache(*model.encode(subject.src_ids))
    steps = torch.zeros((), dtype=torch.float64)
    for t in range(subject.tgt_in.size(1)):
        log_p = F.log_softmax(model.step(subject.tgt_in[:, t : t + 1], cache)[:, 0], dim=-1)
        for b, right in enumerate(subject.tgt_out[:, t].tolist()):
            if right != pad_id:
                steps -= log_p[b, right]
    return deviation(steps, loss) / float(loss)


@check("C21", "Greedy decoding is token for token the same from the cache, without it, and from one full pass.", 0.0)
@torch.no_grad()
def greedy_is_greedy(subject: Subject) -> float:
    """How many sentences differ. The full pass reads the finished output and must choose the same tokens and end."""
    model, config = subject.model, subject.model.config
    n_different = 0
    for src_ids in subject.decode_batches:
        cached = greedy_decode(model, src_ids)
        uncached = greedy_decode(model, src_ids, use_cache=False)
        longest = max(map(len, cached))
        tgt_in = torch.tensor([[config.bos_id, *ids] + [config.pad_id] * (longest - len(ids)) for ids in cached])
        logits = model(src_ids, tgt_in[:, : config.max_len])
        chosen = torch.stack([likeliest_token(logits[:, t], model) for t in range(logits.size(1))], dim=1).tolist()
        for b, ids in enumerate(cached):
            limit = length_limit(int((src_ids[b] != config.pad_id).sum()), config.max_len)
            expected = ids if len(ids) == limit else [*ids, config.eos_id]
            n_different += not (ids == uncached[b] and chosen[b][: len(expected)] == expected)
    return float(n_different) if subject.decode_batches else INF
