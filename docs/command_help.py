"""The help of every command, put into `api/commands.md` while the site is built.

A hook of MkDocs (`hooks` in `mkdocs.yml`).
"""

import os
from typing import Any

from sat_tf.commands.main import COMMANDS, command_parser

_MARK = "<!-- the help of every command -->"
# The pages of commands that have no page of their name.
_GUIDES = {"evaluate": "export"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts the help in the place of its mark, where a page has it."""
    return markdown.replace(_MARK, _sections()) if _MARK in markdown else markdown


def _sections() -> str:
    # argparse asks there how wide a line is.
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "90"
    try:
        return "\n\n".join(map(_section, COMMANDS))
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns


def _section(name: str) -> str:
    guide = f"[Guide](../guides/{_GUIDES.get(name, name)}.md)"
    return f"## {name}\n\n{guide}\n\n```\n{command_parser(name).format_help()}```"
