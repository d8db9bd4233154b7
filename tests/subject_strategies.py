"""Random models with sentences, for properties that hold for all of them."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from conftest import BOS, EOS, PAD, generator, random_model
from hypothesis import strategies as st
from torch.nn import functional as F

from minitrans.verify.model_and_pairs import ModelAndPairs, model_and_id_pairs


@st.composite
def subjects(draw: st.DrawFn) -> ModelAndPairs:
    """A random float64 model and ragged sentences for it, at least one of them a source with padding.

    B, S, T, d_ff and the sizes of the heads are pairwise distinct. One row, one head, heads that fill d_model and
    heads that do not, S < T and S > T, and a `max_len` that just suffices all occur.
    """
    n_heads, d_head, d_model = draw(
        st.sampled_from([(1, 12, 12), (2, 6, 12), (4, 3, 12), (1, 5, 11), (2, 3, 11), (3, 5, 13), (5, 1, 12)])
    )
    batch, src_len, tgt_len, d_ff = draw(st.permutations(sorted({*range(1, 10)} - {n_heads, d_head})))[:4]
    if src_len == 1:  # leaves no room for padding
        batch, src_len = src_len, batch
    src_lengths = draw(
        st.lists(st.integers(1, src_len), min_size=batch, max_size=batch).filter(lambda lengths: min(lengths) < src_len)
    )
    tgt_lengths = draw(st.lists(st.integers(1, tgt_len), min_size=batch, max_size=batch))
    seed = draw(st.integers(0, 2**20))
    model = random_model(
        seed,
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_head,
        d_ff=d_ff,
        n_layers=draw(st.integers(1, 2)),
        max_len=max(src_len, tgt_len) + draw(st.sampled_from([0, 1, 9])),
        tie_embeddings=draw(st.booleans()),
    )
    sources, targets = random_sentences(seed + 1, src_lengths), random_sentences(seed + 2, tgt_lengths)
    subject = model_and_id_pairs(model, sources, targets, [sources, sources[:1]])
    src_ids, tgt_in, tgt_out = (
        F.pad(ids, (0, width - ids.size(1)), value=PAD)
        for ids, width in ((subject.src_ids, src_len), (subject.tgt_in, tgt_len), (subject.tgt_out, tgt_len))
    )
    return replace(subject, src_ids=src_ids, tgt_in=tgt_in, tgt_out=tgt_out)


def random_sentences(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    """Ids that are not special, one fewer than each length, because BOS or EOS is added."""
    ordinary = torch.tensor([i for i in range(11) if i not in (PAD, BOS, EOS)])
    random = generator(seed)
    return [ordinary[torch.randint(len(ordinary), (n - 1,), generator=random)].tolist() for n in lengths]
