"""Words of code that stay whole: a line ends between them, not at the hyphens of `--input_range`.

A hook of MkDocs (`hooks` in `mkdocs.yml`). The rest is in `style.css`.
"""

import re
from typing import Any

_PRE = re.compile(r"(<pre.*?</pre>)", re.DOTALL)
_CODE = re.compile(r"(<code[^>]*>)([^<]*)(</code>)")
_HYPHENATED = re.compile(r"\S*-\S*")
# The heading of an entry of the API: a name that can be longer than a narrow line.
_NAME = re.compile(r'(<span class="doc doc-object-name[^>]*>)([^<]*)')


def on_page_content(html: str, **_: Any) -> str:
    """Marks words with hyphens in code, and where the names of the API may end a line.

    >>> on_page_content("<p><code>sat-tf verify</code></p> <pre><code>sat-tf</code></pre>")
    '<p><code><span class="word">sat-tf</span> verify</code></p> <pre><code>sat-tf</code></pre>'
    """
    parts = _PRE.split(html)
    parts[::2] = [_CODE.sub(_with_words, _NAME.sub(_with_ends, part)) for part in parts[::2]]
    return "".join(parts)


def _with_words(code: re.Match[str]) -> str:
    return code[1] + _HYPHENATED.sub(r'<span class="word">\g<0></span>', code[2]) + code[3]


def _with_ends(name: re.Match[str]) -> str:
    return name[1] + name[2].replace(".", ".<wbr>")
