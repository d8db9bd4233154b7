"""HTML and SVG from templates; what they are given is escaped, whoever wrote it."""

import base64
import hashlib
from collections.abc import Callable

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def renderer(package: str, **filters: Callable[..., str]) -> Callable[..., Markup]:
    """What fills a template of a package, which may use those of this folder: given its name, and its data as keywords.

    It returns markup, which other templates take as it is. `filters` are those that Jinja does not have.
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
    """What a page's policy calls the one script that it allows."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
