"""HTML and SVG from templates; what they are given is escaped, whoever wrote it."""

from collections.abc import Callable

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from minitrans.cachecheck.check import number


def renderer(package: str) -> Callable[..., Markup]:
    """What fills a template of a package, which may use those of this folder: given its name, and its data as keywords.

    It returns markup, which other templates take as it is.
    """
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("minitrans.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["number"] = number

    def render(template: str, /, **data: object) -> Markup:
        return Markup(templates.get_template(template).render(data))

    return render
