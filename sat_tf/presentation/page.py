"""Self-contained HTML pages from templates; they load nothing, and run nothing but a zoom.

A template is beside the module that fills it, and is named by its path inside the package. It
extends "presentation/page.html" and fills the blocks `style` and `body`; its values are plain text
and are escaped, unless they are `Markup`: a table, a chart, another template. Control characters in
them are text, as on a terminal: some turn the direction of what follows.
"""

import functools
import pathlib
from typing import Any

import jinja2
from markupsafe import Markup

from sat_tf.messages import printable

_PACKAGE = pathlib.Path(__file__).parent.parent


def render_page(template: str, **values: Any) -> str:
    """A whole page: `render` as ordinary text."""
    return str(render(template, **values))


def render(template: str, **values: Any) -> Markup:
    """A template with its values filled in, as a value for another one."""
    return Markup(_environment().get_template(template).render(values))


@functools.cache
def _environment() -> jinja2.Environment:
    def shown(value: Any) -> Any:
        is_text = isinstance(value, str) and not isinstance(value, Markup)
        return printable(value) if is_text else value

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PACKAGE),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
