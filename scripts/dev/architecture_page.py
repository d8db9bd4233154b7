#!/usr/bin/env python3
"""Writes docs/architecture.md: the parts of the demo's model, their shapes and parameters, from the code."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from minitrans.model.attention import MultiHeadAttention
from minitrans.model.layers import FeedForward
from minitrans.model.transformer import Transformer
from minitrans.training.config import parse_config

ROOT = Path(__file__).resolve().parents[2]
CONFIG_FILE = "configs/en-zh.yaml"
PAGE_FILE = ROOT / "docs" / "architecture.md"
BATCH_LETTER_BY_SIZE = {2: "B", 7: "S", 5: "T"}  # of the batch; the model has no such size
SHOWN_MODULE_CLASSES = nn.Embedding, nn.LayerNorm, MultiHeadAttention, FeedForward, nn.Linear
INTRODUCTION = f"""
# The architecture

These are the parts with weights of `{CONFIG_FILE}`'s model; layer 0 stands for every layer of its stack. Vaswani et al.
(2017) have no biases in attention, no dropout after the ReLU (our oracle, PyTorch, has both), and other
[norms](attention.md#8-what-are-residuals-and-pre-norm-for). `scripts/dev/architecture_page.py` writes this.

`B` sentences, `S` source tokens, `T` target tokens, `D` d_model, `F` d_ff, `V` vocabulary.
"""


def render_page() -> str:
    """The page."""
    config = parse_config(["--config", str(ROOT / CONFIG_FILE), "--run-dir", "none"], "train", "")
    model = Transformer(config.transformer_config(config.tokenizer.vocab_size, pad_id=0, bos_id=1, eos_id=2)).eval()
    c, n = model.config, sum(parameter.numel() for parameter in model.parameters())
    table = ["| part | class | output | weights | parameters |", "|---|---|---|---|--:|", *part_rows(model)]
    sizes = (
        f"D = {c.d_model}, F = {c.d_ff}, V = {c.vocab_size:,}, {c.n_heads} heads, {c.n_layers} layers in each stack."
    )
    saved = f"which saves {2 * c.vocab_size * c.d_model:,} parameters"
    tied = f" The three vocabulary tables are one (`model.tie_embeddings`), {saved}." if c.tie_embeddings else ""
    return "\n".join([INTRODUCTION.strip(), "", *table, "", f"{sizes}{tied} In all, {n:,} parameters.", ""])


def part_rows(model: Transformer) -> list[str]:
    """A row for each part that has weights, in the order in which they compute."""
    c, table = model.config, list[str]()
    letters = BATCH_LETTER_BY_SIZE | {c.d_model: "D", 3 * c.d_model: "3D", c.d_ff: "F", c.vocab_size: "V"}

    def shape(tensor: torch.Tensor) -> str:
        return f"({', '.join(letters[size] for size in tensor.shape)})"

    def note(name: str, module: nn.Module, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        weights = ", ".join(f"{key} {shape(parameter)}" for key, parameter in module.named_parameters())
        n = sum(parameter.numel() for parameter in module.parameters())
        table.append(f"| `{name}` | {type(module).__name__} | {shape(output)} | {weights} | {n:,} |")

    for name, module in model.named_modules():
        first = "layers" not in name or name.split(".")[2:3] == ["0"]
        if first and name.count(".") < 4 and isinstance(module, SHOWN_MODULE_CLASSES):
            module.register_forward_hook(lambda module, _, output, name=name: note(name, module, output))
    batch, source, target = BATCH_LETTER_BY_SIZE
    model(torch.full((batch, source), 3), torch.full((batch, target), 3))
    return table


if __name__ == "__main__":
    PAGE_FILE.write_text(render_page(), encoding="utf-8")
