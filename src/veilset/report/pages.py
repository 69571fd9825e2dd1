"""Templates to HTML. Everything is escaped, a misspelt name is an error, and nothing is fetched from anywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilset.errors import MissingExtra

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATES = Path(__file__).parent


def render(template: str, content: dict[str, Any]) -> bytes:
    """One self-contained page.

    Raises: MissingExtra without jinja2.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", "report", "the HTML report") from error
    # Class names and the like come from files of strangers: everything is escaped, and a misspelt name is an error.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["as_code"] = as_code
    return environment.get_template(template).render(content).encode(errors="replace")


def as_code(text: str) -> Markup:
    """Text, escaped, with what stands between backticks set as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
