"""Makes the examples in docstrings blocks of code.

The docstrings have their examples as doctests, in a paragraph of their own or under `Example:`;
those that need a user's data are plain lines there. Markdown would read `>>>` as a quotation inside
a quotation inside a quotation, and plain lines as one sentence.
"""

import re
from typing import Any

import griffe

# `>>>`, and the lines behind it down to an empty one or to one that is indented less.
_DOCTEST = re.compile(r"^(?P<indent> *)>>> [^\n]*(?:\n(?P=indent) *\S[^\n]*)*", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_PLAIN = re.compile(r"(?<=^Example:\n) {4}(?!>>>)[^\n]*(?:\n {4}[^\n]*)*", re.MULTILINE)


def with_blocks(docstring: str) -> str:
    r"""A docstring with its examples as Griffe and Markdown read them.

    >>> print(with_blocks("Adds.\n\n>>> 1 + 1\n2"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """

    def fenced(found: re.Match[str]) -> str:
        # Those in an indented section are blocks to Griffe already.
        indent = found["indent"]
        return found[0] if indent else f"```pycon\n{found[0]}\n```"

    plain = _PLAIN.sub(r"    ```python\n\g<0>\n    ```", docstring)
    return _DOCTEST.sub(fenced, _EXAMPLE.sub("Examples:", plain))


class DoctestBlocks(griffe.Extension):
    """The extension that `mkdocs.yml` names."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of one function, class or module."""
        if obj.docstring:
            obj.docstring.value = with_blocks(obj.docstring.value)
