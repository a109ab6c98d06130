import io

import rich.table
from rich.text import Text

from sat_tf.presentation.tables import Column, Table
from sat_tf.presentation.terminal import make_console


def test_control_characters_are_text_wherever_they_stand():
    table = rich.table.Table("name\x07")
    table.add_row("layer\x1b[2J")
    table.add_row(Text("of a file\x1b]0;owned\x07", style="red"))
    stream = io.StringIO()
    console = make_console(file=stream, width=80, color_system=None)
    console.print(table)
    console.print("a label\x1b[31m", {"key": "\x9b2J"}, highlight=False, markup=False)
    said = stream.getvalue()
    assert not set(said) & set("\x07\x1b\x9b")
    assert r"layer\x1b[2J" in said
    assert r"of a file\x1b]0;owned" in said
    assert r"a label\x1b[31m" in said


def test_colours_of_our_own_stay():
    stream = io.StringIO()
    make_console(file=stream, force_terminal=True, color_system="standard").print("x", style="red")
    assert stream.getvalue() == "\x1b[31mx\x1b[0m\n"


def test_no_name_of_a_table_forges_a_line():
    table = Table(columns=[Column("name", lambda row: row)], rows=["a\nerror: forged"])
    text = io.StringIO()
    make_console(file=text, width=80).print(table.to_rich())
    said = text.getvalue()
    assert r"a\nerror: forged" in said
