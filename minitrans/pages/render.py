"""HTML and SVG from templates, which escape everything that they are given."""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


def script_hash(script: str) -> str:
    """The hash by which a page's Content-Security-Policy allows its one script: SHA-256 in base64."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


templates = Environment(
    loader=FileSystemLoader([*Path(__file__).parents[1].rglob("templates")]),  # no two have a file of the same name
    auto_reload=False,  # a server's pages stay those of its code
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters["script_hash"] = script_hash


def render_template(name: str, /, **data: object) -> Markup:
    """Fill a template of any folder with data; other templates insert the result unescaped."""
    return Markup(templates.get_template(name).render(data))
