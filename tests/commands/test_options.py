import argparse
import os
import tempfile

import pytest
import rich.console
from rich.table import Table

from sat_tf.commands import main, options
from sat_tf.commands import main as module
from sat_tf.commands.train import unless_stopped
from sat_tf.export.lowering import packing
from sat_tf.messages import RunError
from sat_tf.output_folder import OutputFolder


def test_a_folder_is_created_with_its_parents(tmp_path):
    with OutputFolder(tmp_path / "a" / "b").opened() as folder:
        assert folder == tmp_path / "a" / "b"
        (folder / "index.html").write_text("")
    assert (tmp_path / "a" / "b" / "index.html").is_file()


def test_a_new_folder_that_stays_empty_is_removed(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("old", "new", "new/in/new"):
        with pytest.raises(KeyboardInterrupt), OutputFolder(tmp_path / name).opened():
            raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["old"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def refused(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(RunError, match="Permission denied; expected a folder that can be created"):
        OutputFolder(tmp_path).opened().__enter__()


@pytest.mark.parametrize(
    ("files", "words", "said"),
    [
        ([], "", "Stopped as asked; no run had begun."),
        (
            ["config.yaml"],
            "epoch 3 of the float stage is saved",
            "{}: epoch 3 of the float stage is saved.",
        ),
        (["config.yaml"], "", "and the same command resumes: what was under way begins again."),
        (
            ["config.yaml", "reconstruction.npz"],
            "",
            "begins again, but for the finished blocks of the reconstruction.",
        ),
    ],
)
def test_ctrl_c_fails_and_says_what_is_saved_and_what_begins_again(
    files, words, said, tmp_path, capsys
):
    def stopped():
        raise KeyboardInterrupt(*[words] if words else [])

    folder = tmp_path / "run"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("name: run")
    console = rich.console.Console()
    assert main.report_errors(lambda: unless_stopped(stopped, folder, console)) == 130
    assert said.format(folder) in " ".join(capsys.readouterr().err.split())


def test_the_storages_that_can_be_asked_for_are_those_of_files():
    assert tuple(packing.PACKINGS) == options.PACKS


# -- what is printed -------------------------------------------------------------------------------


LONG = "a name of many letters " * 12


def test_rows_stay_on_one_line_in_a_pipe_also_where_the_shell_exports_its_width(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    table = Table("name", "kind")
    table.add_row(LONG.strip(), "Conv2D")
    parser = argparse.ArgumentParser()
    parser.set_defaults(command=lambda _, console: console.print(table))
    monkeypatch.setattr(module, "command_parser", lambda name: parser)
    assert module.main(["explain"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "letters" in line)
    assert LONG.strip() in row
    assert "Conv2D" in row


def test_numbers_of_thousands_of_digits_are_refused_in_words():
    with pytest.raises(argparse.ArgumentTypeError, match="expected an integer"):
        options.seed("9" * 5000)
