#!/usr/bin/env python3
"""Draws docs/pictures, from the package's own functions and a trained run: `draw_pictures.py runs/en-zh`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from jinja2 import FileSystemLoader

import minitrans
from minitrans.cachecheck.measurement import to_str
from minitrans.data.batching import collate
from minitrans.errors import UserError
from minitrans.explain.tracing import TracedTranslation
from minitrans.model.masks import causal_mask, padding_mask
from minitrans.pages.render import templates
from minitrans.translate.translator import Translator

PICTURE_DIR = Path(__file__).resolve().parents[2] / "docs" / "pictures"
EXAMPLE_SENTENCE = "I saw a saw."
MASK_PAIRS = (("I love you", "我 爱 你"), ("deep learning", "深 度 学 习"))
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
SHOWN_STEP = 3  # which step of the translation is shown beside the full pass, from 0

TEMPLATES = templates.overlay(loader=FileSystemLoader(Path(__file__).with_name("pictures")))
TEMPLATES.filters = {**templates.filters, "number": to_str}


def draw_masks() -> str:
    """The masks that `minitrans.model` makes for a batch of two pairs."""
    words = ["<pad>", "<s>", "</s>"]
    for text in (text for pair in MASK_PAIRS for text in pair):
        words += text.split()
    sources, targets = ([[words.index(word) for word in pair[side].split()] for pair in MASK_PAIRS] for side in (0, 1))
    batch = collate(sources, targets, pad_id=PAD_ID, bos_id=BOS_ID, eos_id=EOS_ID)
    n_source, n_target = batch.src_ids.size(1), batch.tgt_in.size(1)
    unpadded = padding_mask(batch.src_ids, PAD_ID)[:, 0]  # (B, 1, S)
    causal = causal_mask(n_target, n_target, 0)[0, 0].tolist()

    def marks(ids: torch.Tensor, padding: str) -> list[str]:
        return [padding if id_ == PAD_ID else "piece" for id_ in ids.tolist()]

    pairs = [
        {
            **{name: [words[id_] for id_ in ids[row]] for name, ids in batch._asdict().items()},
            "src_marks": marks(batch.src_ids[row], "piece"),
            "tgt_in_marks": marks(batch.tgt_in[row], "piece"),
            "loss_marks": marks(batch.tgt_out[row], "masked"),
            "encoder": unpadded[row].expand(n_source, -1).tolist(),
            "decoder": causal,
            "cross": unpadded[row].expand(n_target, -1).tolist(),
        }
        for row in range(len(MASK_PAIRS))
    ]
    return TEMPLATES.get_template("masks.svg").render(pairs=pairs)


def draw_cross_attention(traced: TracedTranslation) -> str:
    """Where the decoder's last layer looked while it translated."""
    weights = traced.attention.cross[-1].mean(0)
    return TEMPLATES.get_template("cross-attention.svg").render(
        text=traced.text,
        translation=traced.translation.text,
        queries=labels(traced.attention.target[1:]),
        keys=labels(traced.attention.source),
        may=torch.ones_like(weights, dtype=torch.bool).tolist(),
        weights=weights.tolist(),
        n_heads=traced.config.n_heads,
    )


def draw_cached_step(traced: TracedTranslation) -> str:
    """One step from the cache, and the same row of the full masked pass."""
    step, length = traced.steps[SHOWN_STEP], len(traced.steps)
    assert step.n_keys_held_before == SHOWN_STEP
    assert step.source_kept
    return TEMPLATES.get_template("cached-step.svg").render(
        pieces=labels(traced.attention.target[:-1]),
        source=labels(traced.attention.source),
        causal=causal_mask(length, length, 0)[0, 0].tolist(),
        full=traced.attention.decoder[-1].mean(0).tolist(),
        cached=traced.stepwise_decoder[-1].mean(0).tolist(),
        t=SHOWN_STEP,
        difference=step.weight_difference,
    )


def draw_backends() -> str:
    """Which code runs when."""
    return TEMPLATES.get_template("who-computes.svg").render()


def labels(pieces: Sequence[str]) -> list[str]:
    """Pieces as they are drawn: many fonts draw U+2581 as a heavy bar."""
    return [piece.replace("\u2581", "␣") for piece in pieces]


def main(argv: Sequence[str] | None = None) -> int:
    """Write all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="a run folder whose model translates the sentence that is shown")
    args = parser.parse_args(argv)
    try:
        (traced,) = minitrans.explain(Translator.load(args.run), [EXAMPLE_SENTENCE]).sentences
    except UserError as error:
        parser.error(str(error))
    pictures = {
        "masks": draw_masks(),
        "cross-attention": draw_cross_attention(traced),
        "cached-step": draw_cached_step(traced),
        "who-computes": draw_backends(),
    }
    PICTURE_DIR.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        (PICTURE_DIR / f"{name}.svg").write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
