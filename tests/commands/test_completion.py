"""The completion of words, as a shell asks for it."""

import shutil
import subprocess

import pytest

from sat_tf.commands import main
from sat_tf.commands.parser import SHELLS
from tests.commands.light import told_without_tensorflow

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("shell") / "sat-tf.bash"
    text = told_without_tensorflow("--completion", "bash", status=0)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def completed(script, tmp_path):
    """Returns what a real bash completes the last of some words to."""

    def complete(*words):
        # Bash takes the sign of --option=value for a word.
        asked = " ".join(f"'{word}'" for word in ("sat-tf", *words))
        lines = f"""source {script}
            COMP_WORDS=({asked}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _sat_tf; printf '%s\\n' "${{COMPREPLY[@]}}"; complete -p sat-tf"""
        told = subprocess.run(
            ["bash", "--norc", "-u", "-c", lines],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stderr == ""
        *found, registered = told.stdout.splitlines()
        assert registered == "complete -F _sat_tf sat-tf"
        return [word for word in found if word]

    return complete


def test_the_first_word_is_a_command(completed):
    assert completed("qu") == ["quantize"]
    assert set(main.COMMANDS) <= set(completed(""))
    assert completed("--comp") == ["--completion"]
    assert completed("--completion", "") == list(SHELLS)


@pytest.mark.parametrize("command", main.COMMANDS)
def test_all_options_of_a_command_are_completed(command, completed):
    options = set(main.command_parser(command).options)
    assert options <= set(completed(command, "--"))


def test_options_are_completed_anywhere(completed):
    assert completed("quantize", "model.keras", "--im") == ["--images"]
    assert completed("paper", "--m") == completed("paper", "run", "--m")
    assert completed("paper", "sh") == ["show"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["quantize", "--unsupported", ""], ["error", "float"]),
        (["quantize", "--target", "ethos-u8"], ["ethos-u85"]),
        (["quantize", "--target", "="], "litert"),
        (["quantize", "--output_type", "=", "in"], ["int8"]),
        (["sensitivity", "--metric", ""], ["top1", "distance", "divergence"]),
        (["quantize", "--bits", ""], []),
    ],
)
def test_values_of_options_are_completed(words, expected, completed):
    found = completed(*words)
    assert expected in found if isinstance(expected, str) else found == expected


@pytest.mark.parametrize("words", [["quantize"], ["quantize", "m.keras", "--images"], ["evaluate"]])
def test_names_of_files_are_completed(words, completed, tmp_path):
    for name in ("my photos", "model.keras", "other"):
        (tmp_path / name).touch()
    assert sorted(completed(*words, "m")) == ["model.keras", "my photos"]
    assert completed(*words, "ot") == ["other"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_scripts_of_the_same_words(shell, tmp_path):
    text = told_without_tensorflow("--completion", shell, status=0)
    for name in main.COMMANDS:
        for option in main.command_parser(name).options:
            assert option in text or f"-l {option[2:]}" in text
    if shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(text, encoding="utf-8")
        subprocess.run([shell, "-n", path], check=True)


def test_a_shell_that_is_not_known_is_refused_with_those_that_are():
    said = told_without_tensorflow("--completion", "tcsh", status=2)
    assert "invalid choice: 'tcsh' (choose from 'bash', 'zsh', 'fish')" in " ".join(said.split())
