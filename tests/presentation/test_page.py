import pathlib
import re

import jinja2
import pytest

import sat_tf
from sat_tf.presentation.tables import Column, Marked, Table, render

PACKAGE = pathlib.Path(sat_tf.__file__).parent
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
    for name in pages - {"presentation/page.html"}:
        assert texts[name].startswith('{% extends "presentation/page.html" %}')


def test_what_a_template_needs_and_is_not_given_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="label"):
        render("presentation/table.html", columns=[], rows=[], zip=zip)


def test_control_characters_of_values_are_text():
    name = "layer\u202egnp.exe\x1b[2J"
    page = render("presentation/notebook.html", headline=name, tables={}, notes=[])
    assert r"layer\u202egnp.exe\x1b[2J" in page
    table = Table(columns=[Column("", lambda row: Marked(row, "name"))], rows=[name])
    assert r"<b>layer\u202egnp.exe\x1b[2J</b>" in table.to_html("")
