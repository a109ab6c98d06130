"""Where lines do not end: inside words of code, as at the hyphens of `--input_range`, and figures.

A hook of MkDocs (`hooks` in `mkdocs.yml`). The rest is in `style.css`.
"""

import re
from html import unescape
from typing import Any

_PRE = re.compile(r"(<pre.*?</pre>)", re.DOTALL)
_CODE = re.compile(r"(<code[^>]*>)([^<]*)(</code>)")
# A word in which browsers see places to end a line, and the most characters that a narrow line has
# room for: a longer word is divided at its dots, commas, slashes and parentheses.
_DIVISIBLE = re.compile(r"\S*[^\w\s]\S*")
_LONG = 30
_END = re.compile(r"(?<=[.,(/=])(?=.)")
# Spaces of figures: 82.3 (81.3 to 84.0), 38.6 ± 1.3 (2), 71.9 / 90.3, 0 of 4,608, 12 %, 3.5 MB.
_CELL = re.compile(r"<t([dh])\b.*?</t\1>", re.DOTALL)
_SPACE = re.compile(
    r"(?<=[\d%]) (?=[±→(] ?-?\d)|(?<=[±→]) (?=-?\d)"
    r"|(?<=\d) (?=(to|of|/) [-±]?\d)|(?<=\d (?:to|of)) (?=[-±]?\d)|(?<=\d /) (?=\d)"
    r"|(?<=\d) (?=(?:%|m?s|[kKM]i?B)(?!\w))"
)
# The heading of an entry of the API.
_NAME = re.compile(r'(<span class="doc doc-object-name[^>]*>)([^<]*)')


def on_page_content(html: str, **_: Any) -> str:
    """Keeps words of code and figures of tables whole, and marks where long words may end a line.

    >>> on_page_content("<p><code>sat-tf verify</code></p> <pre><code>sat-tf</code></pre>")
    '<p><code><span class="word">sat-tf</span> verify</code></p> <pre><code>sat-tf</code></pre>'
    >>> on_page_content("<td>82.3 (81.3 to 84.0) of 9 %</td>").count("&nbsp;")
    4
    """
    parts = _PRE.split(html)
    parts[::2] = [_CODE.sub(_with_words, _NAME.sub(_with_ends, part)) for part in parts[::2]]
    return _CELL.sub(lambda cell: _SPACE.sub("&nbsp;", cell[0]), "".join(parts))


def _with_words(code: re.Match[str]) -> str:
    return code[1] + _DIVISIBLE.sub(_whole, code[2]) + code[3]


def _whole(word: re.Match[str]) -> str:
    parts = [word[0]] if _fits(word[0]) else _END.split(word[0])
    return "<wbr>".join(f'<span class="word">{one}</span>' if _fits(one) else one for one in parts)


def _fits(word: str) -> bool:
    return len(unescape(word)) <= _LONG


def _with_ends(name: re.Match[str]) -> str:
    return name[1] + "<wbr>".join(_END.split(name[2]))
