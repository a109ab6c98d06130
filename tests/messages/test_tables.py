import base64
import csv
import dataclasses
import functools
import io
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

import jinja2
import numpy as np
import pytest
import rich.console
import rich.table
from markupsafe import Markup
from rich.text import Text

import sat_tf
from sat_tf.messages import charts
from sat_tf.messages.charts import figure, histogram
from sat_tf.messages.tables import (
    Column,
    Marked,
    RowTable,
    Table,
    digits,
    percent,
    render,
    write_table,
)
from sat_tf.messages.terminal import make_console

PACKAGE = pathlib.Path(sat_tf.__file__).parent
COLUMNS = [
    Column("layer", lambda row: row["name"], wrap="never"),
    Column("codes", lambda row: row["codes"], digits(","), number=True),
    Column("clipped %", lambda row: row["clipped"], percent(1, unit=""), number=True),
    Column("verdict", lambda row: Marked(row["verdict"], "bad" if row["verdict"] else "good")),
]
ROWS = [
    {"name": "<b>conv", "codes": 1234, "clipped": 0.123456789, "verdict": "broken"},
    {"name": "[red]dense", "codes": None, "clipped": None, "verdict": ""},
]
TABLE = Table(columns=COLUMNS, rows=ROWS, kind=lambda row: "bad" if row["verdict"] else "")


def printed(table, width=80, **options):
    return shown(table.to_rich(**options), width=width)


def shown(*objects, width=80, **options):
    """What a terminal shows of objects of rich."""
    text = io.StringIO()
    make_console(file=text, width=width, **options).print(*objects)
    return text.getvalue()


def of_one_cell(cell):
    return Table(columns=[Column("", lambda row: row)], rows=[cell])


def test_all_forms_show_the_same_words_and_columns_of_one_width_share_the_room():
    for form in (printed(TABLE), TABLE.to_html("layers"), TABLE.to_markdown()):
        for words in ("layer", "codes", "clipped %", "1,234", "12.3", "broken"):
            assert words in form
    columns = [Column(name, lambda row: "one two three") for name in "abc"]
    assert printed(Table(columns=columns, rows=[None]), width=50).count("one two three") == 3


def test_names_are_no_markup_numbers_are_on_the_right_and_marked_words_and_rows_have_their_class():
    page = TABLE.to_html("layers")
    assert "&lt;b&gt;conv" in page
    assert "[red]dense" in printed(TABLE)
    assert "<td><svg></svg></td>" in of_one_cell(Markup("<svg></svg>")).to_html("drawings")
    assert '<th scope="col" class="number">codes</th>' in page
    assert '<td class="number">1,234</td>' in page
    assert TABLE.to_markdown().splitlines()[1] == "| --- | ---: | ---: | --- |"
    assert '<tr class="bad"><td>' in page
    assert '<span class="bad">broken</span>' in page
    assert "<b>conv</b>" in of_one_cell(Marked("conv", "name")).to_html("")
    assert "<code>conv</code>" in of_one_cell(Marked("conv", "code")).to_html("")
    assert "| `conv` |" in of_one_cell(Marked("conv", "code")).to_markdown()


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1+1", "'\t=1+1"),
        ("-inf", "-inf"),
        ("-2+3", "'-2+3"),
        ("-0.5", "-0.5"),
        ("-", "-"),
        ("a\x1b[2J", r"a\x1b[2J"),
    ],
)
def test_no_name_is_a_formula_of_a_spreadsheet(name, cell):
    text = write_table(["name", name], [[name, -0.25]])
    assert list(csv.reader(io.StringIO(text))) == [["name", cell], [cell, "-0.25"]]


def test_columns_without_anything_can_be_left_out_and_totals_stand_below_all_rows():
    columns = [Column("a", lambda row: row), Column("b", lambda row: None, digits("", missing="-"))]
    table = Table(columns=columns, rows=[1, 2]).without_empty("-")
    assert [column.title for column in table.columns] == ["a"]
    table = Table(columns=COLUMNS[:2], rows=ROWS, totals=["in all", "1,234"])
    assert printed(table).splitlines()[-2].split("│")[1].strip() == "in all"
    assert table.to_html("").index("dense") < table.to_html("").index("in all")


