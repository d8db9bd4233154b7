"""HTML and SVG from the templates beside this file; what they are given is escaped, whoever wrote it."""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from minitrans.cachecheck.check import number

TEMPLATES = Environment(
    loader=PackageLoader("minitrans.verify.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["number"] = number


def render(template: str, **data: object) -> Markup:
    """A template with its data: markup, which other templates take as it is."""
    return Markup(TEMPLATES.get_template(template).render(data))
