"""An explanation as one self-contained page: it opens from disk and loads nothing from anywhere."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markupsafe import Markup
from torch import Tensor

from minitrans.errors import UserError
from minitrans.explain.tracing import ATTENTION_KINDS, TracedTranslation
from minitrans.files import write_file
from minitrans.pages.render import render_template

MAX_WEIGHT_BYTES = 750_000  # for the weights of all sentences together; in base64, a number takes 16/3 bytes


@dataclass(frozen=True)
class ExplanationPage:
    """How the translations of one or more sentences came about: a page to save; in a notebook it shows itself."""

    sentences: Sequence[TracedTranslation]
    is_cut: bool = False  # whether more sentences were not traced, because the page has no room for them

    @cached_property
    def html(self) -> str:
        """The page of the sentences, with as many of the last layers as there is room for.

        Raises:
            UserError: The first sentence is too long for a page.
        """
        sentences, config = self.sentences, self.sentences[0].config
        n_layers, n_sentences = fitting_counts([layer_bytes(sentence) for sentence in sentences], config.n_layers)
        if not n_sentences:
            n_pieces = len(sentences[0].attention.source)
            raise UserError(f"the first sentence is too long to show as a page: {n_pieces} pieces; give a shorter one")
        data = {
            "layers": list(range(config.n_layers - n_layers + 1, config.n_layers + 1)),
            "heads": config.n_heads,
            "sentences": [_json_dict(sentence, n_layers) for sentence in sentences[:n_sentences]],
        }
        page = render_template(
            "explain.html",
            config=config,
            languages=sentences[0].languages,
            n_layers=n_layers,
            n_shown=n_sentences,
            is_cut=self.is_cut or n_sentences < len(sentences),
            data=json.loads(json.dumps(data), parse_constant=str),  # NaN and infinities, which JSON lacks, as text
        )
        return str(page)  # not Markup, because a frame has to escape it

    def save(self, path: str | Path) -> None:
        """Write the page to a file.

        Raises:
            UserError: It cannot be written, or the first sentence is too long for a page.
        """
        write_file(path, self.html)

    def _repr_html_(self) -> str:
        """A frame of its own, so that neither its styles nor its names meet those of a notebook."""
        frame = (
            '<iframe title="minitrans explain" sandbox="allow-scripts allow-downloads" '
            'style="width: 100%; height: 50rem; border: 0" srcdoc="{}"></iframe>'
        )
        html = self.html.replace("<head>", '<head><base href="about:srcdoc">', 1)  # else #heads would be the notebook's
        return str(Markup(frame).format(html))


def fitting_counts(sizes: Sequence[int], n_layers: int) -> tuple[int, int]:
    """How many of the last layers fit on a page, at least one, and how many of the first sentences with them.

    `sizes` has for each sentence the bytes that one of its `n_layers` layers takes.
    """
    shown = max(1, min(n_layers, MAX_WEIGHT_BYTES // sum(sizes)))
    fit = [n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) * shown <= MAX_WEIGHT_BYTES]
    return shown, max(fit, default=0)


def layer_bytes(sentence: TracedTranslation) -> int:
    """Bytes that one layer takes on the page."""
    of = sentence.attention
    numbers = (of.encoder, of.decoder, of.cross, sentence.stepwise_decoder, sentence.stepwise_cross)
    return sum(weights[0].numel() for weights in numbers) * 16 // 3


def _json_dict(sentence: TracedTranslation, n_last_layers: int) -> dict[str, object]:
    """What the script needs to know, for the last `n_last_layers` layers."""
    attention, translation = sentence.attention, sentence.translation
    return {
        "text": sentence.text,
        "translation": translation.text,
        "unknown": translation.unknown_words,
        "unsure": translation.unsure,
        "source": attention.source,
        "target": attention.target,
        "log_prob": sentence.log_prob,
        "padded": sentence.n_padded,
        "forbidden": sentence.max_forbidden_weight,
        "full": {kind: _as_float32_base64(getattr(attention, kind)[-n_last_layers:]) for kind in ATTENTION_KINDS},
        "cached": {
            "decoder": _as_float32_base64(sentence.stepwise_decoder[-n_last_layers:]),
            "cross": _as_float32_base64(sentence.stepwise_cross[-n_last_layers:]),
        },
        "steps": [step._asdict() for step in sentence.steps],
        "without": {kind: log_probs.tolist() for kind, log_probs in sentence.head_ablation_log_probs.items()},
    }


def _as_float32_base64(weights: Tensor) -> str:
    """(L, H, Tq, Tk) of any dtype -> their bytes as float32, little-endian, in base64."""
    return base64.b64encode(weights.float().contiguous().numpy().astype("<f4").tobytes()).decode()
