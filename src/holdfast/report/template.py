"""Pages from templates: everything that is put in is escaped, and a page that lacks something fails."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs


def template(name: str) -> Template:
    """A template by its file; plotly.js is at hand in it, so that a page can be read offline."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    """One for all pages: a template is compiled once."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["plotlyjs"] = Markup(get_plotlyjs())
    return environment
