import dataclasses

from sat_tf.presentation.tables import Column, Displayed, Marked, Table


@dataclasses.dataclass(frozen=True, repr=False)
class _Result(Displayed):
    names: tuple[str, ...]

    def _headline(self):
        return Marked(f"{len(self.names)} <names>", "good")

    def _tables(self):
        table = Table(columns=[Column("name", str)], rows=self.names)
        return {"All & every": table, "None at all": dataclasses.replace(table, rows=())}

    def _notes(self):
        return ["a < b", "", Marked("beware", "bad")]


def test_the_interpreter_shows_the_line_and_the_class():
    assert repr(_Result(("a", "b"))) == "<_Result: 2 <names>>"


def test_a_notebook_shows_escaped_tables_below_the_line():
    html = _Result(("<script>",))._repr_html_()
    assert '<span class="good">1 &lt;names&gt;</span>' in html
    assert "<td>&lt;script&gt;</td>" in html
    assert "<script" not in html
    assert html.index("All &amp; every") < html.index("a &lt; b") < html.index("beware")


def test_tables_without_rows_are_left_out():
    assert "None at all" not in _Result(("a",))._repr_html_()
    assert "<table" not in _Result(())._repr_html_()


def test_the_style_reaches_nothing_else_on_the_page():
    html = _Result(("a",))._repr_html_()
    style = html[html.index("<style>") + len("<style>") : html.index("</style>")]
    rules = [rule.partition("*/")[2] or rule for rule in style.split("}")[:-1]]
    selectors = [one.strip() for rule in rules for one in rule.split("{")[0].split(",")]
    assert selectors
    assert all(selector.startswith(".sat-tf ") for selector in selectors)
