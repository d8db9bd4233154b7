"""Faults of the export to CTranslate2."""

from collections.abc import Callable
from typing import Any

import torch
from ctranslate2.specs.model_spec import OPTIONAL

from minitrans.serving import export
from minitrans.serving.export import transformer_spec
from minitrans.verify.sabotage import Sabotage, into

SABOTAGES: list[Sabotage] = []
sabotage = into(SABOTAGES)


def filled_spec(id_: str, fault: str) -> Callable[[Callable[[Any], None]], None]:
    """Returns a decorator: the sabotage is what the function changes in the `TransformerSpec` before it is written."""

    def register(change: Callable[[Any], None]) -> None:
        @sabotage(id_, fault, transformer_spec)
        def changed(*arguments: Any) -> Any:
            spec = transformer_spec(*arguments)
            change(spec)
            return spec

    return register


@filled_spec(
    "export.own-positions", "The exported model has no table of positions: CTranslate2 takes its own, in halves."
)
def export_own_positions(spec: Any) -> None:
    spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = OPTIONAL


@filled_spec("export.unscaled", "CTranslate2 does not multiply the target's embeddings by sqrt(d_model).")
def export_unscaled(spec: Any) -> None:
    spec.decoder.scale_embeddings = False


@filled_spec("export.values-first", "The exported cross-attention has its values packed before its keys.")
def export_values_first(spec: Any) -> None:
    for layer in spec.decoder.layer:
        packed = layer.attention.linear[1]
        packed.weight, packed.bias = (x.roll(len(x) // 2, 0) for x in (packed.weight, packed.bias))


@filled_spec("export.no-eos", "CTranslate2 appends no EOS to a source.")
def export_no_eos(spec: Any) -> None:
    spec.config.add_source_eos = False


@filled_spec("export.writes-padding", "CTranslate2 may choose PAD and BOS.")
def export_writes_padding(spec: Any) -> None:
    spec.decoder.projection.bias = torch.zeros_like(spec.decoder.projection.bias)


@sabotage(
    "export.no-limit",
    "CTranslate2's outputs are not cut at the length limits of their sources.",
    export,
    "length_limit",
)
def export_no_limit(src_len: int, max_len: int) -> int:
    return max_len
