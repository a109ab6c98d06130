"""The help of every command, put into `api/commands.md` while the site is built.

A hook of MkDocs (`hooks` in `mkdocs.yml`).
"""

import argparse
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from sat_tf.commands.main import COMMANDS, command_parser

_MARK = "<!-- the help of every command -->"
_GUIDES = pathlib.Path(__file__).parent / "guides"


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
    guide = f"guides/{name}.md" if (_GUIDES / f"{name}.md").exists() else "paper/experiments.md"
    blocks = "\n\n".join(f"```\n{text}```" for text in _helps(command_parser(name)))
    return f"## {name}\n\n[Guide](../{guide})\n\n{blocks}"


def _helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The help of a command, and of each of its actions where it has some."""
    yield parser.format_help()
    for action in parser._actions:  # argparse has no public way to them
        if isinstance(action, argparse._SubParsersAction):
            yield from (each.format_help() for each in action.choices.values())
