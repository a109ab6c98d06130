"""Pages of one file: HTML without scripts and without anything to load."""

import html
from collections.abc import Iterable, Mapping, Sequence


def page(title: str, body: Iterable[str], style: str = "") -> str:
    """A whole page, readable in the light and in the dark, on phones and on paper.

    Args:
        title: in plain text.
        body: pieces of HTML that follow the heading.
        style: CSS that only this page needs.
    """
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}</title>\n<style>{_STYLE}{style}{_PRINTED}</style>\n</head>",
            f"<body>\n<main>\n<h1>{text(title)}</h1>",
            *body,
            "</main>\n</body>\n</html>\n",
        ]
    )


def text(words: str) -> str:
    """Plain text as HTML; names are never markup."""
    return html.escape(words)


def facts(rows: Mapping[str, str]) -> str:
    """A list of names and what they are, both in plain text; what is empty is left out."""
    lines = [f"<dt>{text(name)}</dt><dd>{text(fact)}</dd>" for name, fact in rows.items() if fact]
    return "\n".join(["<dl>", *lines, "</dl>"])


def table(head: Sequence[str], rows: Iterable[str], *, label: str, right: int = 0) -> str:
    """A table that scrolls by itself where it is wider than the page.

    Args:
        head: HTML of the column titles.
        rows: what `row` makes.
        label: what the table shows, in plain text, for who cannot see it.
        right: how many of the last columns are numbers.
    """
    left = len(head) - right
    names = "".join(
        f'<th scope="col">{name}</th>'
        if index < left
        else f'<th scope="col" class="number">{name}</th>'
        for index, name in enumerate(head)
    )
    body = "\n".join(rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(label)}"><table>\n'
        f"<thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def row(cells: Iterable[str], numbers: Iterable[str] = ()) -> str:
    """A row of a table: HTML of its cells, and of those that are numbers."""
    left = "".join(f"<td>{cell}</td>" for cell in cells)
    right = "".join(f'<td class="number">{number}</td>' for number in numbers)
    return f"<tr>{left}{right}</tr>"


_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --paper: #fff; --soft: #5c6370; --line: #d9dce1;
  --bars: #2f6fb0; --good: #137a3d; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6e9; --paper: #16181b; --soft: #9aa3ad;
  --line: #363b41; --bars: #7db4ea; --good: #5fce8b; --bad: #ff8a80; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
main { max-width: 84rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.1rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .3rem 0; }
.verdict { font-size: 2rem; font-weight: 650; } .good { color: var(--good); }
.bad { color: var(--bad); font-weight: 650; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0 0; }
dt, th { color: var(--soft); font-weight: 500; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .12rem .7rem .12rem 0; border-bottom: 1px solid var(--line);
  vertical-align: middle; }
th { font-size: .85em; vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
svg { display: block; color: var(--bars); } .number, td.number { text-align: right; }
"""
_PRINTED = """
@page { size: A4 landscape; margin: 10mm; }
@media print { :root { --ink: #000; --paper: #fff; --soft: #555; --line: #bbb; --bars: #2f6fb0;
  --good: #137a3d; --bad: #b3261e; } body { font-size: 8.5px; }
  main { padding: 0; max-width: none; } .wide svg { height: 12px; width: 90px; }
  .wide { overflow: visible; } thead { display: table-header-group; } tr { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
