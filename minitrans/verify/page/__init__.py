"""The report as one self-contained page: it opens from disk and loads nothing from anywhere."""

from itertools import groupby

from minitrans.cachecheck.measurement import LOWER_DTYPES, Report, dtype_name, to_str
from minitrans.pages.grids import detection_matrix
from minitrans.pages.render import render_template, templates
from minitrans.verify.model_and_pairs import ModelAndPairs
from minitrans.verify.page import figures

templates.filters["number"] = to_str


def page_html(report: Report, subject: ModelAndPairs | str) -> str:
    """The page's HTML; its pictures are made from the subject, float64. The name of somebody else's model has none."""
    caught = {sabotage.id: sabotage.caught_by for sabotage in report.sabotages or []}
    if isinstance(subject, str):
        name, pictures = subject, {}
    else:
        c = subject.model.config
        name = f"a model of {c.n_layers}+{c.n_layers} layers, d_model {c.d_model}, {c.n_heads} heads"
        pictures = {
            "config": c,
            "masks": figures.mask_pictures(),
            "attention": figures.attention_heat_maps(subject),
            "decoding": figures.decoding_error_chart(subject),
        }
    return render_template(
        "verify.html",
        report=report,
        name=name,
        dtypes=["float64", *map(dtype_name, LOWER_DTYPES)],
        groups=[(title, list(group)) for title, group in groupby(report.checks, lambda check: check.group)],
        matrix=detection_matrix(caught, [check.id for check in report.checks]),
        illustrated=bool(pictures),
        **pictures,
    )
