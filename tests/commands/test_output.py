import pytest
from rich.table import Table

from sat_tf.commands import main as module

LONG = "a name of many letters " * 12


def printed(capsys):
    table = Table("name", "kind")
    table.add_row(LONG.strip(), "Conv2D")
    module._output().print(table)
    return [line for line in capsys.readouterr().out.splitlines() if "letters" in line]


def test_rows_stay_on_one_line_in_a_pipe(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    (row,) = printed(capsys)
    assert LONG.strip() in row
    assert "Conv2D" in row


@pytest.mark.parametrize("columns", ["60", "100"])
def test_a_width_that_is_asked_for_is_kept(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    rows = printed(capsys)
    assert len(rows) > 1
    assert all(len(row) <= int(columns) for row in rows)
