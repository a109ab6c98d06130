"""The words of commands, and what is said of them."""

import argparse
import os
import shutil
import subprocess
import tempfile
from unittest import mock

import pytest
import rich.console
from rich.table import Table

from sat_tf.commands import main, options
from sat_tf.commands.main import COMMANDS
from sat_tf.commands.parser import SHELLS
from sat_tf.commands.train import unless_stopped
from sat_tf.exact.targets.processors import PROCESSORS
from sat_tf.export.lowering import packing
from sat_tf.messages import RunError
from sat_tf.output_folder import OutputFolder, run_name
from tests.commands.light import run_alone, told_without_tensorflow

# -- commands and options that are not there, and packages that are missing ------------------------


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
    "paper": "run table4/mobilenet_v1/4bits/pact --data glyphs",
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


# -- completion, as a shell asks for it ------------------------------------------------------------

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture(scope="module")
def script():
    return told_without_tensorflow("--completion", "bash", status=0)


@pytest.fixture
def completed(script, tmp_path):
    """Returns what a real bash completes the last of some words to."""

    def complete(*words):
        # Bash takes the sign of --option=value for a word.
        asked = " ".join(f"'{word}'" for word in ("sat-tf", *words))
        lines = f"""{script}
            COMP_WORDS=({asked}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _sat_tf; printf '%s\\n' "${{COMPREPLY[@]}}"; complete -p sat-tf"""
        settings = {"cwd": tmp_path, "capture_output": True, "text": True, "check": True}
        told = subprocess.run(["bash", "--norc", "-u", "-c", lines], **settings)
        assert told.stderr == ""
        *found, registered = told.stdout.splitlines()
        assert registered == "complete -F _sat_tf sat-tf"
        return [word for word in found if word]

    return complete


@pytest.mark.parametrize("command", COMMANDS)
def test_all_options_of_a_command_are_completed(command, completed):
    assert set(main.command_parser(command).options) <= set(completed(command, "--"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", [*COMMANDS, "-h", "--help", "--version", "--completion"]),
        ("qu", ["quantize"]),
        ("--comp", ["--completion"]),
        ("--completion ", [*SHELLS]),
        ("quantize model.keras --im", ["--images"]),
        ("paper sh", ["show"]),
        ("paper --seed", ["--seeds"]),
        ("paper run --seed", ["--seeds"]),
        ("quantize --unsupported ", ["error", "float"]),
        ("quantize --target ethos-u8", ["ethos-u85"]),
        ("quantize --target = ", [*PROCESSORS]),
        ("quantize --output_type = in", ["int8"]),
        ("sensitivity --metric ", ["top1", "distance", "divergence"]),
        ("export --pack ", [*packing.PACKINGS]),
    ],
)
def test_words_are_completed(words, expected, completed):
    assert completed(*words.split(" ")) == expected


@pytest.mark.parametrize("words", [["quantize"], ["quantize", "m.keras", "--images"], ["evaluate"]])
def test_names_of_files_are_completed(words, completed, tmp_path):
    for name in ("my photos", "model.keras", "other"):
        (tmp_path / name).touch()
    assert sorted(completed(*words, "m")) == ["model.keras", "my photos"]
    assert completed(*words, "ot") == ["other"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_scripts_of_the_same_words(shell, tmp_path):
    text = told_without_tensorflow("--completion", shell, status=0)
    for name in COMMANDS:
        for option in main.command_parser(name).options:
            assert option in text or f"-l {option[2:]}" in text
    if shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(text, encoding="utf-8")
        subprocess.run([shell, "-n", path], check=True)
