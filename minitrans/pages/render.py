"""HTML and SVG from templates, which escape everything that they are given."""

import base64
import hashlib
from collections.abc import Callable

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def template_renderer(package: str, **filters: Callable[..., str]) -> Callable[..., Markup]:
    """Return a function that fills a template of a package: it takes the template's name, and data as keywords.

    Templates may use those of this folder too. The function returns markup, which other templates take as it is.
    `filters` are added to Jinja's own.
    """
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("minitrans.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= filters

    def render(template: str, /, **data: object) -> Markup:
        return Markup(templates.get_template(template).render(data))

    return render


def script_hash(script: str) -> str:
    """The hash by which a page's Content-Security-Policy allows its one script: SHA-256 in base64."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
