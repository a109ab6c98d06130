"""Options and commands that are not there, and packages that are missing."""

import subprocess
import sys

import pytest

from sat_tf.commands.main import COMMANDS
from tests.commands.light import run_alone, told_without_tensorflow


def test_every_unknown_option_is_named_before_what_is_missing():
    said = " ".join(told_without_tensorflow("quantize", "--lr", "1", "--wat", status=2).split())
    assert "Did you mean --learning_rate? --wat: no option of sat-tf quantize." in said
    assert "required" not in said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_typo_prints_the_usage_of_its_command(command):
    said = told_without_tensorflow(command, "--hlep", status=2)
    assert said.startswith(f"usage: sat-tf {command} ")


def test_words_behind_two_dashes_and_negative_numbers_are_no_options(tmp_path):
    words = ["explain", "--input_range", "-1,1", "--", "--model"]
    said = told_without_tensorflow(*words, status=2, cwd=tmp_path)
    assert "--model: received no file, expected a Keras model" in " ".join(said.split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", [["--help"], ["--lr"]])
def test_without_pydantic_a_command_says_what_to_install(command, words):
    told = run_alone(command, *words, without=["pydantic"])
    said = " ".join(told.err.split())
    assert said.startswith("error: pydantic is not installed in this Python")
    assert "pip install 'pydantic" in said
    assert (told.status, told.out, "Traceback" in told.err) == (2, "", False)


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


@pytest.mark.parametrize("command", REACHING)
def test_without_tensorflow_a_command_says_what_to_install(command, there):
    told = run_alone(command, *REACHING[command].split(), cwd=there, without=["tensorflow"])
    said = " ".join(told.err.split())
    assert "error: tensorflow is not installed in this Python" in said
    assert (told.status, "Traceback" in told.err) == (2, False)


def test_without_tensorflow_and_wrapt_keras_alone_is_no_hindrance():
    code = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tf_keras", "wrapt"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = ["sat-tf", "--help"]
runpy.run_module("sat_tf", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "quantize" in done.stdout


@pytest.mark.parametrize("missing", ["tensorflow", "pydantic"])
def test_without_either_the_commands_are_listed_and_typos_answered(missing):
    packages = ["tensorflow", "tf_keras", "keras", missing]
    told = run_alone("--help", without=packages)
    assert (told.status, told.err) == (0, "")
    assert [told.out.index(f"\n    {name} ") for name in COMMANDS] == sorted(
        told.out.index(f"\n    {name} ") for name in COMMANDS
    )
    assert "Did you mean quantize?" in run_alone("quantise", without=packages).err
