"""Faults of the export to CTranslate2."""

from collections.abc import Callable
from typing import Any

import torch
from ctranslate2.specs.model_spec import OPTIONAL

from minitrans.serving import export
from minitrans.serving.export import transformer_spec
from minitrans.verify.sabotage import Patch, sabotage


def change_spec(patch: Patch, change: Callable[[Any], None]) -> None:
    """Change the filled `TransformerSpec` before it is written."""

    def changed(*arguments: Any) -> Any:
        spec = transformer_spec(*arguments)
        change(spec)
        return spec

    patch.everywhere(transformer_spec, changed)


@sabotage("export.own-positions", "The exported model has no table of positions: CTranslate2 takes its own, in halves.")
def export_own_positions(patch: Patch) -> None:
    def without_table(spec: Any) -> None:
        spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = OPTIONAL

    change_spec(patch, without_table)


@sabotage("export.unscaled", "CTranslate2 does not multiply the target's embeddings by sqrt(d_model).")
def export_unscaled(patch: Patch) -> None:
    def unscaled(spec: Any) -> None:
        spec.decoder.scale_embeddings = False

    change_spec(patch, unscaled)


@sabotage("export.values-first", "The exported cross-attention has its values packed before its keys.")
def export_values_first(patch: Patch) -> None:
    def swap(spec: Any) -> None:
        for layer in spec.decoder.layer:
            packed = layer.attention.linear[1]
            packed.weight, packed.bias = (x.roll(len(x) // 2, 0) for x in (packed.weight, packed.bias))

    change_spec(patch, swap)


@sabotage("export.no-eos", "CTranslate2 appends no EOS to a source.")
def export_no_eos(patch: Patch) -> None:
    def without_eos(spec: Any) -> None:
        spec.config.add_source_eos = False

    change_spec(patch, without_eos)


@sabotage("export.writes-padding", "CTranslate2 may choose PAD and BOS.")
def export_writes_padding(patch: Patch) -> None:
    def unbiased(spec: Any) -> None:
        spec.decoder.projection.bias = torch.zeros_like(spec.decoder.projection.bias)

    change_spec(patch, unbiased)


@sabotage("export.no-limit", "CTranslate2's outputs are not cut at the length limits of their sources.")
def export_no_limit(patch: Patch) -> None:
    patch(export, "length_limit", lambda src_len, max_len: max_len)