@dataclasses.dataclass(frozen=True, repr=False)
class _Result(RowTable):
    COLUMNS = ("name", "value")
    names: tuple[str, ...] = ()

    def to_rows(self):
        return [{"name": "conv", "value": 0.1234567}, {"name": "dense", "value": None}]

    def print_to(self, console):
        console.print("two rows")

    def _headline(self):
        return Marked(f"{len(self.names)} <names>", "good")

    def _tables(self):
        table = Table(columns=[Column("name", str)], rows=self.names)
        return {"All & every": table, "None at all": dataclasses.replace(table, rows=())}

    def _notes(self):
        return ["a < b", "", Marked("beware", "bad")]


def test_a_result_with_rows_is_a_text_a_data_frame_and_a_file(tmp_path, monkeypatch):
    assert str(_Result()) == _Result().table(width=8) == "two rows\n"
    _Result().write_csv(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_bytes() == b"name,value\nconv,0.123457\ndense,\n"
    frame = _Result().to_frame()
    assert list(frame["name"]) == ["conv", "dense"]
    assert frame["value"][0] == 0.1234567
    assert frame["value"].dtype == "float64"  # in spite of the gap
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        _Result().to_frame()


def test_the_interpreter_shows_a_line_and_a_notebook_escaped_tables_below_it():
    assert repr(_Result(("a", "b"))) == "<_Result: 2 <names>>"
    html = _Result(("<script>",))._repr_html_()
    assert '<span class="good">1 &lt;names&gt;</span>' in html
    assert "<td>&lt;script&gt;</td>" in html
    assert "<script" not in html
    assert html.index("All &amp; every") < html.index("a &lt; b") < html.index("beware")
    assert "None at all" not in html  # a table without rows
    assert "<table" not in _Result(())._repr_html_()


def test_the_style_reaches_nothing_else_on_the_page():
    html = _Result(("a",))._repr_html_()
    style = html[html.index("<style>") + len("<style>") : html.index("</style>")]
    rules = [rule.partition("*/")[2] or rule for rule in style.split("}")[:-1]]
    selectors = [one.strip() for rule in rules for one in rule.split("{")[0].split(",")]
    assert selectors
    assert all(selector.startswith(".sat-tf ") for selector in selectors)


def _wide_table(draws):
    """A table like those of commands: a name, and numbers and sentences under heads of words."""
    names = ["block_" * int(draws.integers(1, 9)) + str(place) for place in range(5)]
    rows = [(name, draws.integers(0, 10 ** int(draws.integers(1, 12)), 9)) for name in names]
    heads = ["bits", "top-1 lost", "codes differing", "first that differs", "multiply-adds"]
    columns = [Column("layer", lambda row: row[0], wrap="never")]
    for place in range(int(draws.integers(1, 9))):
        wrap, head = ("", "never", "fold")[place % 3], heads[int(draws.integers(5))]
        value = functools.partial(lambda place, row: int(row[1][place]), place)
        columns.append(Column(f"{head} {place}", value, digits(","), number=True, wrap=wrap))
    why = "this layer is left float because of its function"
    return Table(columns=[*columns, Column("why", lambda row: why)], rows=rows)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("seed", range(4))
def test_no_head_and_no_number_is_cut_and_no_column_is_lost(seed, width):
    table = _wide_table(np.random.default_rng(seed))
    text = printed(table, width=width, title="a title")
    assert "…" not in text
    assert text.count("a title") == 1
    words = set(re.findall(r"[^\s│┃┏┓┗┛┡┩┳╇┴─━└┘┬]+", text))
    for column in table.columns:
        assert set(column.title.split()) <= words
    for row in table.rows:
        assert {f"{number:,}" for number in row[1][: len(table.columns) - 2]} <= words


def test_all_tables_of_the_package_fit_a_terminal():
    built = re.compile(r"rich\.table\.Table\(|from rich\.table import")
    for source in PACKAGE.rglob("*.py"):
        assert not built.search(source.read_text("utf-8")), source  # only of FittingTable


def test_control_characters_are_text_wherever_they_stand_and_colours_of_our_own_stay():
    table = rich.table.Table("name\x07")
    table.add_row("layer\x1b[2J")
    table.add_row(Text("of a file\x1b]0;owned\x07", style="red"))
    said = shown(table, "a label\x1b[31m", {"key": "\x9b2J"}, color_system=None)
    assert not set(said) & set("\x07\x1b\x9b")
    assert r"layer\x1b[2J" in said
    assert r"of a file\x1b]0;owned" in said
    assert r"a label\x1b[31m" in said
    assert r"a\nerror: forged" in printed(of_one_cell("a\nerror: forged"))
    red = shown(Text("x", style="red"), force_terminal=True, color_system="standard")
    assert red == "\x1b[31mx\x1b[0m\n"


TEMPLATES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.html"))

SCRIPTED = {"planning/zoom.html"}  # all that runs on a page


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_load_nothing_and_switch_no_escaping_off(name):
    text = (PACKAGE / name).read_text(encoding="utf-8")
    assert not re.search(r"<link|url\(|@import|https?:", text)
    assert ("<script" in text) == (name in SCRIPTED)
    assert not re.search(r"\|\s*safe|autoescape", text)
    # The only images are those that are inside the page.
    sources = {"{{ example.picture }}"}
    assert set(re.findall(r'src="([^"]*)"', text)) <= sources


def test_every_page_is_based_on_the_same_one():
    texts = {name: (PACKAGE / name).read_text(encoding="utf-8") for name in TEMPLATES}
    pages = {name for name, text in texts.items() if "{% block body %}" in text}
    assert len(pages) >= 5
    for name in pages - {"messages/page.html"}:
        assert texts[name].startswith('{% extends "messages/page.html" %}')


def test_what_a_template_is_not_given_is_an_error_and_control_characters_of_values_are_text():
    with pytest.raises(jinja2.UndefinedError, match="label"):
        render("messages/table.html", columns=[], rows=[], zip=zip)
    name = "layer\u202egnp.exe\x1b[2J"
    page = render("messages/notebook.html", headline=name, tables={}, notes=[])
    assert r"layer\u202egnp.exe\x1b[2J" in page
    assert r"<b>layer\u202egnp.exe\x1b[2J</b>" in of_one_cell(Marked(name, "name")).to_html("")


def svg(figure):
    """The elements of the drawing in a figure of a page."""
    data = re.search(r'src="data:image/svg\+xml;base64,([\w+/=]+)"', figure)[1]
    return list(ET.fromstring(base64.b64decode(data)).iter())


def texts(figure):
    return [element.text for element in svg(figure) if element.tag.endswith("}text")]


def test_a_chart_is_an_image_with_its_title_in_words_and_its_labels_are_text():
    drawn = figure("<κ>", lambda axes: axes.plot([1, 4], [0.5, 2.0], label="κ₁"))
    assert '<figcaption>&lt;κ&gt;</figcaption>\n<img alt="&lt;κ&gt;"' in drawn
    assert "4.0" in texts(drawn)
    assert drawn == figure("<κ>", lambda axes: axes.plot([1, 4], [0.5, 2.0], label="κ₁"))


def test_lines_differ_in_colour_dashes_and_dots():
    colours = {charts.BLUE, charts.ORANGE, charts.GREEN, charts.PURPLE}
    assert {style["color"] for style in charts.SERIES} == colours
    for property_ in ("color", "linestyle", "marker"):
        assert len({style[property_] for style in charts.SERIES}) == len(charts.SERIES)


def test_every_code_that_occurs_has_a_bar_beside_the_axis_and_can_be_seen():
    for count in (1, 2, 16, 32, 33, 256):
        for counts, bars in (([1] + [0] * (count - 1), 1), ([3] * count, count), ([0] * count, 0)):
            assert histogram(counts, "x").count("M") == 1 + bars
    heights = re.findall(r"v-([\d.]+)", histogram([1, 10**9], "x"))
    assert list(map(float, heights)) == [1.5, 22.0]
