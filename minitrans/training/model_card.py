"""The model card: what a run folder says about itself."""

from collections.abc import Mapping

from minitrans.text.lines import escape_controls
from minitrans.training.config import RunConfig
from minitrans.translate.bundle import Bundle, count_parameters
from minitrans.translate.scoring import Scores


def model_card(config: RunConfig, bundle: Bundle, scores: Mapping[str, Scores], step: int) -> str:
    """Markdown for a finished run: data, sizes, training, and scores by split; its best weights are those at `step`."""
    sizes = bundle.model.config
    valid = scores["valid"]
    is_plain = bundle.tokenizer.reader.plain
    rest = "; sources in lower case, with a keyboard's marks" if is_plain else ", else unchanged"
    rows = [
        f"| {split} | {s.sentences:,} | {s.bleu:.2f} | {s.chrf:.2f} | {s.exact_match:.1f}% |"
        for split, s in scores.items()
    ]
    return f"""# {bundle.source} -> {bundle.target}

A translation Transformer trained with minitrans on `{escape_controls(config.data.path)}`.

    minitrans translate {escape_controls(str(config.run_dir))} "..."

- Parameters: {count_parameters(sizes):,} ({sizes.n_layers} + {sizes.n_layers} layers, d_model {sizes.d_model}, \
{sizes.n_heads} heads of {sizes.head_size}, d_ff {sizes.d_ff}, {sizes.vocab_size:,} pieces, \
{"tied" if sizes.tie_embeddings else "separate"} embeddings)
- Longest source or target: {sizes.max_len} tokens
- Text: Unicode NFC, control characters and white space as single spaces{rest}; SentencePiece adds no rule
- Kept: averaged weights at step {step:,}, the best BLEU on `valid`; seed {config.seed}
- All settings: `config.yaml`; the numbers of the training curve: `metrics.csv`

![The training curve: loss, BLEU and learning rate](curve.svg)

| split | sentences | BLEU | chrF | exact match |
|---|---:|---:|---:|---:|
{chr(10).join(rows)}

Greedy decoding, one reference for each sentence. BLEU: `{valid.bleu_signature}`; chrF: `{valid.chrf_signature}`. \
Only `valid` was used to choose the weights, and the score below which a translation is marked "unsure".
"""
