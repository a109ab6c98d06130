"""The words of commands, and what is said of them."""

import argparse
import os
import tempfile
from unittest import mock

import pytest
import rich.console
from rich.table import Table

from sat_tf.commands import main, options
from sat_tf.commands.main import COMMANDS
from sat_tf.commands.train import unless_stopped
from sat_tf.messages import RunError
from sat_tf.output_folder import OutputFolder, run_name
from tests.commands.light import run_alone, told_without_tensorflow

# -- commands and options that are not there, and packages that are missing ------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_typo_prints_the_usage_of_its_command(command):
    said = told_without_tensorflow(command, "--hlep", status=2)
    assert said.startswith(f"usage: sat-tf {command} ")


def test_a_data_set_that_is_in_the_repository_alone_is_named_with_its_place():
    said = told_without_tensorflow("train", "--set", "data.name=glyphs", status=2)
    assert "data.name='glyphs' is gone; clone the repository, which draws it" in said


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A folder with files of the names that words below have; what is in them is not read."""
    folder = tmp_path_factory.mktemp("there")
    (folder / "photos").mkdir()
    (folder / "run").mkdir()
    config = "name: it\ndata: {name: digits}\nmodel: {name: mobilenet_v2}\n"
    (folder / "run" / "config.yaml").write_text(config)
    for name in ("model.keras", "run/quantized.keras", "run/model.tflite"):
        (folder / name).write_text("")
    return folder


# What takes each command that needs TensorFlow as far as it goes without.
REACHING = {
    "quantize": "model.keras --images photos",
    "explain": "model.keras",
    "verify": "run",
    "train": "",
    "export": "model.keras",
    "audit": "model.keras",
    "sensitivity": "model.keras --images photos",
    "allocate": "model.keras --images photos --budget bytes=3",
}
MISSING = [("tensorflow", *reaching) for reaching in REACHING.items()]
MISSING += [("pydantic", command, word) for command in COMMANDS for word in ("--help", "--lr")]


@pytest.mark.parametrize(("missing", "command", "words"), MISSING)
def test_without_a_package_a_command_says_what_to_install(missing, command, words, there):
    told = run_alone(command, *words.split(), cwd=there, without=[missing])
    said = " ".join(told.err.split())
    assert f"error: {missing} is not installed in this Python" in said
    assert "pip install sat-tf" in said
    assert (told.status, "Traceback" in told.err) == (2, False)
    assert missing != "pydantic" or (told.out == "" and said.startswith("error: "))


@pytest.mark.parametrize("missing", ["keras", "keras pydantic", "wrapt"])
def test_without_packages_the_commands_are_listed_and_typos_answered(missing):
    packages = ["tensorflow", "tf_keras", *missing.split()]
    told = run_alone("--help", without=packages)
    assert (told.status, told.err) == (0, "")
    places = [told.out.index(f"\n    {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert "Did you mean quantize?" in run_alone("quantise", without=packages).err


# -- folders, and what is printed ------------------------------------------------------------------


def test_a_folder_is_created_with_its_parents_which_are_removed_where_it_stays_empty(tmp_path):
    with OutputFolder(tmp_path / "a" / "b").opened() as folder:
        assert folder == tmp_path / "a" / "b"
        (folder / "index.html").write_text("")
    assert (tmp_path / "a" / "b" / "index.html").is_file()
    for name in ("a", "new", "new/in/new"):
        with pytest.raises(KeyboardInterrupt), OutputFolder(tmp_path / name).opened():
            raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["a"]


def test_folders_have_names_of_plain_letters_and_are_refused_where_they_cannot_be_written(
    tmp_path, monkeypatch
):
    assert run_name("my photos!", "folder") == "my_photos_"
    assert run_name("...", "folder") == "folder"
    refused = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(RunError, match="Permission denied; expected a folder that can be created"):
        OutputFolder(tmp_path).opened().__enter__()


@pytest.mark.parametrize(
    ("files", "words", "said"),
    [
        ("", [], "Stopped as asked; no run had begun."),
        ("config.yaml", ["epoch 3 is saved"], "{}: epoch 3 is saved."),
        ("config.yaml", [], "and the same command resumes: what was under way begins again."),
        ("config.yaml reconstruction.npz", [], "again, but for the finished blocks of the recons"),
    ],
)
def test_ctrl_c_fails_and_says_what_is_saved_and_what_begins_again(
    files, words, said, tmp_path, capsys
):
    for name in files.split():
        (tmp_path / name).write_text("name: run")
    stopped, console = mock.Mock(side_effect=KeyboardInterrupt(*words)), rich.console.Console()
    assert main.report_errors(lambda: unless_stopped(stopped, tmp_path, console)) == 130
    assert said.format(tmp_path) in " ".join(capsys.readouterr().err.split())


def test_rows_stay_on_one_line_in_a_pipe_also_where_the_shell_exports_its_width(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    table, name = Table("name", "kind"), "a name of many letters" * 12
    table.add_row(name, "Conv2D")
    parser = argparse.ArgumentParser()
    parser.set_defaults(command=lambda _, console: console.print(table))
    monkeypatch.setattr(main, "command_parser", lambda name: parser)
    assert main.main(["explain"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "letters" in line)
    assert name in row
    assert "Conv2D" in row


def test_numbers_of_thousands_of_digits_are_refused_in_words():
    with pytest.raises(argparse.ArgumentTypeError, match="expected an integer"):
        options.seed("9" * 5000)
